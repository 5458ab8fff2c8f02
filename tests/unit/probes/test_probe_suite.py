"""Selection of held-out sets, of probes, failures, and files."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curriculum.config import load as load_config
from curriculum.errors import RunError
from curriculum.probes import ProbeResult, ProbeSuite, check_heldout, load, write
from curriculum.probes.base import Absent, heldout_sets, probe_name, read_records, spread

QA = {"question": "Who?", "answer": "Ann"}


def test_spread_is_even_distinct_and_sees_every_kind() -> None:
    assert spread(4, None) == [0, 1, 2, 3]
    assert spread(4, 9) == [0, 1, 2, 3]
    assert spread(0, 5) == []
    for count, limit in [(200, 20), (200, 33), (7, 3), (1000, 1)]:
        chosen = spread(count, limit)
        assert len(set(chosen)) == limit
        for part, index in enumerate(chosen):
            assert part * count // limit <= index < (part + 1) * count // limit
    # Every tenth record unanswerable: a stride of ten would see all of them or none.
    unanswerable = sum(index % 10 == 0 for index in spread(400, 40))
    assert 1 <= unanswerable <= 10


def test_equal_held_out_sets_are_measured_once(config, phase, write_jsonl) -> None:
    file = write_jsonl("qa.jsonl", [QA])
    phases = {
        "first": phase("generative", "qa", [file]),
        "again": phase("generative", "qa", [file]),
        "longer": phase("generative", "qa", [file], seq_len=64),
        "other_loss": phase("generative", "qa", [file], data={"loss_on": "all"}),
        "none": phase("generative", "qa", []),
        "none_either": phase("generative", "qa", []),
        "text": phase("causal", "text", [file]),
        "own": phase({"_target_": "my.Objective"}, "qa", [file], seq_len=8),
        "mixed": phase("merge", "qa", [file], seq_len=16),
    }
    found = heldout_sets(config(phases), ("generative",))
    assert [h.phase for h in found] == [
        "first", "longer", "other_loss", "none", "none_either", "own"
    ]  # fmt: skip
    assert [h.phase for h in heldout_sets(config(phases), ("causal",))] == ["text"]


def test_missing_held_out_data_is_told_before_the_start(
    config, phase, write_jsonl, tmp_path
) -> None:
    empty, blank = tmp_path / "empty.jsonl", tmp_path / "blank.jsonl"
    empty.write_text("")
    blank.write_text("\n  \n")
    absent = str(tmp_path / "absent.jsonl")
    phases = {
        "good": phase("generative", "qa", [write_jsonl("qa.jsonl", [QA])]),
        "unset": phase("generative", "qa", []),
        "missing": phase("retrieval", "retrieval", [absent]),
        "empty": phase("causal", "text", [str(empty)]),
        "blank": phase("causal", "text", [str(blank)]),
    }
    notes = check_heldout(config(phases))
    assert notes == [
        "phase unset will not be probed: data.heldout is empty",
        f"phase missing will not be probed: data.heldout matches no file: {absent}",
        f"phase empty will not be probed: data.heldout holds no record: {empty}",
        f"phase blank will not be probed: data.heldout holds no record: {blank}",
    ]


def test_probes_without_data_are_absent_results(config, phase, evaluator) -> None:
    phases = {
        "qa": phase("generative", "qa", []),
        "tier": phase("retrieval", "retrieval", []),
        "text": phase("causal", "text", []),
    }
    suite = ProbeSuite.build(config(phases), None)  # type: ignore[arg-type]
    results = suite.run(evaluator)
    assert {r.name: (r.status, r.values) for r in results} == {
        "qa.perplexity": ("absent", {}),
        "text.perplexity": ("absent", {}),
        "tier.retrieval": ("absent", {}),
        "qa.generation": ("absent", {}),
    }
    assert evaluator.calls == 0
    assert len(suite.notes) == 4
    assert "data.heldout is empty" in suite.notes[0]


def test_bad_held_out_records(config, phase, write_jsonl) -> None:
    file = write_jsonl("qa.jsonl", [QA, {"question": "Who?"}, QA])
    strict = {"qa": phase("generative", "qa", [file])}
    (held,) = heldout_sets(config(strict), ("generative",))
    with pytest.raises(RunError, match=rf"qa, held-out data: {file}:2: answer"):
        list(read_records(held))
    lenient = {"qa": phase("generative", "qa", [file], data={"on_bad_record": "skip"})}
    (held,) = heldout_sets(config(lenient), ("generative",))
    assert [place for place, _ in read_records(held)] == [f"{file}:1", f"{file}:3"]


class Known:
    """A probe that gives a set value, or raises a set error."""

    objective = "generative"
    reason = None

    def __init__(self, phase: str, kind: str, outcome: float | BaseException) -> None:
        self.name, self.phase, self.kind = probe_name(phase, kind), phase, kind
        self.outcome = outcome

    def run(self, evaluator: object) -> ProbeResult:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return ProbeResult(self.name, self.phase, {"x": self.outcome}, [], self.kind)


def test_a_failing_probe_is_told_and_the_others_go_on(evaluator, caplog) -> None:
    suite = ProbeSuite(
        (
            Known("a", "generation", ValueError("no such token\nsecond line")),
            Known("b", "generation", RunError("out of records")),
            Known("c", "generation", RuntimeError()),
            Known("d", "generation", 2.0),
        )
    )
    a, b, c, d = suite.run(evaluator)
    assert (a.status, b.status, c.status, d.status) == ("failed", "failed", "failed", "ok")
    assert (b.reason, c.reason) == ("out of records", "RuntimeError()")
    assert a.reason == r"ValueError('no such token\nsecond line')"
    assert len(caplog.records) == 3
    assert "probe a.generation failed" in caplog.messages[0]


def test_only_the_first_rank_tells(evaluator, caplog) -> None:
    evaluator.rank = 1
    ProbeSuite((Known("a", "generation", ValueError("no")),)).run(evaluator)
    assert not caplog.records


def test_interruptions_pass(evaluator) -> None:
    class Stop(BaseException):
        pass

    with pytest.raises(Stop):
        ProbeSuite((Known("a", "generation", Stop()),)).run(evaluator)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (None, ["a.retrieval", "b.retrieval", "a.generation"]),
        (["a"], ["a.retrieval", "a.generation"]),
        (["retrieval"], ["a.retrieval", "b.retrieval"]),
        (["b.retrieval", "a.generation"], ["b.retrieval", "a.generation"]),
        (["unheard_of"], []),
        ([], []),
    ],
)
def test_only(evaluator, only: list[str] | None, names: list[str]) -> None:
    suite = ProbeSuite(
        (Known("a", "retrieval", 1), Known("b", "retrieval", 1), Known("a", "generation", 1))
    )
    assert [r.name for r in suite.run(evaluator, only)] == names


def test_no_random_stream_is_touched(evaluator) -> None:
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    spread(100, 7)
    ProbeSuite((Known("a", "generation", 1.0),)).run(evaluator)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_written_results_come_back(tmp_path: Path) -> None:
    rows = [
        {"record": "f:1", "answerable": True, "tokens": 3, "rate": 0.5},
        {"record": "f:2", "answerable": None, "tokens": 4, "rate": 0.0},
    ]
    results = [
        ProbeResult("a.generation", "a", {"records": 2, "rate": 0.25}, rows, "generation"),
        Absent("b.generation", "b", "generation", "generative", "no data é").run(None),  # type: ignore[arg-type]
    ]
    folder = tmp_path / "probes" / "a_10"
    write(results, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "a.generation.arrow",
        "a.generation.json",
        "b.generation.json",
    ]
    back = load(folder)
    assert [r.values for r in back] == [{"records": 2, "rate": 0.25}, {}]
    assert [r.status for r in back] == ["ok", "absent"]
    assert back[1].reason == "no data é"
    with pa.ipc.open_file(folder / "a.generation.arrow") as reader:
        assert reader.read_all().to_pylist() == rows
    assert json.loads((folder / "a.generation.json").read_text())["values"]["rate"] == 0.25

    write([ProbeResult("a.generation", "a", {"records": 0})], folder)
    assert not (folder / "a.generation.arrow").exists()


def test_json_is_strict_and_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write([ProbeResult("a.x", "a", {"v": 1.0})], tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write([ProbeResult("a.x", "a", {"v": float("nan")})], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.x.json"]
    assert load(tmp_path)[0].values == {"v": 1.0}


def test_loading_nothing_and_something_else(tmp_path: Path) -> None:
    assert load(tmp_path / "absent") == []
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RunError, match=r"x\.json is not a probe result"):
        load(tmp_path)


def test_names_are_safe_as_files() -> None:
    assert probe_name("retrieval_school", "retrieval") == "retrieval_school.retrieval"
    assert probe_name("card~2", "generation") == "card~2.generation"
    assert "/" not in probe_name("../a b", "perplexity")


def test_config_fixture_is_valid(values, phase) -> None:
    assert load_config(values({"qa": phase("generative", "qa", [])})).plan.name == "small"
