"""What the slots of a paraphrase take: the question itself, and what the question is about.

`{question}` is the question's own text, best put in straight quotes; `{entity}` a quoted phrase or
a name found in it. Both work by the shape of the text alone, in any language with capitals.
"""

import re

SLOT = re.compile(r"\{(entity|question)\}")
SUBJECT = "the subject of the question"
"""Stands for `{entity}` where a question names nothing."""

_LONGEST_QUESTION = 160
_LONGEST_ENTITY = 60
_LONGEST_ABBREVIATION = 4
_QUOTED = re.compile(r"\"[^\"]+\"|“[^”]+”|«[^»]+»|„[^“”]+[“”]")
_EDGES = ".,;:!?()[]{}\"“”„«»'‘’"
_CONNECTING = frozenset(
    [
        "of",
        "the",
        "and",
        "&",
        "de",
        "la",
        "le",
        "les",
        "du",
        "des",
        "der",
        "van",
        "von",
        "zu",
        "di",
        "da",
        "del",
        "y",
        "e",
    ]
)
# Capitalised for their place in a sentence or a title, not because they name something.
_NO_NAMES = frozenset(
    [
        "a",
        "about",
        "after",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "before",
        "between",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "during",
        "for",
        "from",
        "give",
        "had",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "its",
        "list",
        "many",
        "may",
        "might",
        "much",
        "my",
        "name",
        "of",
        "on",
        "or",
        "our",
        "please",
        "shall",
        "should",
        "state",
        "tell",
        "that",
        "the",
        "their",
        "these",
        "they",
        "this",
        "those",
        "to",
        "under",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)


def fill(paraphrase: str, entity: str, question: str) -> str:
    """The paraphrase with its slots filled as they are given, and a capital at its start."""
    given = {"entity": entity, "question": question}
    text = SLOT.sub(lambda slot: given[slot[1]], paraphrase)
    return text[:1].upper() + text[1:]


def realise(paraphrase: str, question: str) -> str:
    """The paraphrase about a question: its slots filled with what `question` says and names."""
    if "{" not in paraphrase:
        return fill(paraphrase, "", "")
    asked = shown_question(question)
    if '"{question}"' in paraphrase:  # quotes inside quotes
        asked = asked.replace('"', "'")
    return fill(paraphrase, entity_of(question) or SUBJECT, asked)


def wrong_slots(paraphrase: str) -> str:
    """The first brace expression that is no slot, or the lone brace; "" if all is well."""
    rest = SLOT.sub("", paraphrase)
    found = re.search(r"\{[^{}]*\}|[{}]", rest)
    return found[0] if found else ""


def shown_question(question: str) -> str:
    """The question on one line, without a full stop; a long one ends early, at a word, in `...`."""
    text = " ".join(question.split())
    if len(text) > _LONGEST_QUESTION:
        cut = text[:_LONGEST_QUESTION]
        return (cut.rpartition(" ")[0] or cut).rstrip(" ,;:.") + "..."
    return text.rstrip(".").rstrip() or text


def entity_of(question: str) -> str | None:
    """What a question is about: a quoted phrase, else the longest run of capitalised words.

    "Who painted the ceiling of the Sistine Chapel?" gives "the Sistine Chapel". None if it names
    nothing, or nothing shorter than a clause.
    """
    quoted = [found[0] for found in _QUOTED.finditer(question)]
    names = quoted or ([] if question.isupper() else _names(question.split()))
    fitting = [name for name in names if len(name) <= _LONGEST_ENTITY]
    return max(fitting, key=len, default=None)


def _names(words: list[str]) -> list[str]:
    """Runs of capitalised words, with the connecting words inside them and an article before."""
    found: list[str] = []
    begin, run = 0, []
    for place, word in enumerate(words):
        core = word.strip(_EDGES)
        if core[:1].isupper() and core.casefold() not in _NO_NAMES:
            begin = begin if run else place
            run.append(word)
        elif run and (core in _CONNECTING or core.isdecimal()):
            run.append(word)
        else:
            found += _finished(words, begin, run)
            run = []
        if run and _ends(word):
            found += _finished(words, begin, run)
            run = []
    return found + _finished(words, begin, run)


def _ends(word: str) -> bool:
    """Whether a name ends with this word; the full stop of an initial or a title ends none."""
    if word.endswith("."):
        return len(word) > _LONGEST_ABBREVIATION
    return word.endswith((",", ";", ":", "?", "!", ")", "'s", "’s"))


def _finished(words: list[str], begin: int, run: list[str]) -> list[str]:
    """The run as a name, in a list; an empty one where it is none."""
    while run and run[-1].strip(_EDGES) in _CONNECTING:
        run = run[:-1]
    first = begin == 0 or (_ends(words[begin - 1]) and not words[begin - 1].endswith((",", ")")))
    if not run or (len(run) == 1 and first):  # capitalised for the place it stands at, perhaps
        return []
    name = " ".join(run).strip(_EDGES)
    for mark in ("'s", "’s"):
        name = name.removesuffix(mark)
    if len(run) > 1 and begin and words[begin - 1] == "the":
        name = f"the {name}"
    return [name] if name else []
