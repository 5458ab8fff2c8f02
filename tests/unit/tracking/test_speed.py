"""Rates, utilisation and time shares of a phase, worked out by hand."""

import pytest

from curriculum.tracking.ledger import Ledger, LedgerRow
from curriculum.tracking.speed import speed_metrics, time_shares, utilisation
from curriculum.tracking.tables import speed_table


def row(**changed: object) -> LedgerRow:
    values = {
        "steps": 4,
        "forward_tokens": 1000,
        "trained_tokens": 250,
        "flops": 6e9,
        "seconds": 2.0,
        "times": {"forward": 0.5, "backward": 1.0, "data": 0.1},
        "peak_flops": 6e9,
        "peak_memory": 3 * 2**20,
    }
    return LedgerRow("rag_qa", "generative", "generative", **{**values, **changed})  # type: ignore[arg-type]


def test_utilisation_is_the_share_of_what_the_machines_could_do() -> None:
    assert utilisation(row()) == pytest.approx(0.5)


@pytest.mark.parametrize("unknown", [{"flops": None}, {"peak_flops": None}, {"seconds": 0.0}])
def test_utilisation_is_unknown_where_a_part_is(unknown: dict[str, object]) -> None:
    assert utilisation(row(**unknown)) is None


def test_time_shares_add_up_to_the_wall_time() -> None:
    shares = time_shares(row())
    assert shares == pytest.approx(
        {"data": 0.05, "forward": 0.25, "backward": 0.5, "optimizer": 0.0, "other": 0.2}
    )


def test_metrics_name_what_is_known() -> None:
    assert speed_metrics(row(flops=None, times={})) == pytest.approx(
        {
            "speed/tokens_per_second": 500.0,
            "speed/trained_tokens_per_second": 125.0,
            "speed/peak_memory_bytes": 3 * 2**20,
            "time/data": 0.0,
            "time/forward": 0.0,
            "time/backward": 0.0,
            "time/optimizer": 0.0,
            "time/other": 1.0,
        }
    )


def test_times_of_steps_add_up_over_an_interruption() -> None:
    ledger = Ledger()
    ledger.begin("a", "generative", "generative")
    for forward in (0.25, 0.5):
        ledger.step(
            "a",
            nominal_tokens=1,
            forward_tokens=1,
            trained_tokens=1,
            seconds=1.0,
            times={"forward": forward},
        )
        ledger = Ledger.from_dict(ledger.to_dict())
    assert ledger.rows["a"].times == {"forward": 0.75}


def test_the_table_shows_a_line_a_phase_and_a_dash_for_what_is_unknown() -> None:
    table = speed_table(Ledger(rows={"rag_qa": row(), "new": LedgerRow("new", "replay", "causal")}))
    lines = [line.split() for line in table.splitlines()[2:]]
    assert lines[0] == ["rag_qa", "500", "125", "50.0", "3", "5.0", "25.0", "50.0", "0.0", "20.0"]
    assert lines[1] == ["new", *["-"] * 9]
