"""A word-level tokenizer of the demo corpus, as a Hugging Face tokenizer directory.

Words, single punctuation marks and line feeds are tokens; other white space only separates.
Decoding puts the spaces back where English has them, so encoding and decoding give the text back
up to white space. The chat template is ChatML-like: closed turns, one after the other, so that the
render of a conversation's beginning is always a prefix of the render of the whole.
"""

import re
import shutil
import tempfile
from pathlib import Path

import orjson

EOS, PAD, UNK = "<|endoftext|>", "<|pad|>", "<|unk|>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, UNK, EOS, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _words(text: str) -> list[str]:
    return text.split()


# What rendering adds to the corpus: roles, prompt words, passage numbers, punctuation.
_FRAME = _words("system user assistant tool Question Summarize Plan 0 1 2 3 4 5 6 7 8 9")
_MARKS = list("\n.,:;?![]()-'\"")
_TOKEN = r"\w+|[^\w\s]|\n"


# Phases whose words come last in the vocabulary: what came before them keeps its numbers.
_LATER = ("calibration",)


def corpus_words(root: Path) -> list[str]:
    """All tokens of the corpus under `root`, held-out files included, sorted; those that only the
    last phases have come last."""
    paths = sorted(root.glob("*/*.jsonl"))
    later = [path for path in paths if path.parent.name in _LATER]
    first = _words_of([path for path in paths if path not in later])
    return [*sorted(first), *sorted(_words_of(later) - first)]


def _words_of(paths: list[Path]) -> set[str]:
    chunks: set[str] = set()
    for path in paths:
        for line in path.read_bytes().splitlines():
            for text in _texts(orjson.loads(line)):
                chunks.update(text.split())
    return {word for chunk in chunks for word in re.findall(_TOKEN, chunk)}


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [t for key, item in value.items() if key != "id" for t in _texts(item)]
    if isinstance(value, list):
        return [t for item in value for t in _texts(item)]
    return []


def train_tokenizer(root: Path, out_dir: Path) -> int:
    """Write the tokenizer of the corpus under `root` to `out_dir`; return its vocabulary size.

    `out_dir` appears complete or not at all. The same corpus gives the same files.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ordered = dict.fromkeys([*SPECIAL, *_MARKS, *_FRAME, *corpus_words(root)])
    vocabulary = {word: index for index, word in enumerate(ordered)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_TOKEN), behavior="removed", invert=True)
    # WordPiece's decoder puts a space before each token; the rest takes the needless ones away.
    tight = [decoders.Replace(f" {mark}", mark) for mark in ".,:;?!])\n"]
    joins = [decoders.Replace(f"{mark} ", mark) for mark in "[(\n"]
    core.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix="##", cleanup=False), *tight, decoders.Fuse(), *joins]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        additional_special_tokens=[TURN_START, TURN_END],
        clean_up_tokenization_spaces=False,
        model_max_length=1_000_000,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        tokenizer.save_pretrained(partial)
        if out_dir.exists():
            shutil.rmtree(out_dir)
        partial.rename(out_dir)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(tokenizer)
