"""What a record of a source means: one validated dataclass per task.

    bad         what is said about a record that breaks a rule
    messages    turns of a conversation
    chat        tasks that are conversations
    other       retrieval, text, choice
    parsing     from bytes to a record; JSON, nulls, double keys, unknown fields

Adding a task: one class, one line in `RECORDS`.
"""

from curriculum.data.records.bad import BadRecord
from curriculum.data.records.chat import (
    QA,
    Chat,
    ChatRecord,
    Instruction,
    Messages,
    Planning,
    PromptCompletion,
    Summarization,
)
from curriculum.data.records.messages import Message
from curriculum.data.records.other import Choice, RetrievalRecord, Text, normalised
from curriculum.data.records.parsing import (
    RECORDS,
    Record,
    is_chat,
    parse,
    to_chat,
    to_messages,
)

__all__ = [
    "QA",
    "RECORDS",
    "BadRecord",
    "Chat",
    "ChatRecord",
    "Choice",
    "Instruction",
    "Message",
    "Messages",
    "Planning",
    "PromptCompletion",
    "Record",
    "RetrievalRecord",
    "Summarization",
    "Text",
    "is_chat",
    "normalised",
    "parse",
    "to_chat",
    "to_messages",
]
