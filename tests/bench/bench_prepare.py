"""Preparing chats: this package beside `datasets.map` + TRL packing, in one run.

    python tests/bench/bench_prepare.py [--records 1000000] [--workers 2] [--sides ours,trl]

Needs `pip install trl datasets`. Both sides read the same JSONL of single-turn chats, apply the
same chat template, find the assistant tokens, pack best-fit into 2,048 tokens and write to disk,
each in a process of its own, with the same number of workers. Prints a table, and one JSON object
on the last line: seconds, tokens a second, peak memory of all processes of a side, fill.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import orjson

SEQ_LEN = 2048
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n{% else %}"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--dir", type=Path, default=None)
    options.add_argument("--sides", default="ours,trl")
    options.add_argument("--side", choices=["ours", "trl"], help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side:
        print(json.dumps({"ours": ours, "trl": trl}[given.side](given.dir, given.workers)))
        return
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        root = Path(directory)
        write_chats(root / "train.jsonl", given.records)
        train_tokenizer(root)
        rows = [measured(side, root, given.workers) for side in given.sides.split(",")]
    print(f"{'side':6} {'seconds':>9} {'tokens/s':>12} {'peak MiB':>9} {'fill':>7}")
    for row in rows:
        print(
            f"{row['side']:6} {row['seconds']:9.1f} {row['tokens_per_second']:12,.0f} "
            f"{row['peak_mib']:9,.0f} {row['fill']:7.4f}"
        )
    print(json.dumps({"records": given.records, "workers": given.workers, "sides": rows}))


def measured(side: str, root: Path, workers: int) -> dict[str, Any]:
    """One side in a process of its own; memory is what it and its children hold at once."""
    command = [sys.executable, __file__, "--side", side, "--dir", str(root)]
    command += ["--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, sum(map(private_mib, tree(process.pid))))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{side} failed with {process.returncode}")
    return {"side": side, **json.loads(lines[-1]), "peak_mib": round(peak, 1)}


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    except OSError:  # it has ended meanwhile
        return found
    return found


def private_mib(pid: int) -> float:
    """Anonymous memory of a process in MiB, pages shared with others counted by their share."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) / 1024
    except OSError:  # it has ended meanwhile
        return 0.0
    return 0.0


def ours(root: Path, workers: int) -> dict[str, float]:
    from transformers import PreTrainedTokenizerFast

    from curriculum.compose import compose
    from curriculum.data.windows import prepare

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(root / "tokenizer"))
    config = compose(
        [
            "+plan=corrective",
            "profile=production",
            f"model.tokenizer={root / 'tokenizer'}",
            f"data.root={root}",
            f"plan.phases.instruction.data.sources=[{root / 'train.jsonl'}]",
            "plan.phases.instruction.task=messages",
            f"plan.phases.instruction.seq_len={SEQ_LEN}",
            f"cache.dir={root / 'cache'}",
            f"data.workers={workers}",
        ]
    )
    began = time.perf_counter()
    windows = prepare(config, "instruction", "train", tokenizer, None)
    seconds = time.perf_counter() - began
    tokens = windows.forward_tokens(len(windows))
    return figures(seconds, tokens, len(windows), windows.trained_tokens(len(windows)))


def trl(root: Path, workers: int) -> dict[str, float]:
    import datasets
    from transformers import PreTrainedTokenizerFast
    from trl import pack_dataset

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(root / "tokenizer"))

    def tokenize(example: dict[str, Any]) -> dict[str, list[int]]:
        done = tokenizer.apply_chat_template(
            example["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": done["input_ids"], "assistant_masks": done["assistant_masks"]}

    began = time.perf_counter()
    data = datasets.load_dataset(
        "json", data_files=str(root / "train.jsonl"), cache_dir=str(root / "hf"), split="train"
    )
    data = data.shuffle(seed=0).map(tokenize, num_proc=workers, remove_columns=data.column_names)
    packed = pack_dataset(data, SEQ_LEN, "bfd", {"num_proc": workers})
    seconds = time.perf_counter() - began
    tokens = sum(map(len, packed["input_ids"]))
    return figures(seconds, tokens, len(packed), sum(map(sum, packed["assistant_masks"])))


def figures(seconds: float, tokens: int, windows: int, trained: int) -> dict[str, float]:
    return {
        "seconds": round(seconds, 2),
        "tokens": tokens,
        "trained_tokens": trained,
        "windows": windows,
        "tokens_per_second": round(tokens / seconds, 1),
        "fill": round(tokens / (windows * SEQ_LEN), 4),
    }


def write_chats(path: Path, records: int) -> None:
    """Chats whose answers have a log-normal number of words, about 90 in all on average."""
    rng = random.Random(0)
    letters, often = "etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1)
    words = ["".join(rng.choices(letters, often, k=rng.randint(2, 9))) for _ in range(5000)]
    with path.open("wb") as out:
        for number in range(records):
            ask = " ".join(rng.choices(words, k=rng.randint(10, 40)))
            answer = " ".join(rng.choices(words, k=min(600, int(rng.lognormvariate(3.9, 0.7)) + 1)))
            turns = [
                {"role": "user", "content": f"{ask} {number}?"},
                {"role": "assistant", "content": answer},
            ]
            out.write(orjson.dumps({"messages": turns}) + b"\n")


def train_tokenizer(root: Path) -> None:
    """A byte-level BPE of 16,000 tokens, trained on the first 5,000 lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000, show_progress=False,
        special_tokens=["<eos>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    with (root / "train.jsonl").open(encoding="utf-8") as lines:
        backend.train_from_iterator((next(lines) for _ in range(5000)), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(root / "tokenizer")


if __name__ == "__main__":
    main()
