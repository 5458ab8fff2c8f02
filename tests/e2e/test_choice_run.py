"""A plan with a packed-choice phase, run as a user runs it, beside plain PyTorch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_plan
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from curriculum.data.packed_choice import Bin, write_packed

VOCABULARY = 14  # tokens of the small plan's tokenizer
BATCH = 2


def packed(directory: Path, split: str, count: int, seed: int, length: int = 14) -> list[Bin]:
    """Bins of two segments, two rows in the first and one in the second, 2 to 4 candidates."""
    rng = np.random.default_rng(seed)
    bins = []
    for _ in range(count):
        first = int(rng.integers(5, length - 4))
        sizes = rng.integers(2, 5, 3)
        targets = [rng.dirichlet(np.ones(size)) for size in sizes]
        bins.append(
            Bin(
                input_ids=rng.integers(2, VOCABULARY, length).astype(np.int32),
                seq_lens=np.array([first, length - first], np.int32),
                positions=np.array([1, 3, first], np.int32),
                choice_ids=np.concatenate(
                    [rng.choice(VOCABULARY, size, replace=False) for size in sizes]
                ).astype(np.int32),
                choice_counts=sizes.astype(np.int32),
                target_probs=np.concatenate(targets).astype(np.float32),
                weights=np.array([1.0, 0.0, rng.random() + 0.1], np.float32),
                mix_weights=np.zeros((3, 0), np.float32),
            )
        )
    write_packed(directory, bins, split=split, seq_len=16)
    return bins


def choice_phase(root: Path, **more: Any) -> dict[str, Any]:
    values = {"objective": "choice", "task": "choice", "role": "calibration", "batch_size": BATCH}
    data = {"sources": [str(root / "packed" / "train")], "heldout": [str(root / "packed" / "val")]}
    return {**values, "seq_len": 16, "steps": None, "data": data, **more}


def reference_loss(lm: PreTrainedModel, bins: list[Bin]) -> tuple[float, list[list[float]]]:
    """Cross entropy to the targets from whole-vocabulary logits of each segment alone; and the
    log-probability of every candidate."""
    total, weight, told = 0.0, 0.0, []
    for one in bins:
        starts, slot = np.cumsum([0, *one.seq_lens]), 0
        found = []
        for row, position in enumerate(one.positions.tolist()):
            segment = int(np.searchsorted(starts, position, side="right")) - 1
            ids = one.input_ids[starts[segment] : starts[segment + 1]].tolist()
            logits = lm(torch.tensor([ids]), use_cache=False).logits[0, position - starts[segment]]
            slots = slice(slot, slot + int(one.choice_counts[row]))
            slot = slots.stop
            log_q = logits[one.choice_ids[slots].tolist()].log_softmax(-1).tolist()
            targets = one.target_probs[slots].astype(np.float64)
            total -= float(one.weights[row]) * float(np.dot(targets, log_q))
            weight += float(one.weights[row])
            found += log_q
        told.append(found)
    return total / weight, told


@pytest.fixture
def root(tmp_path: Path) -> Path:
    packed(tmp_path / "packed" / "train", "train", 13, seed=1)
    packed(tmp_path / "packed" / "val", "val", 5, seed=2)
    phases = {"a": small_plan.phase(steps=2), "c": choice_phase(tmp_path)}
    small_plan.write(tmp_path, phases)
    return tmp_path


def plain_model(weights: dict[str, torch.Tensor]) -> PreTrainedModel:
    options = dict(small_plan.PROFILE["model"]["config"])
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    lm = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
    missing = lm.load_state_dict(
        {name.removeprefix("lm."): value.double() for name, value in weights.items()}, strict=False
    )
    assert missing.unexpected_keys == [] and missing.missing_keys in ([], ["lm_head.weight"])
    lm.tie_weights()
    return lm.eval()


def probe(root: Path, place: str) -> dict[str, float]:
    file = root / "runs" / "small" / "small" / "probes" / place / "c.choice.json"
    return json.loads(file.read_text())["values"]


def test_validation_and_training_begin_where_plain_pytorch_does(root: Path, capsys: Any) -> None:
    assert small_plan.run(root, "probes.at_phase_end=true") == 0
    told = capsys.readouterr().out
    assert "data/trailing-windows" in told
    assert "one pass over 13 bins is 6 steps x 2; the last 1 bins" in " ".join(told.split())
    lm = plain_model(small_plan.weights(small_plan.stored(root)["a"]))
    train = packed(root / "again" / "train", "train", 13, seed=1)
    val = packed(root / "again" / "val", "val", 5, seed=2)

    steps = [row for row in small_plan.rows(root) if row["phase"] == "c"]
    assert len(steps) == 13 // BATCH
    assert steps[0]["loss"] == pytest.approx(reference_loss(lm, train[:BATCH])[0], rel=1e-5)
    assert steps[0]["trained_tokens"] == 2 * BATCH  # the row of weight 0 is none
    assert steps[0]["forward_tokens"] == 14 * BATCH

    values = probe(root, "a_2")
    loss, log_q = reference_loss(lm, val)
    assert values["loss"] == pytest.approx(loss, rel=1e-5)
    rows = []
    for one, found in zip(val, log_q, strict=True):
        ends = np.cumsum(one.choice_counts)
        for row in (0, 2):
            part = slice(int(ends[row] - one.choice_counts[row]), int(ends[row]))
            rows.append((np.array(found[part]), one.target_probs[part].astype(np.float64)))
    assert values["rows"] == len(rows)
    hits = [float(np.argmax(q) == np.argmax(p)) for q, p in rows]
    assert values["accuracy"] == pytest.approx(np.mean(hits))
    likelihood = np.mean([np.dot(p, q) for q, p in rows])
    assert values["log_likelihood"] == pytest.approx(likelihood, rel=1e-5)
    brier = np.mean([np.square(np.exp(q) - p).sum() for q, p in rows])
    assert values["brier"] == pytest.approx(brier, rel=1e-5)
    entropy = np.mean([-np.dot(p, np.log(p)) for _, p in rows])
    assert values["kl"] == pytest.approx(-entropy - likelihood, rel=1e-4)
    trained = plain_model(small_plan.final(root))
    assert probe(root, "c_8")["loss"] == pytest.approx(reference_loss(trained, val)[0], rel=1e-5)


def test_a_run_broken_off_goes_on_bit_for_bit(
    root: Path, tmp_path_factory: Any, monkeypatch: Any
) -> None:
    assert small_plan.run(root) == 0
    again = tmp_path_factory.mktemp("again")
    packed(again / "packed" / "train", "train", 13, seed=1)
    packed(again / "packed" / "val", "val", 5, seed=2)
    small_plan.write(again, {"a": small_plan.phase(steps=2), "c": choice_phase(again)})
    # in the fourth step of the choice phase; the third is computed, but not saved
    small_plan.run_broken_off(again, monkeypatch, 6)
    assert small_plan.run(again) == 0
    assert small_plan.rows(again) == small_plan.rows(root)
    before, after = small_plan.final(root), small_plan.final(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


BROKEN = """
def loss(*, choice_logits, weights, fail=False, **given):
    if fail:
        raise ValueError("no such thing")
    return choice_logits[:, 0].sum() * float("nan"), weights.sum()
"""


def test_a_loss_of_ones_own_is_named_and_its_code_is_in_the_key(
    root: Path, capsys: Any, monkeypatch: Any
) -> None:
    (root / "my_losses.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(root))
    own = {"import_path": "my_losses.loss", "kwargs": {"fail": True}}
    plan = {"a": small_plan.phase(steps=2), "c": choice_phase(root, loss=own)}
    small_plan.write(root, plan)
    assert small_plan.run(root) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "loss.import_path=my_losses.loss: raised ValueError: no such thing (" in last
    assert "my_losses.py, line 4" in last

    plan["c"]["loss"]["kwargs"] = {}
    small_plan.write(root, plan)
    assert small_plan.run(root, "run.dir=second", "engine.max_nonfinite_steps=2") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "loss.import_path=my_losses.loss: returned loss_sum=nan for finite logits" in last

    plan["c"]["loss"] = {"import_path": "my_losses.absent"}
    small_plan.write(root, plan)
    assert small_plan.run(root, "run.dir=third") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "error: plan.phases.c: loss.import_path='my_losses.absent': cannot be imported"
    )


def records(file: Path, count: int, first: int = 0) -> None:
    words = small_plan.WORDS
    made = [
        {
            "prompt": " ".join(words[(n * 3 + i) % len(words)] for i in range(4)),
            "choices": [words[n % 5], words[5 + n % 4], words[9]],
            **({"answer": n % 3} if n % 2 else {"target_probs": [0.5, 0.25, 0.25]}),
        }
        for n in range(first, first + count)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in made))


def test_records_are_packed_once_and_their_order_is_seeded(tmp_path: Path, capsys: Any) -> None:
    data = {"sources": ["choice/train.jsonl"], "heldout": ["choice/val.jsonl"]}
    for name, count, first in (("train", 40, 0), ("val", 7, 100)):
        records(tmp_path / "choice" / f"{name}.jsonl", count, first)
    small_plan.write(tmp_path, {"c": choice_phase(tmp_path, data=data, role="foundation")})
    assert small_plan.run(tmp_path, "dry_run=true", "output=json") == 0
    (row,) = json.loads(capsys.readouterr().out)["phases"]
    assert row["steps"] is None and row["windows_available"] is None
    assert small_plan.run(tmp_path, "dry_run=data", "output=json") == 0
    (row,) = json.loads(capsys.readouterr().out)["phases"]
    # a prompt of 4 words and <eos>, and the answer: two records a bin of 16 tokens
    assert row["windows_available"] == 20 and row["windows_exact"]
    assert row["steps"] == 10 and row["forward_tokens"] == 40 * 6 and row["forward_exact"]
    assert small_plan.run(tmp_path, "dry_run=true", "output=json") == 0
    (again,) = json.loads(capsys.readouterr().out)["phases"]
    assert again == row
    assert small_plan.run(tmp_path) == 0
    assert len(small_plan.rows(tmp_path)) == 10
    sets = [p for p in (tmp_path / ".curriculum" / "cache" / "choice").iterdir() if p.is_dir()]
    assert len(sets) == 3  # training bins, held-out bins, pointers
