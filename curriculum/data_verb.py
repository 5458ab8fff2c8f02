"""The verb `data`: what is wrong with a plan's data, how it is trained on, and how to mend it.

data audit +plan=NAME [--config-dir DIR] [KEY=VALUE ...]
data show PHASE [N] +plan=NAME [--config-dir DIR] [KEY=VALUE ...]
data abstain IN OUT [KEY=VALUE ...]
data pack-choice IN... OUT [KEY=VALUE ...]
data unpack-choice DIR [N] [KEY=VALUE ...]
"""

import json
import logging
import sys
from collections.abc import Sequence

from curriculum.compose import compose
from curriculum.config import Config
from curriculum.dry import generate_demo, missing_data, prepared, size
from curriculum.errors import RunError, UserError
from curriculum.overrides import parted
from curriculum.plan.scale import scaled
from curriculum.verbs import call, listed

COMMANDS = {
    "audit": ("curriculum.data_verb:audit", "find what is wrong with the data of a plan"),
    "show": ("curriculum.data_verb:show", "print a training window, what is trained marked"),
    "abstain": (
        "curriculum.data.abstention.command:main",
        "vary and balance the abstentions of a qa set",
    ),
    "pack-choice": (
        "curriculum.data.packed_choice.command:pack",
        "pack choice records for a choice phase or a choice eval",
    ),
    "unpack-choice": (
        "curriculum.data.packed_choice.command:unpack",
        "print the bins of a packed choice set as text",
    ),
}
USAGE = f"python -m curriculum data COMMAND ...\n\n{listed(COMMANDS)}"


def main(argv: Sequence[str]) -> int:
    """Run one command; its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if argv else sys.stderr)
        return 0 if argv else UserError.exit_code
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return call(COMMANDS, argv, "data command")


def audit(argv: Sequence[str]) -> int:
    """Prepare and audit the data of a plan; 1 if a finding is an error."""
    from curriculum.data.audit import audit_plan

    words, composed = _composed(argv)
    config = scaled(composed)
    if words:
        raise UserError(f"{words[0]}: data audit takes overrides only: +plan=NAME [KEY=VALUE ...]")
    missing = missing_data(config)
    present = [name for name in config.plan.phases if name not in missing]
    if not present:
        raise RunError(
            f"plan {config.plan.name}: none of its phases has data; set data.root or the sources"
        )
    result = audit_plan(config, prepared(config, present), size(composed))
    for name in missing:
        print(f"{name}: not audited, no file matches {', '.join(missing[name])}", file=sys.stderr)
    if config.output == "json":
        print(json.dumps(result.to_json(), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(result.table())
    return 0 if result.ok else RunError.exit_code


def show(argv: Sequence[str]) -> int:
    """Print window N (from 0) of a phase as the model gets it."""
    from curriculum.data.choice_set import ChoiceSet
    from curriculum.data.packed_choice.text import bin_text
    from curriculum.data.show import window_text
    from curriculum.data.tokenizer import load_tokenizer

    words, composed = _composed(argv)
    config = scaled(composed)
    if not 1 <= len(words) <= 2 or (len(words) == 2 and not words[1].isdigit()):
        raise UserError("data show takes PHASE and N, a window from 0: data show rag_qa 0 +plan=P")
    name, number = words[0], int(words[1]) if len(words) == 2 else 0
    if name not in config.plan.phases:
        raise UserError(f"{name}: no such phase; phases: {', '.join(config.plan.phases)}")
    if config.plan.phases[name].is_merge:
        raise UserError(f"{name}: a merge averages phases and has no data; name one that trains")
    windows = prepared(config, [name])[name]
    if number >= len(windows):
        raise UserError(f"{number}: phase {name} has {len(windows)} prepared windows, from 0 on")
    tokenizer = load_tokenizer(config.model)
    if isinstance(windows, ChoiceSet):
        print(bin_text(windows.packed[number], number, tokenizer, windows.mix_components))
    else:
        print(window_text(config, name, windows, number, tokenizer))
    return 0


def _composed(argv: Sequence[str]) -> tuple[list[str], Config]:
    """What is no override, and the unscaled configuration; the demo's corpus is generated."""
    config_dir, overrides, words = parted("curriculum data", argv)
    composed = compose(overrides, config_dir)
    if composed.profile.corpus == "demo":
        generate_demo(composed)
    return words, composed
