"""Records of the tasks that are no conversation to be continued: retrieval, text, choice."""

import math
import unicodedata
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from curriculum.data.records.bad import broken
from curriculum.data.records.chat import turns
from curriculum.data.records.messages import Conversation, Filled, Tools

_SUM_TOLERANCE = 1e-6

Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Name = Annotated[str, Field(strict=True)]


def _is_text(value: Any) -> str:
    return "(text)" if isinstance(value, str) else "(other)"


Answer = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[int, Field(strict=True), Tag("(other)")],
    Discriminator(_is_text),
]
Mix = Annotated[
    Annotated[Filled, Tag("(text)")]
    | Annotated[dict[str, Number], Field(min_length=1), Tag("(other)")],
    Discriminator(_is_text),
]


@dataclass
class RetrievalRecord:
    """A query with documents that answer it, and documents that look alike but do not."""

    query: Filled
    positive: Filled | None = None
    positives: Annotated[list[Filled], Field(min_length=1)] | None = None
    negatives: list[Filled] | None = None
    id: Name | int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.positive is None) == (self.positives is None):
            given = "neither" if self.positive is None else "both"
            raise broken("positive", given, "exactly one of positive and positives is needed")
        right = {normalised(text) for text in self.answers}
        for place, text in enumerate(self.negatives or []):
            if normalised(text) in right:
                raise broken(f"negatives[{place}]", text, "a negative must not equal a positive")
        return self

    @property
    def answers(self) -> list[str]:
        """All positives."""
        return [self.positive] if self.positive is not None else list(self.positives or [])


@dataclass
class Text:
    """Running text for the causal objective."""

    text: Filled


@dataclass
class Choice:
    """A prompt and the answers among which a model spreads its belief.

    `target_probs` says how much of it each choice should get, `answer` (an index or the text of a
    choice) gives all of it to one. `weight` is the record's weight in the loss, `mix` the name of a
    sub-mixture or the shares of several.
    """

    choices: Annotated[list[Filled], Field(min_length=2)]
    prompt: Filled | None = None
    messages: Conversation | None = None
    tools: Tools | None = None
    target_probs: list[Number] | None = None
    answer: Answer | None = None
    weight: Number = 1.0
    mix: Mix | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "neither" if self.prompt is None else "both"
            raise broken("prompt", given, "exactly one of prompt and messages is needed")
        if self.messages and self.messages[-1].role == "assistant":
            rule = "the last turn is what the choices answer, so it is no assistant turn"
            raise broken(f"messages[{len(self.messages) - 1}].role", "assistant", rule)
        for place, choice in enumerate(self.choices):
            if choice in self.choices[:place]:
                raise broken(f"choices[{place}]", choice, "choices must differ from one another")
        if (self.target_probs is None) == (self.answer is None):
            given = "neither" if self.answer is None else "both"
            raise broken("answer", given, "exactly one of answer and target_probs is needed")
        if self.target_probs is None:
            self._check_answer()
        else:
            self._check_targets(self.target_probs)
        return self

    def _check_answer(self) -> None:
        count = len(self.choices)
        if isinstance(self.answer, int) and not 0 <= self.answer < count:
            raise broken("answer", self.answer, f"an index from 0 to {count - 1} is needed")
        if isinstance(self.answer, str) and self.answer not in self.choices:
            raise broken("answer", self.answer, "must be one of the choices, letter by letter")

    def _check_targets(self, targets: list[float]) -> None:
        if len(targets) != len(self.choices):
            rule = f"one figure for each of the {len(self.choices)} choices is needed"
            raise broken("target_probs", targets, rule)
        total = math.fsum(targets)
        if abs(total - 1) > _SUM_TOLERANCE:
            rule = f"must sum to 1 within {_SUM_TOLERANCE}, but sum to {total:.9g}"
            raise broken("target_probs", targets, rule)

    @property
    def targets(self) -> list[float]:
        """One probability a choice."""
        if self.target_probs is not None:
            return self.target_probs
        right = self.answer if isinstance(self.answer, int) else self.choices.index(self.answer)
        return [float(place == right) for place in range(len(self.choices))]

    def prompt_messages(self) -> list[dict[str, Any]]:
        """The conversation that each choice would continue."""
        return turns("user", self.prompt or self.messages or [])


# lower case, and a space for whatever str.split() takes for one
_FOLDED = bytes(32 if chr(n).isspace() else ord(chr(n).lower()) for n in range(128)) + bytes(128)


def normalised(text: str) -> str:
    """Text for comparing documents: NFKC, case folded, white space collapsed.

    ASCII, which most texts are, takes a path some ten times faster.
    """
    if text.isascii():
        data = text.encode().translate(_FOLDED)
        while b"  " in data:
            data = data.replace(b"  ", b" ")
        return data.strip(b" ").decode()
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
