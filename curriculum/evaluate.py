"""The verb `eval`: a plan's probes on a finished run, a checkpoint or a Hugging Face directory.

    eval RUN|DIR [+plan=NAME] [--config-dir DIR] [KEY=VALUE ...]

RUN is a run directory (`config.yaml` and `final/`): its own configuration says what is measured.
DIR is a Hugging Face directory, for which `+plan=NAME` says it. `output=json` prints one object.

Steps of RUN's choice evals whose predictions no scorer has scored yet are scored first, by what the
configuration names now. That is also possible for a run that is not finished.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.config import Config, Model, load
from curriculum.dry import generate_demo
from curriculum.errors import RunError, UserError
from curriculum.overrides import parted
from curriculum.probes.base import Evaluator, ProbeResult, model_values
from curriculum.store import committed

if TYPE_CHECKING:
    from curriculum.choice_evals.rescore import Rescored
    from curriculum.engine.distributed import World

USAGE = "usage: eval RUN|DIR [+plan=NAME] [--config-dir DIR] [KEY=VALUE ...]"


@dataclass(frozen=True)
class Target:
    """What is evaluated: the weights in `model_dir`, and the run they belong to, if any."""

    model_dir: Path
    run_dir: Path | None
    is_checkpoint: bool = False


def main(argv: Sequence[str]) -> int:
    """Evaluate and print; 0, or 1 if a probe or a scorer failed. Wrong paths and keys raise
    `UserError`."""
    path, overrides, config_dir = _arguments(argv)
    rescored = rescore_run(path, overrides)
    if rescored and not (path / "final" / "config.json").is_file():
        return _print_rescored(rescored, path, overrides)
    target = find_target(path)
    config = configuration(target, overrides, config_dir)

    from curriculum.data.tokenizer import load_tokenizer
    from curriculum.engine.distributed import world
    from curriculum.plan.scale import scaled
    from curriculum.probes import ProbeSuite

    config = scaled(config)
    if config.profile.corpus == "demo":
        generate_demo(config)
    tokenizer = load_tokenizer(config.model)
    check_vocabulary(config.model, len(tokenizer))
    suite = ProbeSuite.build(config, tokenizer)
    if all(probe.reason for probe in suite.probes):
        if rescored:
            return _print_rescored(rescored, path, overrides)
        raise RunError(
            f"plan {config.plan.name!r} has no held-out data that could be measured: "
            + "; ".join(suite.notes or ["none of its phases has a probe"])
        )
    with world(config.engine) as ranks:
        results = suite.run(_open(config, target, ranks))
        if ranks.is_main:
            show = as_json if config.output == "json" else table
            print(show(results, target.model_dir, config.plan.name, rescored))
    failed = any(result.status == "failed" for result in results)
    return int(failed or any(one.values is None for one in rescored))


def rescore_run(path: Path, overrides: Sequence[str]) -> "list[Rescored]":
    """Score what of a run's choice evals waits for it; nothing if `path` is no run, or no step
    waits. Only the first of several processes does."""
    from curriculum.choice_evals.rescore import has_choice_evals, rescore
    from curriculum.data.tokenizer import load_tokenizer
    from curriculum.plan.scale import scaled

    if not (path / "config.yaml").is_file() or not has_choice_evals(path):
        return []
    if os.environ.get("RANK", "0") != "0" or any(_key(word) == "plan" for word in overrides):
        return []
    config = read_run(path / "config.yaml", overrides)
    config = replace(config, run=replace(config.run, dir=str(path.absolute())))  # it may have moved
    return rescore(config, scaled(config), lambda: load_tokenizer(config.model))


def _print_rescored(rescored: "list[Rescored]", path: Path, overrides: Sequence[str]) -> int:
    """What was scored of a run whose model cannot be measured, perhaps because it is not finished
    yet."""
    config = read_run(path / "config.yaml", overrides)
    if config.output == "json":
        shown = {"run": str(path), "choice_evals": [one.to_json() for one in rescored]}
        print(json.dumps(shown, allow_nan=False, ensure_ascii=False))
    else:
        print("\n".join(_rescored_lines(rescored)))
    return int(any(one.values is None for one in rescored))


def _rescored_lines(rescored: "Sequence[Rescored]") -> list[str]:
    from curriculum.choice_evals.summary import described

    return [
        f"choice eval {one.name}, step {one.step}: "
        + (f"not scored: {one.reason}" if one.values is None else described(one.values))
        for one in rescored
    ]


def check_vocabulary(model: Model, tokens: int) -> None:
    """`UserError` if the tokenizer has ids that the model does not know."""
    values = model_values(model)
    known = values.get("vocab_size") or (values.get("text_config") or {}).get("vocab_size")
    if known is not None and tokens > known:
        raise UserError(
            f"model.tokenizer={model.tokenizer or model.path}: {tokens} tokens, but the model "
            f"knows {known} (vocab_size); give the tokenizer that the model was trained with"
        )


def _open(config: Config, target: Target, ranks: "World") -> Evaluator:
    """The evaluator of a Hugging Face directory, or of a checkpoint of the configured model."""
    from curriculum.engine import checkpoint, evaluate, model

    if not target.is_checkpoint:
        return evaluate.open_evaluator(config, target.model_dir, ranks)
    lm = model.build_lm(config.model, config.seed, empty=True)
    built = model.wrap(lm, config.engine, ranks)
    checkpoint.load(target.model_dir, built, None)
    return evaluate.Evaluator(built, ranks, config.probes.batch_tokens)


def _arguments(argv: Sequence[str]) -> tuple[Path, list[str], str | None]:
    """The path, the overrides, and the folder that `--config-dir` gives."""
    config_dir, overrides, paths = parted("curriculum eval", argv)
    if not paths:
        # A directory whose name holds `=`, as those of a sweep may.
        paths = [word for word in overrides if not word.startswith(("+", "~"))]
        paths = [word for word in paths if Path(word).is_dir()][:1]
        overrides = [word for word in overrides if word not in paths]
    if len(paths) != 1 or paths[0].startswith("-"):
        wrong = f"got {' '.join(paths)}" if paths else "none given"
        raise UserError(f"eval takes one RUN or DIR, {wrong}; {USAGE}")
    return Path(paths[0]), overrides, config_dir


def find_target(path: Path) -> Target:
    """The weights that `path` names, or a `UserError` that says what a valid path holds."""
    if not path.exists():
        raise UserError(f"{path}: no such directory; {USAGE}")
    if not path.is_dir():
        raise UserError(f"{path}: a file, but eval takes a directory; {USAGE}")
    if (path / "config.yaml").is_file():
        final = path / "final"
        if not (final / "config.json").is_file():
            raise UserError(
                f"{path}: a run without final/, so it is not finished; finish it by the command "
                f"that started it, or name one of its checkpoints ({path / 'checkpoints'}/step_N)"
            )
        return Target(final, path)
    if committed(path):
        run_dir = path.resolve().parent.parent
        return Target(path, run_dir if (run_dir / "config.yaml").is_file() else None, True)
    if (path / "config.json").is_file():
        run_dir = path.resolve().parent
        of_run = path.resolve().name == "final" and (run_dir / "config.yaml").is_file()
        return Target(path, run_dir if of_run else None)
    raise UserError(
        f"{path}: neither a run (config.yaml and final/), nor a checkpoint (COMMITTED), "
        "nor a Hugging Face directory (config.json)"
    )


def configuration(
    target: Target, overrides: Sequence[str], config_dir: str | None = None
) -> Config:
    """What to measure: the run's configuration or the composed one, and the model to load.

    With `+plan=NAME` a run's model is measured on another plan, everything else as in the run.
    """
    from curriculum.compose import compose, other_plan
    from curriculum.search_path import searching

    plans = [word.partition("=")[2] for word in overrides if _key(word) == "plan"]
    rest = [word for word in overrides if _key(word) != "plan"]
    with searching(config_dir):
        if target.run_dir is None:
            if not plans:
                raise UserError(f"{target.model_dir}: belongs to no run; name a plan by +plan=NAME")
            config = compose(list(overrides))
        else:
            config = read_run(target.run_dir / "config.yaml", rest)
            if plans:
                config = other_plan(config, plans[-1], config.run.dir)
    if target.is_checkpoint:
        return config
    return replace(config, model=_model_of(target.model_dir, config.model))


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def read_run(path: Path, overrides: Sequence[str] = ()) -> Config:
    """A run's `config.yaml` with overrides by dotted path."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        stored = OmegaConf.create(yaml.safe_load(path.read_text(encoding="utf-8")))
        given = OmegaConf.from_dotlist([word.lstrip("+") for word in overrides])
        values = OmegaConf.to_container(OmegaConf.merge(stored, given), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} with {' '.join(overrides) or 'no override'}: {reason}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: not the configuration of a run")
    return load(values)


def _model_of(directory: Path, model: Model) -> Model:
    """The model in a Hugging Face directory, with its own tokenizer where it holds one."""
    own = (directory / "tokenizer.json").is_file()
    tokenizer = None if own else model.tokenizer or model.path
    return replace(model, path=str(directory), config=None, tokenizer=tokenizer, parameters=None)


def as_json(
    results: Sequence[ProbeResult],
    model_dir: Path,
    plan: str,
    rescored: "Sequence[Rescored]" = (),
) -> str:
    """One JSON object: model, plan, the probes with their values, and choice evals if any were
    scored."""
    from curriculum.probes import to_json

    shown: dict[str, Any] = {"model": str(model_dir), "plan": plan}
    shown["probes"] = [to_json(result) for result in results]
    if rescored:
        shown["choice_evals"] = [one.to_json() for one in rescored]
    return json.dumps(shown, allow_nan=False, ensure_ascii=False)


def table(
    results: Sequence[ProbeResult],
    model_dir: Path,
    plan: str,
    rescored: "Sequence[Rescored]" = (),
) -> str:
    """One line a value: probe, metric, value; absent and failed probes with their reason; one line
    a step of a choice eval that was scored."""
    lines: list[tuple[str, str, str]] = [("probe", "metric", "value")]
    for result in results:
        if result.status != "ok":
            lines.append((result.name, result.status, result.reason or ""))
        lines += [(result.name, key, _number(value)) for key, value in result.values.items()]
        if result.status == "ok" and result.reason:
            lines.append((result.name, "note", result.reason))
    first = max(len(line[0]) for line in lines)
    second = max(len(line[1]) for line in lines)
    shown, before = [f"{model_dir} measured on plan {plan}"], ""
    for probe, metric, value in lines:
        shown.append(f"{probe if probe != before else '':<{first}}  {metric:<{second}}  {value}")
        before = probe
    return "\n".join(line.rstrip() for line in [*shown, *_rescored_lines(rescored)])


def _number(value: float) -> str:
    return f"{value:d}" if isinstance(value, int) else f"{value:.4g}"
