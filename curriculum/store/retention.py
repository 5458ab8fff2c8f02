"""Which checkpoints of a run stay, as a rule over their step numbers. Needs no torch."""

from collections.abc import Collection, Sequence
from pathlib import Path

from curriculum import store
from curriculum.config import Checkpoint


def surplus(
    steps: Sequence[int], ends: Collection[int], newest: int, policy: Checkpoint
) -> list[int]:
    """The steps whose checkpoints may go once that of `newest` is committed.

    What stays: the last `keep_last` up to `newest`; the first at or after every multiple of
    `keep_every`; with `keep_phase_ends` those in `ends`, which are steps at which a phase ended.
    Steps after `newest` are those of a discarded attempt or of another plan, and not judged here.
    """
    past = sorted(step for step in steps if step <= newest)
    kept = set(past[-policy.keep_last :])
    if policy.keep_phase_ends:
        kept |= set(past) & set(ends)
    if policy.keep_every is not None:
        firsts: dict[int, int] = {}
        for step in past:
            firsts.setdefault(step // policy.keep_every, step)
        kept |= {step for multiple, step in firsts.items() if multiple > 0}
    return [step for step in past if step not in kept]


def rotate(
    checkpoints: Path, newest: int, policy: Checkpoint, pinned: Collection[Path] = ()
) -> None:
    """Delete what the policy does not keep, save `pinned` directories.

    Call it only after `newest` is committed.
    """
    found = {
        int(path.name.removeprefix("step_")): path for path in store.step_directories(checkpoints)
    }
    ends = [step for step, path in found.items() if policy.keep_phase_ends and _is_phase_end(path)]
    for step in surplus(list(found), ends, newest, policy):
        if found[step] not in pinned:
            store.discard(found[step])


def _is_phase_end(directory: Path) -> bool:
    return store.damage(directory) is None and bool(store.read_meta(directory).get("phase_end"))
