"""Choice: the softmax over a question's candidate answers, against a target distribution.

The loss is a function that the phase names by `loss.import_path` (`curriculum.losses` has the
contract), a user's own perhaps. What it does wrong is told with that path. It never stops a rank
alone: the others would wait for it for ever. So a failed call counts as a loss of zero until the
step's sums, which all ranks share, say that one has failed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from curriculum.config import Loss, Phase
from curriculum.engine.batch import Batch
from curriculum.engine.choices import Choices
from curriculum.engine.head import Head, Reduce, Sums
from curriculum.errors import UserError
from curriculum.objectives.base import Encode
from curriculum.user_function import user_function

DEFAULT = "curriculum.losses.cross_entropy"
KEYWORDS = (
    "choice_logits",
    "choice_counts",
    "target_probs",
    "weights",
    "mix_weights",
    "mix_components",
)

LossFunction = Callable[..., Sums]


class ChoiceObjective:
    """`loss.import_path` on the logits of each row's candidates. The engine reads `failure` after
    a step, and asks for `suspicion` after one that was dropped."""

    head: Head = "choices"

    def __init__(self, phase: Phase) -> None:
        if phase.loss.label_smoothing or phase.loss.z_loss:
            raise UserError(
                "objective=choice: label_smoothing and z_loss are for objectives of tokens; remove "
                "them from `loss` in its card"
            )
        self.import_path = phase.loss.import_path or DEFAULT
        self.function = loss_function(phase.loss)
        self.kwargs = phase.loss.kwargs
        self.failure: str | None = None
        self._calls: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Choices]] = []

    def prepare_step(self, micro_batches: Sequence[Batch], encode: Encode | None) -> list[Reduce]:
        self.failure, self._calls = None, []
        return [self._reduce(batch.choices) for batch in micro_batches]

    def suspicion(self) -> str | None:
        """What this rank's calls of the last step returned that no update can be made of, although
        the logits were finite. Reads values, so that a GPU is waited for, and calls once more."""
        for loss, weight, logits, choices in list(self._calls):
            real = _real(choices)
            if not torch.isfinite(logits[real]).all():
                continue
            values = {"loss_sum": loss.item(), "weight_sum": weight.item()}
            for name, value in values.items():
                if not math.isfinite(value):
                    return self._told(f"returned {name}={value} for finite logits")
            if values["weight_sum"] < 0:
                return self._told(f"returned weight_sum={values['weight_sum']}, which must be >= 0")
            leaf = logits.clone().requires_grad_()
            with torch.enable_grad():
                again = self._call(leaf, choices)
            if again is None:
                return self.failure
            (gradient,) = torch.autograd.grad(again[0], leaf)
            if not torch.isfinite(gradient[real]).all():
                return self._told("its gradient is not finite for finite logits")
        return None

    def _reduce(self, choices: Choices | None) -> Reduce:
        def reduce(logits: torch.Tensor) -> Sums:
            if choices is None or not len(choices.counts):
                return logits.sum(), logits.new_zeros(())
            found = None if self.failure else self._call(logits, choices)
            if found is None:
                return logits[:0].sum(), logits.new_zeros(())
            loss, weight = found
            self._calls.append((loss.detach(), weight, logits.detach(), choices))
            return loss, weight

        return reduce

    def _call(self, logits: torch.Tensor, choices: Choices) -> Sums | None:
        """The sums of one micro-batch; None if the function failed."""
        try:
            found = self.function(
                choice_logits=logits,
                choice_counts=choices.counts,
                target_probs=choices.target_probs,
                weights=choices.weights,
                mix_weights=choices.mix_weights,
                mix_components=choices.mix_components,
                **self.kwargs,
            )
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            text = " ".join(str(error).split())
            place = _place(error, self.function)
            self.failure = self._told(f"raised {type(error).__name__}: {text}{place}")
            return None
        if not isinstance(found, tuple | list) or len(found) != 2:
            self.failure = self._told(f"returned {_shape(found)}, not (loss_sum, weight_sum)")
            return None
        for name, value in zip(("loss_sum", "weight_sum"), found, strict=True):
            if not _is_scalar(value):
                self.failure = self._told(f"returned {_shape(value)} as {name}, not a scalar")
                return None
        loss, weight = (
            torch.as_tensor(value, device=logits.device, dtype=_float(value)) for value in found
        )
        if torch.is_grad_enabled() and not loss.requires_grad:
            if weight.item() or loss.item():
                why = "returned a loss_sum that does not depend on choice_logits (detached?)"
                self.failure = self._told(why)
                return None
            loss = loss + logits[:0].sum()
        return loss, weight.detach()

    def _told(self, what: str) -> str:
        return f"loss.import_path={self.import_path}: {what}"


def loss_function(loss: Loss) -> LossFunction:
    """The function that `loss` names, the default one if it names none.

    Raises `UserError` if it cannot be imported, or would not take the keywords and `loss.kwargs`.
    """
    return user_function(
        "loss",
        loss.import_path or DEFAULT,
        loss.kwargs,
        keywords=KEYWORDS,
        given_by="the phase itself",
        example=DEFAULT,
    )


def _real(choices: Choices) -> torch.Tensor:
    slots = torch.arange(choices.ids.shape[1], device=choices.ids.device)
    return slots < choices.counts[:, None]


def _is_scalar(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not value.is_complex() and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: Any) -> torch.dtype:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.dtype if floating else torch.float64


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)} ({value.dtype})"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _place(error: BaseException, function: LossFunction) -> str:
    """` (file.py, line 12)`: where in the file of the function the error went through last."""
    own = getattr(getattr(function, "__code__", None), "co_filename", None)
    trace, place = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == own:
            place = f" ({own}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
