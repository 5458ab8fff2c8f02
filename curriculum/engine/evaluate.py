"""Forward-only services for probes: losses, embeddings, greedy generation.

Every rank makes the same calls with the same arguments and gets the same results. Work is dealt
out in turns; every rank runs the same number of forwards, the missing ones on dummies.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from curriculum.config import Config
from curriculum.data.choice_set import choice_window
from curriculum.data.packed_choice import Bin
from curriculum.data.windows import Window
from curriculum.engine import embedding_head
from curriculum.engine.batch import collate, text_batch
from curriculum.engine.distributed import World
from curriculum.engine.head import Embed, token_cross_entropy
from curriculum.engine.model import (
    TrainModel,
    build_lm,
    gathered,
    no_grad_forwards,
    wrap,
)
from curriculum.faults.signals import StopRequest

T = TypeVar("T")


class Evaluator:
    """Evaluations of a model's present weights, in micro-batches of about `batch_tokens`.

    Once a signal has asked any rank to stop, every rank raises `Interrupted` at the same place.
    """

    def __init__(
        self,
        model: TrainModel,
        world: World,
        batch_tokens: int,
        stop: StopRequest | None = None,
    ) -> None:
        self.model = model
        self.rank = world.rank
        self.world = world.size
        self._ranks = world
        self._batch_tokens = batch_tokens
        self._stop = StopRequest() if stop is None else stop

    def losses(self, windows: Sequence[Window]) -> tuple[float, float]:
        """Sum of weighted negative log-likelihoods and sum of weights, over all windows."""
        totals = torch.zeros(2, dtype=torch.float64, device=self._ranks.device)
        chunks = chunk_by_tokens(windows, lambda w: len(w.input_ids), self._batch_tokens)
        with no_grad_forwards(self.model):
            for _, chunk in self._turns(chunks):
                batch = collate(chunk, self._ranks.device)
                loss, weight = self.model(batch, "rows", token_cross_entropy(batch))
                totals += torch.stack([loss.double(), weight.double()])
        loss_sum, weight_sum = self._ranks.sum(totals).tolist()
        return loss_sum, weight_sum

    def embed(
        self,
        texts: Sequence[Sequence[int]],
        layer: int = -1,
        pooling: Literal["last", "mean"] = "last",
    ) -> np.ndarray:
        """L2-normalised embeddings `[N, hidden]` float32 of token lists, in their order."""
        head = Embed(layer, pooling)
        chunks = chunk_by_tokens(texts, len, self._batch_tokens)
        mine: list[tuple[int, np.ndarray]] = []

        def keep(embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mine.append((-1, embeddings.cpu().numpy()))
            return embeddings.sum(), embeddings.new_zeros(())

        with no_grad_forwards(self.model):
            for number, chunk in self._turns(chunks):
                self.model(text_batch(chunk, self._ranks.device), head, keep)
                mine[-1] = (number, mine[-1][1])
        return np.concatenate(self._in_order(mine, len(chunks)))

    def choice_logits(self, bins: Sequence[Bin]) -> list[np.ndarray]:
        """The logits of each bin's candidates, float32, laid out as its `choice_ids`."""
        chunks = chunk_by_tokens(bins, lambda b: len(b.input_ids), self._batch_tokens)
        mine: list[tuple[int, list[np.ndarray]]] = []
        with no_grad_forwards(self.model):
            for number, chunk in self._turns(chunks):
                batch = collate([choice_window(one) for one in chunk], self._ranks.device)
                logits, _ = self.model(batch, "choices", lambda logits: (logits, logits.sum()))
                mine.append((number, _by_bin(logits.cpu().numpy(), chunk)))
        return [one for part in self._in_order(mine, len(chunks)) for one in part]

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop_ids: Collection[int]
    ) -> list[list[int]]:
        """Greedy continuations, new tokens only, ending with the stop token that ended them."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        cost: Callable[[int], int] = lambda i: len(prompts[i]) + max_new_tokens  # noqa: E731
        chunks = chunk_by_tokens(order, cost, self._batch_tokens)
        mine: list[tuple[int, list[list[int]]]] = []
        with no_grad_forwards(self.model), gathered(self.model):
            for number, indices in self._turns(chunks):
                chunk = [prompts[i] for i in indices]
                if chunk:  # it has no collective, so that a dummy would be for nothing
                    mine.append((number, self._continue(chunk, max_new_tokens, stop_ids)))
        outputs: list[list[int]] = [[] for _ in prompts]
        for indices, texts in zip(chunks, self._in_order(mine, len(chunks)), strict=True):
            for index, text in zip(indices, texts, strict=True):
                outputs[index] = text
        return outputs

    def _continue(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop_ids: Collection[int]
    ) -> list[list[int]]:
        """Padded on the left, so that every continuation starts at the last position."""
        stops = sorted(stop_ids)
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), stops[0], dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.as_tensor(np.asarray(prompt, np.int64))
            mask[row, width - len(prompt) :] = 1
        device = self._ranks.device
        generated = self.model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=stops,
            pad_token_id=stops[0],
            synced_gpus=False,
            stopping_criteria=[self._given_up],
        )
        return [_until_stop(row, stop_ids) for row in generated[:, width:].tolist()]

    def _given_up(self, ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        """Ends a generation early once a signal asked to stop. An exception would not do: FSDP's
        modules would stay in the middle of their forward, with their weights gathered."""
        return torch.full((len(ids),), self._stop.asked, device=ids.device)

    def _turns(self, chunks: Sequence[list[T]]) -> Iterator[tuple[int, list[T]]]:
        """This rank's chunks with their numbers; the last one may be empty (a dummy).

        Before each of them, and after the last, the ranks ask one another whether to stop.
        """
        rounds = -(-len(chunks) // self.world)
        for number in range(self.rank, rounds * self.world, self.world):
            self._ranks.stop_together(self._stop)
            yield number, chunks[number] if number < len(chunks) else []
        self._ranks.stop_together(self._stop)

    def _in_order(self, mine: list[tuple[int, Any]], count: int) -> list[Any]:
        """All ranks' numbered results in order, without those of dummies."""
        found = {n: result for share in self._ranks.gather(mine) for n, result in share}
        return [found[n] for n in range(count)]


def chunk_by_tokens(
    items: Sequence[T], length: Callable[[T], int], batch_tokens: int
) -> list[list[T]]:
    """Consecutive items, at most `batch_tokens` tokens a chunk, at least one item."""
    chunks: list[list[T]] = []
    room = 0
    for item in items:
        tokens = length(item)
        if not chunks or tokens > room:
            chunks.append([])
            room = batch_tokens
        chunks[-1].append(item)
        room -= tokens
    return chunks


def _by_bin(logits: np.ndarray, bins: Sequence[Bin]) -> list[np.ndarray]:
    """The padded rows `[R, K]` of some bins as one flat array a bin, without what pads."""
    counts = [one.choice_counts for one in bins]
    real = np.arange(logits.shape[1]) < np.concatenate([*counts, np.zeros(0, int)])[:, None]
    ends = np.cumsum([one.sum() for one in counts], dtype=np.int64)
    return np.split(logits[real], ends[:-1]) if bins else []


def _until_stop(tokens: Sequence[int], stop_ids: Collection[int]) -> list[int]:
    for position, token in enumerate(tokens):
        if token in stop_ids:
            return list(tokens[: position + 1])
    return list(tokens)


def open_evaluator(
    config: Config, directory: Path, world: World, stop: StopRequest | None = None
) -> Evaluator:
    """An evaluator of the weights in a Hugging Face directory."""
    # a directory holds merged weights, and says itself whether it has an embedding head
    model = replace(config.model, lora=None, embedding_dim=embedding_head.stored_size(directory))
    lm = build_lm(model, config.seed, directory)
    return Evaluator(wrap(lm, config.engine, world), world, config.probes.batch_tokens, stop)
