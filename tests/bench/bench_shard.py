"""A short replay phase over a large shard: how long until it can train, and what that reads.

    python tests/bench/bench_shard.py [--megabytes 1024] [--steps 150] [--dir DIR]

Writes a shard of retrieval records, prepares `steps` x 16 groups of it, then twice as many, and
prints one JSON object. Exits with 1 if the longer phase does not begin with the same windows.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from curriculum.compose import compose
from curriculum.data.windows import prepare

BATCH = 16


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=1024)
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--dir", type=Path, default=None)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        print(json.dumps(measure(Path(directory), given.megabytes, given.steps), indent=1))


def measure(root: Path, megabytes: int, steps: int) -> dict[str, float | int | bool]:
    shard = root / "train.jsonl"
    records = write_shard(shard, megabytes << 20)
    tokenizer = train_tokenizer(shard)
    tokenizer.save_pretrained(root / "tokenizer")
    config = compose(
        [
            "+plan=corrective",
            "profile=production",
            f"data.root={root}",
            f"model.tokenizer={root / 'tokenizer'}",
            f"plan.phases.retrieval_school.data.sources=[{shard}]",
            f"cache.dir={root / 'cache'}",
            "plan.init_from=scratch",
        ]
    )
    began = time.perf_counter()
    first = prepare(config, "retrieval_school", "train", tokenizer, steps * BATCH)
    ready = time.perf_counter() - began
    before = {f.name: f.read_bytes() for f in first.directory.glob("*.arrow")}
    began = time.perf_counter()
    second = prepare(config, "retrieval_school", "train", tokenizer, 2 * steps * BATCH)
    extended = time.perf_counter() - began
    same = all((second.directory / name).read_bytes() == data for name, data in before.items())
    read = [int(first[i].record_ids[0]) for i in range(steps * BATCH)]
    tenths = np.bincount(np.array(read) * 10 // records, minlength=10)
    used = first.forward_tokens(steps * BATCH)
    result = {
        "shard_bytes": shard.stat().st_size,
        "records": records,
        "groups": steps * BATCH,
        "ready_seconds": round(ready, 2),
        "tokenized_over_used": round(sum(c.tokens for c in first.manifest.chunks) / used, 3),
        "fewest_in_a_tenth_of_the_file": int(tenths.min()),
        "most_in_a_tenth_of_the_file": int(tenths.max()),
        "extension_seconds": round(extended, 2),
        "first_windows_byte_equal": same,
    }
    if not same:
        raise SystemExit(json.dumps(result))
    return result


def write_shard(path: Path, size: int) -> int:
    """Records of a query, a positive and two negatives of 60 to 250 words; how many."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))
             for _ in range(4000)]  # fmt: skip
    texts = [" ".join(rng.choices(words, k=rng.randint(60, 250))) for _ in range(2000)]
    records = written = 0
    with path.open("wb") as out:
        while written < size:
            one = [f"{rng.choice(words)} {records}-{n} {rng.choice(texts)}" for n in range(3)]
            row = {"query": f"{rng.choice(words)} {records}?", "positive": one[0],
                   "negatives": one[1:], "id": records}  # fmt: skip
            written += out.write(orjson.dumps(row) + b"\n")
            records += 1
    return records


def train_tokenizer(shard: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 8,000 tokens, trained on the first 2,000 lines."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<eos>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    with shard.open(encoding="utf-8") as lines:
        backend.train_from_iterator((next(lines) for _ in range(2000)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


if __name__ == "__main__":
    main()
