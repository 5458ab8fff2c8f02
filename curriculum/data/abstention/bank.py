"""The paraphrases of an abstention: a general bank, and its even use.

A paraphrase must be true of any question whose answer the passages lack, whatever else they tell:
it may say that the answer is missing, never that the passages do not speak of `{entity}`. Slots
stand where any text is grammatical: `{question}` in straight quotes, `{entity}` never as a subject
that a verb agrees with.
"""

import random
from collections.abc import Sequence

BANK: tuple[str, ...] = (
    "I can't find the answer in these passages.",
    "Unfortunately, the text I was given leaves this open.",
    "That isn't covered here.",
    "None of the passages answers this.",
    "Not stated in the sources.",
    "Having read everything provided, I still cannot say.",
    "There is no answer to this in the material at hand.",
    "The excerpts stop short of what you ask.",
    "Without a further source, any reply would be a guess.",
    "Sorry, but the given text is silent on this point.",
    "What you want to know is missing from these documents.",
    "Nothing in front of me settles this question.",
    "This goes beyond what the passages report.",
    "Unknown, as far as these excerpts go.",
    "If an answer exists, it lies outside the text provided.",
    "Based on this material alone, the matter stays unresolved.",
    "My sources hold nothing that would decide this.",
    "No passage gives the detail you are after.",
    "The information needed for a reply is absent from the context.",
    "Let me be frank: the provided text doesn't tell.",
    "One would need another document to reply to this.",
    "I looked through each passage and came away without an answer.",
    "Because the text omits the relevant fact, I have to leave this unanswered.",
    "Can this be answered from the passages? No, it cannot.",
    "Any answer would call for details that were not supplied.",
    "As it stands, the evidence here is insufficient.",
    "The passages do not answer what is asked about {entity}.",
    "About {entity}, the requested detail is nowhere in this text.",
    "For a question on {entity}, the sources given here are not enough.",
    "Even if {entity} should come up, the fact in question is left out.",
    "I would like to help with {entity}, but the context lacks the necessary detail.",
    "Whatever holds for {entity} in this respect, these passages do not reveal it.",
    "To reply to this question about {entity}, I would need more than the excerpts offer.",
    "Regarding {entity}: no answer can be drawn from what was provided.",
    "A reader of these passages will not learn what you ask about {entity}.",
    "It is impossible to tell this of {entity} from the evidence supplied.",
    "When it comes to {entity}, I can only report that the text does not say.",
    "Your question on {entity} finds no reply among the documents.",
    'You ask "{question}", yet no passage replies to it.',
    'On the question "{question}" the documents remain silent.',
    'I searched the context for an answer to "{question}" and found none.',
    'The question "{question}" has to stay unanswered, since the sources do not cover it.',
    'To "{question}" I can give no grounded reply from these excerpts.',
    'Nowhere in the material is there a reply to "{question}" that I could rely on.',
    'When asked "{question}", I have to pass: the text does not say.',
    '"{question}" is not something that this text can answer.',
    'Here you will look in vain for an answer to "{question}" - it is not given.',
    'Reading the passages with "{question}" in mind, I found no statement that answers it.',
)


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
