"""The shipped library: `conf/` with every group and plan, `phases/` with every card.

A user's folder has the same layout (`DIR/plan/NAME.yaml`, `DIR/phases/<group>/<card>.yaml`, and
any other group). `ls` lists both, `cp` copies a plan with its cards, or one card, into such a
folder.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curriculum.errors import UserError
from curriculum.naming import nearest


def shipped() -> tuple[Path, Path]:
    """The folders `conf/` and `phases/`: in the package of a wheel, else beside it."""
    package = Path(__file__).resolve().parent
    home = package if (package / "conf" / "config.yaml").is_file() else package.parent
    return home / "conf", home / "phases"


def folders(config_dir: str | Path | None = None) -> list[Path]:
    """Folders that hold groups, the first one wins: the user's, their cards, ours, our cards."""
    own = [] if config_dir is None else [Path(config_dir), Path(config_dir) / "phases"]
    return [*own, *shipped()]


def groups(config_dir: str | Path | None = None) -> dict[str, dict[str, Path]]:
    """Group -> name -> file, of groups one level deep, in alphabetical order."""
    found: dict[str, dict[str, Path]] = {}
    for folder in folders(config_dir):
        for file in sorted(folder.glob("*/*.yaml")):
            found.setdefault(file.parent.name, {}).setdefault(file.stem, file)
    return {group: dict(sorted(found[group].items())) for group in sorted(found)}


@dataclass(frozen=True)
class Entry:
    """One line of `ls`."""

    kind: str  # plan | card | group
    name: str
    note: str
    file: Path


def entries(config_dir: str | Path | None = None) -> list[Entry]:
    """Plans with their phases, cards with their size, options of the other groups."""
    plans, cards, others = [], [], []
    for group, files in groups(config_dir).items():
        for name, file in files.items():
            where = f"{group}/{name}"
            if group == "plan":
                phases = _cards_of(_read(file))
                plans.append(Entry("plan", where, f"{len(phases)} phases", file))
            elif file.parent.parent.name == "phases":
                cards.append(Entry("card", where, _card_note(_read(file)), file))
            else:
                others.append(Entry("group", where, "", file))
    return plans + cards + others


def ls(argv: Sequence[str]) -> int:
    """`ls [TEXT] [--config-dir DIR]`: plans, cards and group options whose name holds TEXT."""
    parser = argparse.ArgumentParser("curriculum ls", description=ls.__doc__)
    parser.add_argument("text", nargs="?", default="", help="show names that contain this")
    parser.add_argument("--config-dir", "-cd", help="a folder of your own plans and cards")
    arguments = parser.parse_args(argv)
    _check_folder(arguments.config_dir)
    found = [e for e in entries(arguments.config_dir) if arguments.text in e.name]
    if not found:
        known = groups(arguments.config_dir)
        raise UserError(
            f"ls {arguments.text}: nothing by that name; {nearest(arguments.text, known)}"
        )
    width = max(len(entry.name) for entry in found)
    titles = {"plan": "plans (+plan=NAME)", "card": "cards", "group": "groups (GROUP=NAME)"}
    for kind, title in titles.items():
        rows = [entry for entry in found if entry.kind == kind]
        if rows:
            print(title)
        for entry in rows:
            print(f"  {entry.name:{width}}  {entry.note}".rstrip())
    return 0


def cp(argv: Sequence[str]) -> int:
    """`cp plan/NAME DIR` or `cp GROUP/CARD DIR`: copy it, with a plan's cards, to edit it there."""
    parser = argparse.ArgumentParser("curriculum cp", description=cp.__doc__)
    parser.add_argument("what", help="plan/NAME or GROUP/CARD, as ls shows it")
    parser.add_argument("folder", help="where to; then run with --config-dir FOLDER")
    parser.add_argument("--config-dir", "-cd", help="a folder of your own plans and cards")
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")
    arguments = parser.parse_args(argv)
    _check_folder(arguments.config_dir)
    known = {e.name: e for e in entries(arguments.config_dir)}
    entry = known.get(arguments.what)
    if entry is None:
        raise UserError(f"cp {arguments.what}: no such thing; {nearest(arguments.what, known)}")
    wanted = [entry]
    if entry.kind == "plan":
        wanted += [known[card] for card in _cards_of(_read(entry.file)) if card in known]
    home = Path(arguments.folder)
    copies = {
        item.file: home / ("phases" if item.kind == "card" else "") / f"{item.name}.yaml"
        for item in dict.fromkeys(wanted)
    }
    if not arguments.force:
        _refuse_overwrite(copies)
    for source, target in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (target.exists() and target.samefile(source)):
            shutil.copyfile(source, target)
    print(*copies.values(), sep="\n")
    print(f"use it with: --config-dir {home}", file=sys.stderr)
    return 0


def _refuse_overwrite(copies: dict[Path, Path]) -> None:
    for source, target in copies.items():
        if target.exists() and target.read_bytes() != source.read_bytes():
            raise UserError(f"cp: {target} exists and differs; --force overwrites it")


def _check_folder(config_dir: str | None) -> None:
    if config_dir is not None and not Path(config_dir).is_dir():
        raise UserError(f"--config-dir {config_dir}: no such folder")


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise UserError(f"{file}: not valid YAML ({reason})") from None
    return values if isinstance(values, dict) else {}


def _cards_of(plan: dict[str, Any]) -> list[str]:
    """Cards in a plan's defaults list, as `group/card`."""
    found = []
    for item in plan.get("defaults", []):
        for key, value in item.items() if isinstance(item, dict) else ():
            group, _, package = str(key).partition("@")
            if package and isinstance(value, str):
                found.append(f"{group.strip('/').split()[-1]}/{value}")
    return found


def _card_note(card: dict[str, Any]) -> str:
    if card.get("objective") == "merge":
        return "merge: averages the phases that it continues"
    length = card.get("steps") or card.get("max_steps")
    size = f"{length} x {card.get('batch_size')} x {card.get('seq_len')}"
    return f"{card.get('objective')} / {card.get('task')}, {card.get('role')}, {size}"
