"""What each phase of a plan descends from: its key, and the initial weights of the first.

`plan.init_from` says where a plan starts: `scratch`, `plan:NAME` (the end of another plan, which
is trained first if the store does not hold it), a checkpoint, or a Hugging Face directory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from curriculum import store
from curriculum.compose import other_plan
from curriculum.config import Config
from curriculum.data.choice_data import data_files
from curriculum.data.sources import digest, known_digest
from curriculum.data.tokenizer import tokenizer_files
from curriculum.errors import RunError, UserError
from curriculum.plan import keys
from curriculum.plan.graph import unfinished
from curriculum.plan.keys import Content, KeyRecord
from curriculum.plan.scale import scaled
from curriculum.plan.user_code import code_files

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
        if (reason := store.damage(path)) is not None:
            raise UserError(
                f"plan.init_from={start}: broken checkpoint: {reason}; name another one"
            )
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


@dataclass(frozen=True)
class Lineage:
    """Records of a plan's phases in order, by name, and of all that lies before them, by key.

    `base`: the plan that `plan.init_from` names, composed and unscaled; None if it names none.
    """

    phases: dict[str, KeyRecord]
    before: dict[str, KeyRecord]
    base: Config | None = None

    @property
    def keys(self) -> dict[str, str]:
        """Key of every phase, in order."""
        return {name: record.key for name, record in self.phases.items()}

    @property
    def origin_key(self) -> str:
        """Key of the weights that the plan starts from."""
        return next(reversed(self.before))

    def chain(self, name: str) -> dict[str, KeyRecord]:
        """A phase's record and those of all that it descends from, by key; its own comes last."""
        known = self.before | {record.key: record for record in self.phases.values()}
        found: dict[str, KeyRecord] = {}
        waiting = [self.phases[name].key]
        for key in waiting:
            if key in known and key not in found:
                found[key] = known[key]
                waiting += known[key].parents
        return dict(reversed(found.items()))


def lineage(ready: Config, unscaled: Config, hashed: bool = True) -> Lineage | None:
    """What every phase of a scaled plan descends from; its phases all have their `steps`.

    `unscaled` is the same configuration as composed. With `hashed=False` no file is read: None
    where a digest or a length is not known from before.
    """
    look: Digest = digest if hashed else known_digest
    cache = ready.cache.dir
    trained = {name: phase for name, phase in ready.plan.phases.items() if not phase.is_merge}
    if any(phase.steps is None for phase in trained.values()):
        return None
    below = base(unscaled) if origin(unscaled).kind == "plan" else None
    before = _before(unscaled, below, look, hashed)
    tokenizer = _content(tokenizer_files(ready.model) or [], look, cache)
    data = {
        name: _content(data_files(phase, phase.data.patterns)[0], look, cache)
        for name, phase in trained.items()
    }
    code = {
        name: _content(files, look, cache)
        for name, phase in trained.items()
        if (files := code_files(phase))
    }
    if before is None or tokenizer is None or None in [*data.values(), *code.values()]:
        return None
    template = ready.model.chat_template or ""
    tokenizer = Content(
        keys.digest([tokenizer.digest, template]),
        tokenizer.files | {"chat_template": keys.digest(template)},
    )
    origin_key = next(reversed(before))
    return Lineage(keys.phase_records(ready, origin_key, data, tokenizer, code), before, below)


def finished_phases(ready: Config, phase_keys: Mapping[str, str]) -> list[str]:
    """Phases that need not be run: stored, or leading to stored ones only."""
    directory = Path(ready.store.dir)
    stored = {name for name, key in phase_keys.items() if store.finished(directory, key)}
    waiting = unfinished(ready.plan, stored)
    return [name for name in phase_keys if name not in waiting]


def _before(
    config: Config, below: Config | None, look: Digest, hashed: bool
) -> dict[str, KeyRecord] | None:
    """Records by key of what the plan starts from; the last one is the weights it continues."""
    start = origin(config)
    if below is not None:
        found = lineage(scaled(below), below, hashed)
        return None if found is None else found.chain(next(reversed(found.phases)))
    told: dict[str, Any] = {"plan.init_from": config.plan.init_from}
    if start.kind == "scratch":
        architecture = _architecture(config, look)
        if architecture is None:
            return None
        parts = {"plan.init_from": "scratch", "seed": config.seed, "model.config": architecture}
    else:
        assert start.path is not None
        content = _content(_weight_files(start.path), look, config.cache.dir)
        if content is None:
            return None
        parts = {"plan.init_from": start.kind, "weights": content.digest}
        told |= {"weights": content.files}
    record = KeyRecord(config.plan.name, None, [], parts, told)
    return {record.key: record}


def _content(files: Sequence[Path], look: Digest, cache: str) -> Content | None:
    """Digest of all files, and of each."""
    whole = look(files, cache)
    if whole is None:
        return None
    return Content(whole, {str(file): str(look([file], cache)) for file in files})


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
    return files + sorted(directory.glob("2_Dense/*"))  # of an embedding head
