"""Gathers what the budget and the checks need to know, and runs them.

`dry_run=true` looks at file names and at windows prepared earlier; `dry_run=data` also prepares
them. Nothing is trained, and nothing but the cache is written.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from curriculum.config import UNKNOWN_ROOT, Config, Phase
from curriculum.errors import RunError, UserError
from curriculum.files import locked
from curriculum.finding import ranked
from curriculum.plan.budget import WindowCount, plan_budget, settled, with_known_length
from curriculum.plan.checks import CheckContext, run_checks
from curriculum.plan.dry_run import DryRun
from curriculum.plan.ranks import plan_ranks
from curriculum.plan.scale import phase_steps, scaled

if TYPE_CHECKING:
    from curriculum.data.windows import WindowSet


def dry_run(config: Config, cached: Collection[str] = (), *, starting: bool = False) -> DryRun:
    """Budget and findings of a composed, unscaled configuration.

    `cached`: names of the phases whose result is in the store. `starting`: the run follows at
    once, so what is missing is an error.
    """
    prepare = config.dry_run == "data"
    if prepare and config.profile.corpus == "demo":
        generate_demo(config)
    ready = scaled(config)
    missing = missing_data(ready)
    present = [n for n, p in ready.plan.phases.items() if n not in missing and not p.is_merge]
    counts: dict[str, WindowCount | None] = {}
    windows = prepared(ready, present) if prepare else {}
    if prepare:
        counts = {n: window_count(ready.plan.phases[n], found) for n, found in windows.items()}
    elif Path(config.cache.dir).is_dir():  # without a cache nothing is prepared
        counts = {name: count_windows(ready, name) for name in present}
    if not prepare and not starting and _will_be_generated(config):
        missing = {}
    budget = plan_budget(ready, counts, cached)
    findings = run_checks(CheckContext(ready, budget, missing, starting))
    if windows:
        from curriculum.data.audit import audit

        found = audit(ready, windows, size(config))
        findings = ranked([*findings, *found], config.checks.ignore)
    ranks = plan_ranks(ready, budget, _density(counts))
    return DryRun(config, settled(ready, counts), budget, findings, ranks)


def _density(counts: Mapping[str, WindowCount | None]) -> dict[str, float]:
    """Share of the tokens of prepared phases that carries loss."""
    return {
        name: count.trained_tokens / count.forward_tokens
        for name, count in counts.items()
        if count is not None and count.forward_tokens and count.trained_tokens is not None
    }


def size(config: Config) -> float:
    """What `budget.scale` makes of the windows of a phase."""
    return config.budget.scale.steps * config.budget.scale.batch_size


def with_finished(looked: DryRun) -> DryRun:
    """The same with phases marked whose result is known to be in the store, hashing nothing."""
    config = looked.config
    if config.run.fresh or config.plan.init_from is None or not Path(config.store.dir).is_dir():
        return looked
    from curriculum.lineage import finished_phases, lineage

    try:
        found = lineage(looked.ready, config, hashed=False)
    except (UserError, RunError):  # nowhere to start from: `plan/init-missing` says so
        return looked
    if found is None:
        return looked
    return looked.with_cached(finished_phases(looked.ready, found.keys))


def generate_demo(config: Config) -> None:
    """Write the embedded corpus under `data.root`, and its tokenizer, unless they are there."""
    from curriculum.data.demo import generate, train_tokenizer

    root = Path(_root(config))
    with locked(root.parent / f".{root.name}.lock"):
        generate(root, config.seed)
        tokenizer = Path(config.model.tokenizer or "")
        if tokenizer.is_relative_to(root) and not tokenizer.is_dir():
            train_tokenizer(root, tokenizer)


def missing_data(config: Config) -> dict[str, list[str]]:
    """Phase -> patterns of its sources, held-out data and choice evals that match no file."""
    wanted = {n: [*p.data.patterns, *p.data.heldout] for n, p in config.plan.phases.items()}
    if all(p.startswith(UNKNOWN_ROOT) for patterns in wanted.values() for p in patterns):
        return wanted
    from curriculum.data.choice_data import data_files, packed_directories
    from curriculum.data.sources import expand

    phases = config.plan.phases
    missing = {name: data_files(phases[name], each)[1] for name, each in wanted.items()}
    for name in phases:
        sets = config.choice_eval_of(name)
        for place in sets.sets.values() if sets is not None else ():
            missing[name] += [] if packed_directories(place) else expand([place])[1]
    return {name: patterns for name, patterns in missing.items() if patterns}


def count_windows(config: Config, phase: str) -> WindowCount | None:
    """Windows of a phase's training data, None if none are prepared. `config` is scaled."""
    from curriculum.data.windows import find

    windows = find(config, phase, "train")
    return None if windows is None else window_count(config.plan.phases[phase], windows)


def prepared(config: Config, phases: Sequence[str]) -> dict[str, "WindowSet"]:
    """The training windows that some phases need; their held-out windows are prepared too.

    `config` is scaled.
    """
    from curriculum.data.tokenizer import load_tokenizer
    from curriculum.data.windows import Wanted, prepare_all

    settings = {n: p for n, p in config.plan.phases.items() if n in phases and not p.is_merge}
    if not settings:
        return {}
    train = [Wanted(name, "train", _needed(phase)) for name, phase in settings.items()]
    heldout = [Wanted(name, "heldout") for name, phase in settings.items() if phase.data.heldout]
    sets = prepare_all(config, [*train, *heldout], load_tokenizer(config.model))
    return dict(zip(settings, sets, strict=False))


def _needed(phase: Phase) -> int | None:
    steps = phase_steps(phase)
    return None if steps is None else steps * phase.batch_size


def window_count(phase: Phase, windows: "WindowSet") -> WindowCount:
    """Figures of prepared windows; totals are None where too few are prepared for the phase."""
    if windows.exhausted:
        phase = with_known_length(phase, len(windows))
    used = _needed(phase)
    repeats = windows.exhausted and phase.data.on_short == "repeat" and len(windows) > 0
    enough = used is not None and (used <= len(windows) or repeats)
    return WindowCount(
        available=len(windows),
        exact=windows.exhausted,
        forward_tokens=windows.forward_tokens(used) if enough else None,
        trained_tokens=windows.trained_tokens(used) if enough else None,
    )


def _will_be_generated(config: Config) -> bool:
    """True for the embedded corpus where no file of it exists yet."""
    return config.profile.corpus == "demo" and not Path(_root(config)).exists()


def _root(config: Config) -> str:
    if config.data.root is None:
        raise UserError("data.root: required by profile.corpus=demo, which is generated there")
    return config.data.root
