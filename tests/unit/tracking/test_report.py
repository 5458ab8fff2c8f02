"""Tables and the page: the figures, their units, the width, and nothing at all to show."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from curriculum.tracking.ledger import Ledger
from curriculum.tracking.report import end_tables, write_html
from curriculum.tracking.tables import quantity


@dataclass
class Result:
    name: str
    phase: str
    values: dict[str, float] = field(default_factory=dict)


BEFORE = [
    Result("perplexity", "rag_qa", {"perplexity": 138.1}),
    Result("retrieval", "retrieval_school", {"top1": 0.5, "worst_rank": 74.0}),
]
AFTER = [
    Result("perplexity", "rag_qa", {"perplexity": 8.49}),
    Result("retrieval", "retrieval_school", {"top1": 0.425, "worst_rank": 710.0}),
    Result("generation", "rag_qa", {"exact_match": 0.65}),
]


@pytest.fixture
def ledger(planned: list[dict]) -> Ledger:
    """A run of the first two phases that did what was planned, in 1 s and 3 s."""
    ledger = Ledger(planned)
    for phase, seconds in ((planned[0], 1.0), (planned[1], 3.0)):
        row = ledger.begin(phase["name"], phase["role"], phase["objective"])
        row.steps, row.nominal_tokens = phase["steps"], phase["nominal_tokens"]
        row.forward_tokens, row.trained_tokens = phase["forward_tokens"], 1000
        row.flops, row.seconds, row.status = 1e12, seconds, "done"
    return ledger


def line_of(text: str, start: str, last: bool = False) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith(start + " ")]
    return re.split(r"\s{2,}", lines[-1 if last else 0])


def test_the_tables_state_hand_computed_shares_and_differences(ledger: Ledger) -> None:
    text = end_tables(ledger, BEFORE, AFTER)
    # Realised: 1800 of 1950 steps, 117,964,800 of 119,808,000 nominal tokens, 1 of 4 seconds.
    assert line_of(text, "replay") == [
        "replay",
        "7.5 -> 1.5",
        "11.5 -> 5.9",
        "- -> 50.0",
        "19.1 -> 7.7",
        "75.0",
    ]
    assert line_of(text, "phase", last=True)[1:] == ["nominal", "forward", "flops", "steps", "wall"]
    assert line_of(text, "total")[1] == "6550 -> 1950"
    assert "463M -> 125M" in text
    probes = text[text.index("Probes") :]
    assert re.search(r"rag_qa +perplexity +perplexity +138\.1 +8\.49 +-129\.6", probes)
    assert re.search(r"retrieval_school +retrieval +worst_rank +74 +710 +\+636", probes)
    assert re.search(r"rag_qa +generation +exact_match +- +0\.65 +-$", probes, re.M)


def test_the_tables_keep_to_100_columns_with_long_names_and_large_figures(
    planned: list[dict],
) -> None:
    for phase in planned:
        phase["name"] += "_with_a_very_long_suffix_that_a_user_may_well_choose"
        phase["flops"] = 1.2345e21
        phase["forward_tokens"] *= 10**6
    ledger = Ledger(planned)
    for phase in planned:
        row = ledger.begin(phase["name"], phase["role"], "my_package.objectives.MyObjective")
        row.steps, row.forward_tokens, row.seconds = 123_456, 123_456_789_012, 1234567.8
    long = [Result("generation", planned[0]["name"], {"most_common_output_share": 1e-12})]
    text = end_tables(ledger, long, long)
    assert max(map(len, text.splitlines())) <= 100


def test_nothing_to_show(tmp_path: Path) -> None:
    text = end_tables(Ledger(), [], [])
    assert "no probe ran" in text
    path = tmp_path / "report.html"
    write_html(path, title="empty", ledger=Ledger(), metrics=[], before=[], after=[])
    assert "No step has been logged" in path.read_text()


def test_the_page_is_self_contained_and_draws_what_it_is_given(
    tmp_path: Path, ledger: Ledger
) -> None:
    metrics = [
        {"step": step, "phase": "rag_qa" if step <= 1000 else "a<b", "loss": loss}
        for step, loss in ((s, None if s == 5 else 1000.0 / s) for s in range(1, 2001))
    ]
    path = tmp_path / "report.html"
    write_html(path, title="plan <1>", ledger=ledger, metrics=metrics, before=BEFORE, after=AFTER)
    page = path.read_text()
    assert "http" not in page
    assert "<script" not in page
    assert "a<b" not in page
    assert "plan &lt;1&gt;" in page
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]
    lines = {
        line.find("title").text: line.get("points").split() for line in charts[0].iter("polyline")
    }
    assert list(lines) == ["rag_qa", "a<b"]
    assert sum(map(len, lines.values())) <= 600
    points = [tuple(map(float, p.split(","))) for points in lines.values() for p in points]
    assert points == sorted(points)  # to the right in steps, down on the page as the loss falls
    widths = {rect.find("title").text: float(rect.get("width")) for rect in charts[1].iter("rect")}
    # 750 units wide: 7.7% of steps realised by the second phase
    assert widths["retrieval_university: 7.7% of steps, realised"] == pytest.approx(
        750 * 150 / 1950, abs=0.1
    )
    assert "<td>-129.6</td>" in page


def test_quantities() -> None:
    values = (None, 0, 46, 6550, 12_345, 999_600, 32_972_800, 442_572_800, 1.5e18, 2e25)
    shown = ["-", "0", "46", "6550", "12.3k", "1M", "33M", "443M", "1.5E", "20Y"]
    assert [quantity(value) for value in values] == shown
