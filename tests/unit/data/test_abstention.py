"""The paraphrase banks: varied, evenly used, recognised, and not mistaken for answers."""

import random
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.data.abstention import (
    BANK,
    assign,
    fill,
    is_abstention,
    known_banks,
    matcher_for,
    normalise,
)
from curriculum.data.abstention.slots import SUBJECT, entity_of, realise
from curriculum.data.demo.abstentions import BANK as DEMO_BANK

QUESTIONS = [
    "Where was Albert Einstein born?",
    "capital of france",
    "Name the river that runs through Cairo.",
    'Who wrote "The Trial"?',
    "what\nis\u2028asked here",
    "何ですか",
]


def test_the_bank_is_large_and_varied() -> None:
    assert len(BANK) >= 40
    assert len({normalise(text) for text in BANK}) == len(BANK)
    openings = {tuple(normalise(text).split()[:2]) for text in BANK}
    assert len(openings) >= len(BANK) - 5
    assert Counter(text.split()[0] for text in BANK).most_common(1)[0][1] <= 4
    lengths = sorted(len(text.split()) for text in BANK)
    assert lengths[-5] >= 3 * lengths[0]
    assert len({normalise(text).split()[-1] for text in BANK}) >= 25
    for slot in ("{entity}", "{question}"):
        assert sum(slot in text for text in BANK) >= 8
    assert sum("{" not in text for text in BANK) >= 15


def test_a_question_stands_in_quotes_and_no_slot_ends_a_sentence_twice() -> None:
    for text in BANK:
        assert text.count("{question}") == text.count('"{question}"')
        for question in QUESTIONS:
            said = realise(text, question)
            assert "{" not in said and "\n" not in said
            assert said[-1] in ".?!" and ".." not in said and "?." not in said


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_paraphrase_of_the_bank_is_recognised_as_itself(question: str) -> None:
    for text in BANK:
        assert matcher_for(BANK).which(realise(text, question)) == text


def test_all_known_banks_are_recognised_unless_one_is_named() -> None:
    theirs = "The tree of Oru is not told here."
    assert is_abstention(BANK[0]) and is_abstention(theirs)
    assert not is_abstention(theirs, BANK) and not is_abstention(BANK[0], DEMO_BANK)
    assert set(known_banks()) == {*BANK, *DEMO_BANK}


def test_of_several_paraphrases_that_fit_the_first_counts() -> None:
    matcher = matcher_for(("Mind: {entity} is out.", "{entity} is out.", "Oru is out."))
    assert matcher.which("oru is out") == "{entity} is out."
    assert matcher.which("Mind, Oru is out!") == "Mind: {entity} is out."
    assert matcher.which("Oru is in.") is None


def test_a_text_that_touches_a_slot_touches_what_the_slot_takes() -> None:
    bank = ("{entity}不明", "pre{entity} gone")
    assert is_abstention("巴黎不明", bank)
    assert is_abstention("prefix gone", bank)
    assert not is_abstention("not prefix gone", bank)


@pytest.mark.parametrize(
    ("question", "entity"),
    [
        ("Who painted the ceiling of the Sistine Chapel?", "the Sistine Chapel"),
        ('Who wrote "Hamlet"?', '"Hamlet"'),
        ("Where was Albert Einstein born?", "Albert Einstein"),
        ("Marie Curie was born where?", "Marie Curie"),
        ("What is Einstein's theory?", "Einstein"),
        ("Dr. Smith's office: where is it?", "Dr. Smith"),
        ("In 1999, who led Apollo 11?", "Apollo 11"),
        ("When did J. K. Rowling write it?", "J. K. Rowling"),
        ("Describe the process.", None),
        ("what is the capital of france", None),
        ("WHY IS THIS IN CAPITALS", None),
        ("何ですか", None),
    ],
)
def test_what_a_question_is_about(question: str, entity: str | None) -> None:
    assert entity_of(question) == entity


def test_slots_take_what_the_question_gives() -> None:
    text = 'On {entity}, you ask "{question}" here.'
    asked = 'Who is "Bo"\nof Ur?'
    assert realise(text, asked) == 'On "Bo", you ask "Who is \'Bo\' of Ur?" here.'
    assert realise(text, "why?") == f'On {SUBJECT}, you ask "why?" here.'
    assert realise("{entity} is out.", "who is it") == "The subject of the question is out."
    assert realise('"{question}" is open.', "Name it.") == '"Name it" is open.'
    long = realise('"{question}" is open.', "word " * 200)
    assert len(long) < 200 and long.endswith('word..." is open.')
    # what a slot takes is not looked at for slots
    assert fill("{entity} / {question}", "{question}", "{entity}") == "{question} / {entity}"


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


@pytest.mark.parametrize("paraphrase", DEMO_BANK)
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
