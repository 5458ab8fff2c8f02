"""What each phase of a plan descends from: its key, and the initial weights of the first.

`plan.init_from` says where a plan starts: `scratch`, `plan:NAME` (the end of another plan, which
is trained first if the store does not hold it), a checkpoint, or a Hugging Face directory.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from curriculum import store
from curriculum.compose import other_plan
from curriculum.config import Config
from curriculum.data.sources import digest, expand, known_digest
from curriculum.data.tokenizer import tokenizer_files
from curriculum.errors import RunError, UserError
from curriculum.plan import keys
from curriculum.plan.graph import order
from curriculum.plan.scale import scaled

Digest = Callable[[Sequence[Path | str], str], str | None]


@dataclass(frozen=True)
class Origin:
    """Initial weights: none, a Hugging Face directory, a checkpoint, or another plan's end."""

    kind: Literal["scratch", "pretrained", "checkpoint", "plan"]
    path: Path | None = None
    plan: str | None = None


def origin(config: Config) -> Origin:
    """Where the plan starts. Raises `UserError` if `plan.init_from` is none of the four."""
    start = config.plan.init_from
    if start is None:
        raise UserError(
            "plan.init_from: not given; name a checkpoint or Hugging Face directory, plan:NAME, "
            "or scratch"
        )
    if start == "scratch":
        return Origin("scratch")
    if start.startswith("plan:"):
        return Origin("plan", plan=start.removeprefix("plan:"))
    path = Path(start)
    if store.committed(path):
        return Origin("checkpoint", path)
    if (path / "config.json").is_file():
        return Origin("pretrained", path)
    raise UserError(
        f"plan.init_from={start}: neither a checkpoint (no {store.MARKER}) nor a Hugging Face "
        "directory (no config.json)"
    )


def base(config: Config) -> Config:
    """The plan that `plan.init_from=plan:NAME` names, composed and unscaled."""
    name = origin(config).plan
    if name is None or name == config.plan.name:
        raise UserError(f"plan.init_from={config.plan.init_from}: a plan cannot start from itself")
    profile = config.profile.name
    return other_plan(config, name, Path(config.run.dir).parents[1] / name / profile)


def phase_keys(ready: Config, unscaled: Config, hashed: bool = True) -> dict[str, str] | None:
    """Key of every phase of a scaled plan whose phases all have their `steps`.

    `unscaled` is the same configuration as composed. With `hashed=False` no file is read: None
    where a digest or a length is not known from before.
    """
    look: Digest = digest if hashed else known_digest
    cache = ready.cache.dir
    if any(phase.steps is None for phase in ready.plan.phases.values()):
        return None
    start = _origin_key(unscaled, look, hashed)
    tokenizer = look(tokenizer_files(ready.model) or [], cache)
    data = {
        name: look(expand(phase.data.patterns)[0], cache)
        for name, phase in ready.plan.phases.items()
    }
    if start is None or tokenizer is None or None in data.values():
        return None
    template = ready.model.chat_template or ""
    return keys.phase_keys(ready, start, data, keys.digest([tokenizer, template]))


def base_key(config: Config, hashed: bool = True) -> str | None:
    """Key of the end of the plan that `plan.init_from` names; None if it names none."""
    if origin(config).kind != "plan":
        return None
    below = base(config)
    found = phase_keys(scaled(below), below, hashed)
    return None if found is None else list(found.values())[-1]


def finished_prefix(ready: Config, phase_keys: dict[str, str] | None) -> list[str]:
    """Phases from the start of the plan whose result lies in the store, in order."""
    names: list[str] = []
    if phase_keys is None:
        return names
    stored = [
        n
        for n, name in enumerate(order(ready.plan))
        if store.finished(Path(ready.store.dir), phase_keys[name])
    ]
    # an earlier phase may have been deleted: its successors are still good
    return order(ready.plan)[: stored[-1] + 1] if stored else names


def _origin_key(config: Config, look: Digest, hashed: bool) -> str | None:
    start = origin(config)
    if start.kind == "scratch":
        return keys.digest(["scratch", config.seed, _architecture(config, look)])
    if start.kind == "plan":
        return base_key(config, hashed)
    assert start.path is not None
    content = look(_weight_files(start.path), config.cache.dir)
    return None if content is None else keys.digest([start.kind, content])


def _architecture(config: Config, look: Digest) -> object:
    if config.model.path is None:
        return asdict(config.model)["config"]
    return look([Path(config.model.path) / "config.json"], config.cache.dir)


def _weight_files(directory: Path) -> list[Path]:
    """Everything in a directory that decides weights, in a fixed order."""
    if store.committed(directory):
        return sorted(p for p in (directory / "state").iterdir() if p.is_file())
    patterns = ("config.json", "*.safetensors", "*.bin", "*.index.json")
    files = sorted({p for pattern in patterns for p in directory.glob(pattern)})
    if len(files) < 2:
        raise RunError(f"plan.init_from={directory}: holds no weights (*.safetensors or *.bin)")
    return files
