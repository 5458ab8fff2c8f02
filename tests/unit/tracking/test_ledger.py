"""The ledger against figures computed by hand."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.errors import RunError
from curriculum.tracking.ledger import Ledger, LedgerRow, share_metrics


def test_planned_shares_of_the_corrective_plan(planned: list[dict]) -> None:
    """The published shares: 7.450% of nominal tokens, 11.50% of forward tokens, 19.1% of steps."""
    replay = Ledger(planned).shares("role")["planned"]["replay"]
    assert replay["nominal"] == pytest.approx(32_972_800 / 442_572_800)
    assert replay["forward"] == pytest.approx(53_248_000 / 462_848_000)
    assert replay["steps"] == pytest.approx(1_250 / 6_550)
    assert [round(100 * replay[unit], 2) for unit in ("nominal", "forward", "steps")] == [
        7.45,
        11.50,
        19.08,
    ]
    objective = Ledger(planned).shares("objective")["planned"]
    assert round(100 * objective["retrieval"]["nominal"], 3) == 1.527
    assert round(100 * objective["causal"]["nominal"], 3) == 5.923
    assert replay["flops"] is None
    assert replay["wall"] is None


def test_realised_figures_and_shares() -> None:
    ledger = Ledger()
    ledger.begin("qa", "generative", "generative")
    for seconds in (1.0, 2.0):
        ledger.step(
            "qa",
            nominal_tokens=100,
            forward_tokens=80,
            trained_tokens=20,
            seconds=seconds,
            flops=6e3,
            recomputed_tokens=7,
        )
    ledger.begin("recall", "replay", "retrieval")
    ledger.step(
        "recall",
        nominal_tokens=50,
        forward_tokens=240,
        trained_tokens=2,
        seconds=1.0,
        flops=4e3,
        skipped=True,
    )
    ledger.probed("recall", 2.5)
    ledger.finish("qa")
    assert ledger.rows["qa"] == LedgerRow(
        "qa", "generative", "generative", "done", 2, 0, 200, 160, 14, 40, 12e3, 3.0, 0.0
    )
    assert ledger.rows["recall"] == LedgerRow(
        "recall", "replay", "retrieval", "running", 1, 1, 50, 240, 0, 2, 4e3, 1.0, 2.5
    )
    assert ledger.shares()["realised"] == {
        "qa": {"nominal": 0.8, "forward": 0.4, "flops": 0.75, "steps": 2 / 3, "wall": 0.75},
        "recall": {"nominal": 0.2, "forward": 0.6, "flops": 0.25, "steps": 1 / 3, "wall": 0.25},
    }
    metrics = share_metrics(ledger)
    assert metrics["share/realised/role/replay/forward"] == 0.6
    assert not any(name.startswith("share/planned") for name in metrics)


def test_unknown_flops_stay_unknown() -> None:
    ledger = Ledger()
    for phase, flops in (("a", (1.0, None, 1.0)), ("b", (1.0,))):
        ledger.begin(phase, "generative", "generative")
        for value in flops:
            ledger.step(
                phase,
                nominal_tokens=1,
                forward_tokens=1,
                trained_tokens=1,
                seconds=1.0,
                flops=value,
            )
    assert ledger.rows["a"].flops is None
    assert ledger.rows["b"].flops == 1.0
    shares = ledger.shares()["realised"]
    assert shares["a"]["flops"] is None
    assert shares["b"]["flops"] is None
    assert shares["b"]["steps"] == 0.25


def test_an_empty_ledger_has_no_shares_and_a_begun_phase_unknown_ones(planned: list[dict]) -> None:
    assert Ledger().shares() == {"planned": {}, "realised": {}}
    ledger = Ledger(planned)
    ledger.begin("rag_qa", "generative", "generative")
    assert ledger.shares()["realised"]["rag_qa"]["steps"] is None


def test_begin_continues_a_row_and_reuse_copies_one() -> None:
    ledger = Ledger()
    row = ledger.begin("qa", "generative", "generative")
    row.steps = 3
    assert ledger.begin("qa", "generative", "generative") is row
    other = Ledger()
    other.reuse(row)
    assert other.rows["qa"] == LedgerRow(**(asdict(row) | {"status": "reused"}))
    assert row.status == "running"


counts = st.integers(0, 10**15)
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(
        st.builds(
            LedgerRow,
            phase=st.text(min_size=1),
            role=st.sampled_from(["generative", "replay"]),
            objective=st.text(),
            status=st.sampled_from(["running", "done", "reused"]),
            steps=counts,
            forward_tokens=counts,
            flops=st.none() | finite,
            seconds=finite,
        ),
        unique_by=lambda row: row.phase,
    )
)
def test_values_survive_strict_json(rows: list[LedgerRow]) -> None:
    ledger = Ledger([{"name": "x", "flops": None}], {row.phase: row for row in rows})
    text = json.dumps(ledger.to_dict(), allow_nan=False)
    again = Ledger.from_dict(json.loads(text))
    assert again == ledger
    assert list(again.rows) == list(ledger.rows)


def test_write_replaces_the_file_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger = Ledger()
    ledger.begin("qa", "generative", "generative").seconds = 0.1 + 0.2
    ledger.write(path)
    assert Ledger.read(path) == ledger
    before = path.read_bytes()
    ledger.rows["qa"].seconds = math.nan
    with pytest.raises(ValueError, match="JSON"):
        ledger.write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text", ["{", '{"schema": 99}', '{"schema": 1}', '{"schema": 1, "planned": [], "rows": [{}]}']
)
def test_damaged_ledgers_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"^[^\n]*new run\.dir$"):
        Ledger.read(path)
