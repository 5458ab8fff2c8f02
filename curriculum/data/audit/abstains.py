"""Which targets say that there is no answer, and in which wording.

A target abstains if its record says so (`answerable: false`), if it is a member of the bank of
paraphrases, or, for one that many records share, if it reads like an abstention.
"""

import re

from curriculum.data.abstention import is_abstention

TASKS = ("qa", "messages", "prompt_completion", "instruction")
"""Tasks whose targets may abstain. A summary or a plan that says "not found" means something."""

_LONGEST = 300

_READS_LIKE = re.compile(
    r"\b(?:can ?not|can['’]?t|could ?n[o'’]t|un(?:able|answerable|known)|insufficient|no answer|"
    r"(?:do|does|did)(?: not|n['’]t) (?:know|say|contain|provide|include|mention|state|answer|"
    r"tell|specify|have|give|cover|hold|appear)|not (?:enough|sure|answerable|possible|able|"
    r"known|(?:be |been )?(?:found|given|mentioned|stated|provided|available|specified|covered|"
    r"answered|determined|named|told|said|clear))|nothing (?:is|in|about)|no (?:information|"
    r"passage|mention|evidence))\b"
)
_WORD = re.compile(r"\w+")
_FUNCTION = frozenset(
    (  # noqa: SIM905
        "a an the of in on at to is are was were be been by for from and or it its this that "
        "these those do does did has have had not no who whom whose what which where when why how"
    ).split()
)


def is_from_bank(target: str) -> bool:
    """Whether a target is a paraphrase of the bank. A list of steps that ends like one is not."""
    return len(target) <= _LONGEST and "\n" not in target.strip() and is_abstention(target)


def reads_like_abstention(target: str) -> bool:
    """Whether a target speaks of not knowing: for targets that many records share, since a
    single answer may speak so too and mean it."""
    folded = target.casefold()
    return len(folded) <= _LONGEST and _READS_LIKE.search(folded) is not None


def wording(target: str, question: str) -> str:
    """The target without what it takes from the question: its words there, and function words
    before and between them, become one `*`."""
    asked = set(_WORD.findall(question.casefold())) - _FUNCTION
    kept: list[str] = []
    waiting: list[str] = []  # function words that the next word draws into a `*`, or not
    for word in _WORD.findall(target.casefold()):
        if word in asked:
            waiting = []
            if kept[-1:] != ["*"]:
                kept.append("*")
        elif word in _FUNCTION:
            waiting.append(word)
        else:
            kept += [*waiting, word]
            waiting = []
    return " ".join([*kept, *waiting])
