"""From overrides to a typed configuration.

`compose` serves programs and notebooks; the verb `run` is a Hydra application and calls `typed`
on what Hydra composed. Paths are relative to the working directory and absolute in the result.
"""

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from curriculum.config import UNKNOWN_ROOT, Config, load
from curriculum.errors import UserError
from curriculum.library import groups, shipped
from curriculum.naming import nearest
from curriculum.overrides import rewritten
from curriculum.plan.consistency import consistent
from curriculum.search_path import searching

VERSION_BASE = "1.3"


def compose(overrides: Sequence[str], config_dir: str | None = None) -> Config:
    """Compose as `run` does: `compose(["+plan=corrective", "profile=tiny", "seed=1"])`.

    `config_dir`: a folder of own plans and cards. Raises `UserError`.
    """
    return typed(*_composed(overrides, config_dir))


def other_plan(config: Config, name: str, run_dir: str | Path) -> Config:
    """Plan `name` under everything else that `config` (unscaled) says, to run in `run_dir`.

    For `plan.init_from=plan:NAME`: same model, data, scale, seed, engine and store. Inside a run
    the user's own plans are found.
    """
    cfg, choices = _composed([f"+plan={name}"], None)
    same = {key: value for key, value in asdict(config).items() if key != "plan"}
    with open_dict(cfg):
        for key, value in same.items():
            cfg[key] = value
        cfg.run = {**same["run"], "dir": str(run_dir), "fresh": False}
    return typed(cfg, choices)


def typed(cfg: DictConfig, choices: Mapping[str, Any]) -> Config:
    """Resolve what Hydra composed, make its paths absolute, check it. Raises `UserError`.

    `choices`: Hydra's record of group choices, in which two cards under one name show up.
    """
    _refuse_duplicates(choices)
    if OmegaConf.is_missing(cfg, "plan") or cfg.get("plan") is None:
        raise UserError(f"plan: none given; use +plan=NAME ({', '.join(groups()['plan'])})")
    try:
        return consistent(_with_absolute_sources(load(_plain(cfg))))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None


def explain(error: Exception) -> str:
    """One line of ours for an error of Hydra or OmegaConf."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        wanted = str(error.missing_cfg_file).removesuffix(".yaml")
        if wanted.startswith("hydra/launcher/") and "slurm" in wanted:
            return f"{wanted}: needs Hydra's submitit plugin; pip install 'curriculum[slurm]'"
        group, _, name = wanted.rpartition("/")
        if group and error.options:
            return f"{group}={name}: no such {group}; {nearest(name, error.options)}"
        return f"{wanted}: no such file in any configuration folder"
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.lstrip("+").partition("=")
        reason = str(error).splitlines()[0]
        if not value:
            return f"{error.override}: not an override ({reason}); give key=value"
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f"""{key}={value}: cannot be read ({reason}); quote the value: '{key}="{escaped}"'"""
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f" ({str(error.__cause__).splitlines()[0]})"
    return re.sub(r"'\+\+(?=[\w.]+=)", "'", text)


def _composed(
    overrides: Sequence[str], config_dir: str | None
) -> tuple[DictConfig, Mapping[str, Any]]:
    conf, _ = shipped()
    try:
        with (
            searching(config_dir),
            _outer_application_aside(),
            initialize_config_dir(version_base=VERSION_BASE, config_dir=str(conf)),
        ):
            cfg = hydra_compose(
                "config", rewritten(overrides, groups(config_dir)), return_hydra_config=True
            )
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error)) from None
    choices = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices


@contextmanager
def _outer_application_aside() -> Iterator[None]:
    """Hydra holds one application a process; within a job it is the one that runs the job."""
    holder = GlobalHydra.instance()
    outer = holder.hydra
    holder.clear()
    try:
        yield
    finally:
        holder.hydra = outer


def _refuse_duplicates(choices: Mapping[str, Any]) -> None:
    """Two cards under one phase name would be merged key by key without a word."""
    seen: dict[str, str] = {}
    for choice, card in choices.items():
        group, _, package = choice.partition("@")
        if not package.startswith("plan.phases.") or card is None:
            continue
        if package in seen:
            raise UserError(
                f"{package}: two cards under one name ({seen[package]} and {group}/{card}); "
                "rename one"
            )
        seen[package] = f"{group}/{card}"


def _plain(cfg: DictConfig) -> dict[str, Any]:
    """Plain values, interpolations resolved, paths absolute.

    `data.root` stands in patterns, where its own wildcards have to be escaped.
    """
    for key in ("run.dir", "store.dir", "cache.dir", "data.root", "model.path", "model.tokenizer"):
        _make_absolute(cfg, key)
    _make_absolute(cfg, "plan.init_from")
    if str(OmegaConf.select(cfg, "model.chat_template")).endswith(".jinja"):
        _make_absolute(cfg, "model.chat_template")
    root = OmegaConf.select(cfg, "data.root")
    in_patterns = UNKNOWN_ROOT if root is None else glob.escape(str(root))
    OmegaConf.update(cfg, "data.root", in_patterns, force_add=True)
    values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    values["data"]["root"] = root
    return values


def _make_absolute(cfg: DictConfig, key: str) -> None:
    """Resolve one path against the working directory, in place; null and names stay."""
    value = OmegaConf.select(cfg, key)
    if isinstance(value, str) and value != "scratch" and not value.startswith("plan:"):
        OmegaConf.update(cfg, key, os.path.abspath(os.path.expanduser(value)), force_add=True)


def _with_absolute_sources(config: Config) -> Config:
    """Patterns relative to the working directory, so that a saved configuration means the same."""
    for settings in (config.choice_eval, *(p.choice_eval for p in config.plan.phases.values())):
        if settings is not None:
            settings.sets = {name: _absolute(place) for name, place in settings.sets.items()}
    for phase in config.plan.phases.values():
        data = phase.data
        data.heldout = [_absolute(pattern) for pattern in data.heldout]
        data.sources = [
            _absolute(one) if isinstance(one, str) else replace(one, path=_absolute(one.path))
            for one in data.sources
        ]
    return config


def _absolute(pattern: str) -> str:
    pattern = os.path.expanduser(pattern)
    if pattern.startswith(UNKNOWN_ROOT):
        return pattern
    return os.path.join(glob.escape(os.getcwd()), pattern)
