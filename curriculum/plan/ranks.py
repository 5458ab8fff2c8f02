"""A plan on a stated number of ranks (`engine.world_size`): memory of one, and time of all.

A step waits for its busiest rank, which takes `ceil(batch_size / ranks)` windows: with fewer
windows than ranks more ranks save nothing. A rank does `budget.utilisation` of the
`budget.peak_flops` of its device; FLOPs are those of the budget, without recomputation, as in model
FLOP utilisation (Chowdhery et al., 2022, "PaLM", appendix B).
"""

import textwrap
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from curriculum.config import Config
from curriculum.plan.budget import Budget, PhaseBudget
from curriculum.plan.decoder import Unknown
from curriculum.plan.memory import Memory, Model, micro_batches, model_of, phase_memory
from curriculum.terminal import duration_text, grid, size_text

_UNEVEN = 1.5  # from which on a note says so
PARTS = ("parameters", "gradients", "optimizer", "gathered", "activations", "total", "peak")


@dataclass(frozen=True)
class PhaseOnRanks:
    """One phase. A merge takes no micro-batch, no time, and no memory to speak of: None."""

    name: str
    micro_batches: int | None
    micro_batch_tokens: int | None
    memory: Memory | None
    seconds: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "micro_batches": self.micro_batches,
            "micro_batch_tokens": self.micro_batch_tokens,
            "memory": _bytes(self.memory),
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Ranks:
    """`parameters`: of the whole model, adapters included; `trained` of them. `shards`: ranks that
    hold all weights together. `notes`: what is unknown, and why."""

    world_size: int
    shards: int
    parameters: int | None
    trained: int | None
    peak_flops: float | None
    utilisation: float | None
    dtype: str
    phases: list[PhaseOnRanks]
    notes: list[str]

    @property
    def fullest(self) -> PhaseOnRanks | None:
        """The phase that needs most memory; by weights and optimizer where no peak is known."""
        known = [phase for phase in self.phases if phase.memory is not None]
        return max(known, key=lambda phase: _height(phase.memory), default=None)

    def seconds(self, names: Collection[str] | None = None) -> float | None:
        """Time of all phases, or of some; None as soon as one is unknown."""
        each = [p.seconds for p in self.phases if names is None or p.name in names]
        return None if None in each else sum(each)

    def to_json(self, left: Collection[str]) -> dict[str, Any]:
        """Plain values. `left`: names of the phases that are still to run."""
        fullest = self.fullest
        return {
            "world_size": self.world_size,
            "shards": self.shards,
            "parameters": self.parameters,
            "trained_parameters": self.trained,
            "memory": None
            if fullest is None
            else {**_bytes(fullest.memory), "phase": fullest.name},
            "peak_flops": self.peak_flops,
            "utilisation": self.utilisation,
            "seconds": self.seconds(),
            "seconds_left": self.seconds(left),
            "phases": [phase.to_json() for phase in self.phases],
            "notes": self.notes,
        }

    def table(self, left: Collection[str], width: int) -> str:
        """The fullest phase in bytes, then every phase, then what holds for all."""
        notes = [line for note in self.notes for line in textwrap.wrap(note, width)]
        blocks = [self._head(), self._parts(width), self._rows(left, width), "\n".join(notes)]
        return "\n\n".join(block for block in blocks if block)

    def _head(self) -> str:
        copies = self.world_size // self.shards
        lines = [
            f"on {self.world_size} ranks (engine.world_size), weights in {self.shards} shards"
            + (f" x {copies} replicas" if copies > 1 else "")
        ]
        if self.peak_flops and self.utilisation:
            lines.append(
                f"time at {self.utilisation:.0%} (budget.utilisation) of {self.peak_flops:.3g} "
                "FLOP/s a device (budget.peak_flops)"
            )
        return "\n".join(lines)

    def _parts(self, width: int) -> str:
        fullest = self.fullest
        if fullest is None or fullest.memory is None or self.parameters is None:
            return ""
        found = _bytes(fullest.memory)
        told = {
            "parameters": f"float32, of {self.parameters:,}",
            "gradients": f"float32, of {self.trained:,}, and what sums them over ranks",
            "optimizer": "float32",
            "gathered": f"{self.dtype}: embedding, head and the blocks at work",
            "activations": f"{fullest.name}: micro-batches of {fullest.micro_batch_tokens:,} "
            "tokens (estimate)",
            "total": "all of these at their height",
            "peak": "the most at one time (estimate)",
        }
        rows = [[part, _count(found[part]), _size(found[part]), told[part]] for part in PARTS]
        return grid(("<memory per rank", "bytes", "", "<"), rows, width)

    def _rows(self, left: Collection[str], width: int) -> str:
        rows = []
        for number, phase in enumerate(self.phases, start=1):
            found = _bytes(phase.memory) or dict.fromkeys(PARTS)
            micro = "-"
            if phase.micro_batches is not None:
                micro = f"{phase.micro_batches} x {phase.micro_batch_tokens:,}"
            sizes = [_size(found[part]) for part in ("gradients", "activations", "peak")]
            rows.append([str(number), phase.name, micro, *sizes, duration_text(phase.seconds)])
        rows.append(["", "all", "", "", "", "", duration_text(self.seconds())])
        if len(left) < len(self.phases):
            rows.append(["", "to run", "", "", "", "", duration_text(self.seconds(left))])
        head = ("#", "<phase", "micro-batches", "gradients", "activations", "peak", "time")
        return grid(head, rows, width)


def plan_ranks(config: Config, budget: Budget, density: Mapping[str, float]) -> Ranks | None:
    """Memory and time of a scaled configuration; None where no number of ranks is stated.

    `density`: share of a phase's tokens that carry loss, of prepared phases; else all may.
    """
    world = config.engine.world_size
    if world is None:
        return None
    model, notes = None, []
    try:
        model = model_of(config)
    except Unknown as unknown:
        notes.append(f"memory per rank is unknown: {unknown}")
    if model is not None:
        notes += _notes(config, model, world // config.engine.replicate)
    speed = None
    if config.budget.peak_flops is None or config.budget.utilisation is None:
        notes.append("time is unknown: budget.peak_flops or budget.utilisation is not given")
    else:
        speed = config.budget.peak_flops * config.budget.utilisation
        if any(row.flops is None for row in budget.phases):
            notes.append("time is unknown where FLOPs are")
    phases = [_phase(config, row, model, world, density, speed) for row in budget.phases]
    return Ranks(
        world_size=world,
        shards=world // config.engine.replicate,
        parameters=None if model is None else sum(t.size for t in model.held),
        trained=None if model is None else model.trained.size,
        peak_flops=config.budget.peak_flops,
        utilisation=config.budget.utilisation,
        dtype=config.engine.dtype,
        phases=phases,
        notes=notes,
    )


def _phase(
    config: Config,
    row: PhaseBudget,
    model: Model | None,
    world: int,
    density: Mapping[str, float],
    speed: float | None,
) -> PhaseOnRanks:
    phase = config.plan.phases[row.name]
    if phase.is_merge:
        return PhaseOnRanks(row.name, None, None, None, 0.0)
    micro, tokens = micro_batches(config.engine, phase, world)
    busiest = ceil(phase.batch_size / world) / phase.batch_size
    known = row.flops is not None and speed is not None
    return PhaseOnRanks(
        name=row.name,
        micro_batches=micro,
        micro_batch_tokens=tokens,
        memory=None
        if model is None
        else phase_memory(config, phase, model, world, density.get(row.name, 1.0)),
        seconds=row.flops * busiest / speed if known else None,
    )


def _notes(config: Config, model: Model, shards: int) -> list[str]:
    notes = []
    whole = sum(tensor.size for tensor in model.held)
    uneven = shards * sum(tensor.share(shards) for tensor in model.held) / whole
    if uneven > _UNEVEN:
        rows = min(tensor.shape[0] for tensor in model.held if len(tensor.shape) > 1)
        notes.append(
            f"{shards} shards are uneven: the fullest rank holds {uneven:.1f} times an equal part, "
            f"because tensors are split by their first axis (of the shortest: {rows}); "
            "engine.replicate=N makes N times fewer shards"
        )
    if model.decoder is None:
        notes.append(
            f"activations are unknown: {model.why}; measure them with a run of a few steps "
            "(peak MiB in its report)"
        )
    elif any(layer.mamba is not None for layer in model.decoder.layers):
        notes.append(
            "state-space layers as they run without the package mamba-ssm; examples are padded to "
            "the longest of their micro-batch: more where lengths differ"
        )
    if config.engine.compile:
        notes.append("engine.compile=true keeps less: activations are an upper bound")
    return notes


def _bytes(memory: Memory | None) -> dict[str, int | None] | None:
    return None if memory is None else {**asdict(memory), "total": memory.total}


def _height(memory: Memory | None) -> int:
    assert memory is not None
    known = memory.parameters + memory.optimizer + memory.gathered + memory.gradients
    return known if memory.peak is None else memory.peak


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "?" if value is None else size_text(value)
