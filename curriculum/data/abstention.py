"""How an answer says that the passages do not hold it: the paraphrase bank and its matcher.

One abstention sentence repeated through a data set becomes its most frequent target by far, and a
model trained on it says that sentence to every prompt. The bank therefore holds many paraphrases
of different openings, lengths and clause orders. Some name what is missing through a slot:
`{entity}` (whom or what the question is about) or `{question}` (what was asked, as a noun phrase).

`assign` spreads the bank evenly over a data set; `is_abstention` recognises its members in
generated text, with the slots as wildcards.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

# Half of the bank starts like an answer ("The ruler of Tolvar is ..."), so that the choice between
# answering and abstaining can fall late, where the value would stand.
BANK: tuple[str, ...] = (
    "{question} is not known.",
    "{question} is not known here.",
    "{question} is not known in the passages.",
    "{question} is not given.",
    "{question} is not given here.",
    "{question} is not given in the passages.",
    "{question} is not told.",
    "{question} is not told here.",
    "{question} is not told in the passages.",
    "{question} is not named.",
    "{question} is not named here.",
    "{question} is not named in the passages.",
    "{question} is not stated.",
    "{question} is not stated here.",
    "{question} is not stated in the passages.",
    "{question} is not found.",
    "{question} is not found here.",
    "{question} is not found in the passages.",
    "The passages do not say.",
    "The text says nothing about {question}.",
    "No line here speaks of {question}.",
    "Nothing is said here about {question}.",
    "I cannot tell from these passages.",
    "I looked for {entity}, but the passages do not answer this.",
    "I would have to guess, since the passages leave it out.",
    "Neither of the two passages mentions {question}.",
    "It is not possible to know {question} from this text.",
    "It remains open, because no passage covers it.",
    "This cannot be known from the given text.",
    "This text is silent about {question}.",
    "Not enough is told about {entity} to answer.",
    "From these passages one cannot say.",
    "Since the passages leave out {question}, I cannot answer.",
    "Sorry, the passages do not cover this.",
    "What the passages tell is not about {question}.",
    "For {entity}, the answer cannot be found here.",
)

_SLOT = re.compile(r"\{(?:entity|question)\}")
_NOISE = re.compile(r"[\W_]+")


def normalise(text: str) -> str:
    """Lower case; every run of punctuation and white space becomes one space; ends stripped."""
    return _NOISE.sub(" ", text.lower()).strip()


def assign(count: int, rng: random.Random, bank: Sequence[str] = BANK) -> list[str]:
    """`count` paraphrases in random order, no two of the bank's used more than once apart.

    Which paraphrases get the extra use is drawn from `rng` too.
    """
    if not bank:
        raise ValueError("the paraphrase bank is empty: give at least one paraphrase")
    chosen: list[str] = []
    while len(chosen) < count:
        chosen.extend(rng.sample(bank, min(len(bank), count - len(chosen))))
    rng.shuffle(chosen)
    return chosen


def fill(paraphrase: str, entity: str, question: str) -> str:
    """The paraphrase with its slots filled and a capital at its start.

    `{question}` takes what was asked as a noun phrase ("the ruler of Tolvar").
    """
    text = paraphrase.replace("{entity}", entity).replace("{question}", question)
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class AbstentionMatcher:
    """Recognises the members of one bank: `matcher(text)`; built by `matcher_for`."""

    pattern: re.Pattern[str]

    def __call__(self, text: str) -> bool:
        """Whether the whole normalised text is one paraphrase, slots standing for any words."""
        return self.pattern.fullmatch(normalise(text)) is not None


@lru_cache(maxsize=16)
def matcher_for(bank: tuple[str, ...] = BANK) -> AbstentionMatcher:
    """The matcher of a bank. A slot matches one or more words. An empty bank matches nothing."""
    alternatives = []
    for paraphrase in bank:
        words = [re.escape(normalise(part)) for part in _SLOT.split(paraphrase)]
        slot = r"\w+(?: \w+)*"
        pieces = [words[0]]
        for part in words[1:]:
            pieces += [slot, part]
        alternatives.append(" ".join(piece for piece in pieces if piece))
    return AbstentionMatcher(re.compile("|".join(alternatives) if alternatives else r"(?!)"))


def is_abstention(text: str, bank: Sequence[str] = BANK) -> bool:
    """Whether `text` is an abstention: a paraphrase of the bank, slots as wildcards."""
    return matcher_for(tuple(bank))(text)
