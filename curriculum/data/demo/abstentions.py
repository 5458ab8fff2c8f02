"""How the demo corpus says that its passages do not hold an answer.

`{question}` takes what was asked as a noun phrase ("the ruler of Tolvar"), `{entity}` the town.
"""

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
