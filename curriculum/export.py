"""The verb `export`: a run's model as a Hugging Face directory.

    export RUN|CHECKPOINT DIR

A finished run's `final/` is copied; of an unfinished one the newest checkpoint is exported.
Adapters are merged into the weights, and lie by themselves in `DIR/adapter`, unless the plan has a
phase of kind merge.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from curriculum import store
from curriculum.errors import UserError
from curriculum.evaluate import read_run

USAGE = "usage: export RUN|CHECKPOINT DIR"


def main(argv: Sequence[str]) -> int:
    """Write the directory and print its path."""
    if len(argv) != 2 or any(word.startswith("-") for word in argv):
        raise UserError(USAGE)
    source, target = Path(argv[0]), Path(argv[1])
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target}: exists and is not empty; name a new directory")
    if (source / "final" / "config.json").is_file():
        shutil.copytree(source / "final", target, dirs_exist_ok=True)
    else:
        _export_checkpoint(_checkpoint(source), target)
    print(target)
    return 0


def _checkpoint(source: Path) -> Path:
    """The checkpoint that is named, or the newest of a run."""
    if store.committed(source):
        return source
    found = store.step_directories(source / "checkpoints")
    if not found:
        raise UserError(f"{source}: neither a run with a checkpoint nor a checkpoint; {USAGE}")
    return found[-1]


def _export_checkpoint(checkpoint: Path, target: Path) -> None:
    from curriculum.data.tokenizer import load_tokenizer
    from curriculum.engine import checkpoint as tensors
    from curriculum.engine.distributed import world
    from curriculum.engine.export import export
    from curriculum.engine.model import build_lm, wrap
    from curriculum.plan.graph import merges

    here = checkpoint.absolute().parents[1]  # its run may have been moved
    run = here if (here / "config.yaml").is_file() else Path(store.read_meta(checkpoint)["run"])
    config = read_run(run / "config.yaml")
    with world(config.engine) as ranks:
        model = wrap(build_lm(config.model, config.seed, empty=True), config.engine, ranks)
        tensors.load(checkpoint, model, None)
        tokenizer, base = load_tokenizer(config.model), not merges(config.plan)
        export(model, tokenizer, target, ranks, adapter=base)
