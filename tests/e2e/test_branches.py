"""Plans that branch and merge: every branch starts from its parent's weights and moments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import ENVIRONMENT
from small_plan import (
    diamond,
    final,
    phase,
    rows,
    run,
    run_broken_off,
    stored,
    tensors,
    weights,
    write,
)


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the diamond ran to its end."""
    root = tmp_path_factory.mktemp("branched")
    write(root, diamond())
    assert run(root) == 0
    return root


def test_each_phase_is_trained_once_in_order(branched: Path) -> None:
    recorded = rows(branched)
    assert [row["phase"] for row in recorded] == list("aaabbbccccee")
    assert [row["step"] for row in recorded] == list(range(1, 13))
    ledger = json.loads((branched / "runs/small/small/ledger.json").read_text())["rows"]
    assert [(row["phase"], row["steps"], row["status"]) for row in ledger] == [
        ("a", 3, "done"),
        ("b", 3, "done"),
        ("c", 4, "done"),
        ("d", 0, "done"),
        ("e", 2, "done"),
    ]


def test_rates_count_along_the_line_of_parents(branched: Path) -> None:
    """Warm-up over 5 steps: both branches go on at the fourth; decay is the last phase's."""
    rates = {(row["phase"], row["phase_step"]): row["lr"] / 1e-2 for row in rows(branched)}
    assert [rates["a", n] for n in (1, 2, 3)] == pytest.approx([0.2, 0.4, 0.6])
    assert [rates["b", n] for n in (1, 2, 3)] == pytest.approx([0.4, 0.5, 0.5])  # lr_scale 0.5
    assert [rates["c", n] for n in (1, 2, 3, 4)] == pytest.approx([0.8, 1, 1, 1])
    assert rates["e", 1] == pytest.approx(1)
    assert rates["e", 2] < 1


def test_a_branch_equals_a_straight_plan(branched: Path, tmp_path: Path) -> None:
    """a -> c alone, in another directory: the same weights and moments, bit for bit."""
    phases = {"a": diamond()["a"], "c": diamond()["c"], "z": phase(steps=2)}
    write(tmp_path, phases)
    for name in ("a", "c"):
        (tmp_path / "data" / f"{name}.jsonl").write_bytes(
            (branched / "data" / f"{name}.jsonl").read_bytes()
        )
    assert run(tmp_path) == 0
    ours, straight = stored(branched)["c"], stored(tmp_path)["c"]
    assert ours.name == straight.name, "the key of a phase knows nothing of other branches"
    for prefix in ("model.", "optim."):
        one, two = tensors(ours, prefix), tensors(straight, prefix)
        assert one.keys() == two.keys() and len(one) > 10
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_merge_is_the_weighted_average(branched: Path) -> None:
    found = stored(branched)
    b, c, d = (weights(found[name]) for name in "bcd")
    assert any(not torch.equal(b[name], c[name]) for name in b)
    for name, merged in d.items():
        expected = ((3 * b[name].double() + c[name].double()) / 4).float()
        torch.testing.assert_close(merged, expected, rtol=1e-7, atol=0)
    assert tensors(found["d"], "optim.") == {}


def test_the_optimizer_starts_fresh_after_a_merge_and_is_carried_elsewhere(
    branched: Path,
) -> None:
    counts = {
        name: {float(t) for key, t in tensors(path, "optim.").items() if key.endswith(".step")}
        for name, path in stored(branched).items()
    }
    assert counts == {"a": {3.0}, "b": {6.0}, "c": {7.0}, "d": set(), "e": {2.0}}


@pytest.mark.parametrize("step", [2, 6, 7, 10, 11])
def test_broken_off_anywhere_it_ends_alike(
    branched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Within each phase, and at the first and last step of some."""
    write(tmp_path, diamond())
    run_broken_off(tmp_path, monkeypatch, step)
    assert run(tmp_path) == 0
    assert rows(tmp_path) == rows(branched)
    one, two = final(branched), final(tmp_path)
    assert all(torch.equal(one[name], two[name]) for name in one)


LORA = "model.lora={r: 2, alpha: 6, dropout: 0.0, targets: all-linear}"


def whole(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights in float64 with adapters added: alpha / r times B A, by hand."""
    plain = {}
    for name, tensor in found.items():
        if ".lora_" in name:
            continue
        path = name.removesuffix(".base_layer.weight")
        plain[name] = tensor.double()
        if path != name:
            a, b = (found[f"{path}.lora_{part}.default.weight"].double() for part in "AB")
            plain[name] += 6 / 2 * b @ a
    return plain


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_with_adapters_it_is_the_average_of_what_the_branches_compute(
    tmp_path: Path, ranks: int
) -> None:
    pytest.importorskip("peft")
    write(tmp_path, diamond())
    if ranks == 1:
        assert run(tmp_path, LORA) == 0
    else:
        torchrun(tmp_path, LORA)
    found = stored(tmp_path)
    b, c, d, e = (weights(found[name]) for name in "bcde")
    expected = {n: (3 * whole(b)[n] + whole(c)[n]) / 4 for n in whole(b)}
    assert any(".lora_B." in name and b[name].abs().max() > 0 for name in b)
    for name, tensor in whole(d).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-8)
    assert all(not d[name].any() for name in d if ".lora_B." in name)
    assert all(torch.equal(d[name], e[name]) for name in d if ".lora_" not in name)
    exported = final(tmp_path)
    for name, tensor in whole(e).items():
        plain = name.replace(".base_layer", "").removeprefix("lm.")
        torch.testing.assert_close(exported[plain].double(), tensor, rtol=1e-6, atol=1e-8)
    assert not (tmp_path / "runs/small/small/final/adapter").exists()


def test_two_processes_branch_and_merge(branched: Path, tmp_path: Path) -> None:
    """Sharded unevenly: the average is that of whole tensors, and training goes on from it."""
    write(tmp_path, diamond())
    torchrun(tmp_path)
    found = stored(tmp_path)
    b, c, d = (weights(found[name]) for name in "bcd")
    for name, merged in d.items():
        expected = ((3 * b[name].double() + c[name].double()) / 4).float()
        torch.testing.assert_close(merged, expected, rtol=1e-7, atol=0)
    for one, two in zip(rows(branched), rows(tmp_path), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4), one["step"]
        assert two["lr"] == one["lr"]


def torchrun(root: Path, *overrides: str) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "curriculum", "run", "+plan=small", "profile=small", "tracking=none"]
    result = subprocess.run(
        [sys.executable, *launch, *command, "--config-dir", "conf", *overrides],
        cwd=root,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-3000:]
