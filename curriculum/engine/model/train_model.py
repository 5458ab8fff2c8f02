"""The module through whose forward every use of a weight goes."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from curriculum.engine import embedding_head
from curriculum.engine.batch import Batch
from curriculum.engine.head import (
    Head,
    Reduce,
    Rows,
    Sums,
    Transform,
    choice_logits,
    embed_of,
    logits,
    pooled,
    states_of,
    transform_of,
    unit,
)
from curriculum.engine.model.blocks import decoder_layers
from curriculum.engine.model.rope import RopeLimit, rope_limit
from curriculum.engine.router import Router, router_loss, router_of, without_router_outputs


class Lengths:
    """Lengths of examples on their way through a model, as one thing.

    A compiled block would be compiled again for a list with other numbers.
    """

    def __init__(self, values: Sequence[int]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class TrainModel(torch.nn.Module):
    """Every use of a weight goes through `forward`, so that FSDP sees it.

    `isolates` says whether the model takes per-example attention; if not, each example becomes a
    right-padded row of its own, which a causal model cannot tell from running it alone. `native` is
    the attention implementation for such rows and for generation.
    """

    def __init__(self, lm: PreTrainedModel, chunk_rows: int) -> None:
        super().__init__()
        self.lm = lm
        self.chunk_rows = chunk_rows
        self.transform: Transform = transform_of(lm.config)
        self.router: Router | None = router_of(lm.config)
        self.rope_limit: RopeLimit | None = rope_limit(lm.config)
        self.isolates = True
        self.native = "sdpa"

    def forward(self, batch: Batch, head: Head, reduce: Reduce) -> Sums:
        """The sums that `reduce` makes of a head's output; with gradient, router losses join them.

        rows:   `head.Rows`, hidden states of the positions that carry loss
        choices: `[R, K]` float32 logits of each row's candidate tokens, padded on the right
        embed:  `[S, hidden]` float32, L2-normalised embeddings of the row's texts; `head.Embed`
                instead of the name says of which layer, and how they are pooled. Where the model
                has an embedding head, its size stands for `hidden`
        logits: `[N, vocabulary]` float32 of the positions that carry loss
        """
        texts = embed_of(head)
        hidden, router_logits = self._hidden(batch, texts.layer if texts else -1)
        loss, weight = self._head(hidden, batch, head, reduce)
        if self.router is not None and torch.is_grad_enabled():
            loss = loss + router_loss(self.router, router_logits, batch, weight)
        return loss, weight

    def _head(self, hidden: torch.Tensor, batch: Batch, head: Head, reduce: Reduce) -> Sums:
        if (texts := embed_of(head)) is not None:
            states = pooled(hidden, batch.last, batch.seq_lens, texts.pooling)
            return reduce(unit(embedding_head.project(embedding_head.of(self.lm), states)))
        projection = self.lm.get_output_embeddings()
        rows = hidden.index_select(0, batch.rows)
        bias = getattr(projection, "bias", None)
        if head == "choices":
            weights = projection.weight, bias
            return reduce(
                choice_logits(rows, *weights, batch.choices, self.transform, self.chunk_rows)
            )
        if head == "logits":
            return reduce(logits(rows, projection.weight, bias, self.transform))
        return reduce(Rows(rows, projection.weight, bias, self.transform, self.chunk_rows))

    def _hidden(self, batch: Batch, layer: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A layer's states (-1: after the final norm) `[T, hidden]` of one row of examples, and
        `[T, experts]` router logits of each sparse layer where they are wanted: evaluation
        measures the objective alone."""
        if self.rope_limit is not None:
            self.rope_limit.check(batch.seq_lens)
        arguments: dict[str, Any] = {"use_cache": False}
        if self.router is not None:
            arguments["output_router_logits"] = torch.is_grad_enabled()
        if self.isolates:
            with states_of(decoder_layers(self.lm), layer) as states:
                found = self.lm.base_model(
                    input_ids=batch.input_ids,
                    position_ids=batch.position_ids,
                    seq_lens=Lengths(batch.seq_lens),
                    **arguments,
                )
            return states(found)[0], list(getattr(found, "router_logits", None) or ())
        lengths = torch.tensor(batch.seq_lens, device=batch.input_ids.device)
        real = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        padded = torch.zeros(real.shape, dtype=torch.long, device=lengths.device)
        padded[real] = batch.input_ids[0]
        with states_of(decoder_layers(self.lm), layer) as states:
            found = self.lm.base_model(input_ids=padded, **arguments)
        router_logits = getattr(found, "router_logits", None) or ()
        return states(found)[real], [part[real.flatten()] for part in router_logits]

    def generate(self, **arguments: Any) -> torch.Tensor:
        with without_router_outputs(self.lm.config):
            return self.lm.generate(**arguments)
