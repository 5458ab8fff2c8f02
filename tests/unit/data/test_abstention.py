"""The paraphrase bank: varied, evenly used, recognised, and not mistaken for answers."""

import random
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.data.abstention import BANK, assign, fill, is_abstention, normalise


def test_the_bank_is_large_and_varied() -> None:
    assert len(BANK) >= 34
    assert len({normalise(text) for text in BANK}) == len(BANK)
    openings = {tuple(normalise(text.replace("{question}", "Q")).split()[:3]) for text in BANK}
    assert len(openings) >= 18
    first_words = Counter(text.split()[0] for text in BANK)
    assert len(first_words) >= 10
    lengths = {len(text.split()) for text in BANK}
    assert max(lengths) >= 2 * min(lengths)
    assert sum("{" in text for text in BANK) >= 10


@given(st.integers(0, 500), st.integers(0, 10**6))
def test_no_paraphrase_is_used_more_than_once_above_the_average(count: int, seed: int) -> None:
    chosen = assign(count, random.Random(seed))
    assert len(chosen) == count
    assert max(Counter(chosen).values(), default=0) <= count / len(BANK) + 1
    assert set(chosen) <= set(BANK)


def test_assignment_follows_the_seed() -> None:
    assert assign(100, random.Random(3)) == assign(100, random.Random(3))
    assert assign(100, random.Random(3)) != assign(100, random.Random(4))


def test_an_empty_bank_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        assign(1, random.Random(0), bank=())


def test_fill_puts_names_into_the_slots() -> None:
    text = fill("{question} is missing, said {entity}.", entity="Oru", question="the tree of Oru")
    assert text == "The tree of Oru is missing, said Oru."


@pytest.mark.parametrize("paraphrase", BANK)
def test_every_filled_paraphrase_is_recognised(paraphrase: str) -> None:
    text = fill(paraphrase, entity="Oru", question="the tree of Oru")
    assert is_abstention(text)
    assert is_abstention("  " + text.upper().replace(" ", " \n ").rstrip(string.punctuation))
    # A slot stands for any words; words beyond a fixed end or start make another sentence.
    assert is_abstention(text + " It is oak.") == paraphrase.endswith("}.")
    assert is_abstention("Yes: " + text) == paraphrase.startswith("{")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        ".",
        "oak",
        "The tree of Oru is oak.",
        "Mirel does not rule.",
        "The passages do say.",
        "The the the the",
    ],
)
def test_answers_are_no_abstentions(answer: str) -> None:
    assert not is_abstention(answer)


def test_a_slot_takes_one_word_or_more_and_never_none() -> None:
    bank = ("Ask {entity} now.", "{question} is lost")
    assert is_abstention("ask Oru now", bank)
    assert is_abstention("Ask the town of Oru, now!", bank)
    assert not is_abstention("ask now", bank)
    assert is_abstention("the tree is lost", bank)
    assert not is_abstention("is lost", bank)
    assert not is_abstention("The passages do not say.", bank)


def test_pattern_characters_in_a_bank_are_words_not_patterns() -> None:
    assert not is_abstention("abc", ("a.c",))
    assert is_abstention("a c", ("a.c",))


def test_an_empty_bank_recognises_nothing() -> None:
    assert not is_abstention("", ())
