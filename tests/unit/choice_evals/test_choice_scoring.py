"""What is due, what a scorer may return, and what is on disk of a step."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from curriculum.choice_evals import storage
from curriculum.choice_evals.run import in_row_order, is_due
from curriculum.choice_evals.scorers import Scorer, ScorerFailed, facts, load_scorer, score
from curriculum.choice_evals.storage import Origin, Predictions
from curriculum.choice_evals.summary import summaries
from curriculum.config import ChoiceEval
from curriculum.data.packed_choice import BadSet, Bin, read_targets
from curriculum.errors import RunError, UserError

ORIGIN = Origin("quiz", 20, "p", "key/20", "content")
PREDICTIONS = Predictions(
    counts=np.array([2, 3]),
    choice_ids=np.array([7, 8, 7, 9, 5], np.int32),
    logits=np.array([0.0, 1.0, 0.5, -2.0, 3.0], np.float32),
)


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"interval": 4}, [4, 8]),
        ({"interval": 4, "at_end": True}, [4, 8, 10]),
        ({"interval": 5, "at_start": True}, [0, 5, 10]),
        ({"at_start": True}, [0]),
        ({"at_end": True}, [10]),
        ({"interval": 99}, []),
    ],
)
def test_due_steps_of_a_phase_of_ten(settings: dict[str, Any], due: list[int]) -> None:
    wanted = ChoiceEval(sets={"quiz": "there"}, **settings)
    assert [step for step in range(11) if is_due(wanted, step, 10)] == due


def test_after_a_merge_which_takes_no_step_start_and_end_are_one() -> None:
    for settings in ({"at_start": True}, {"at_end": True}):
        assert is_due(ChoiceEval(sets={"quiz": "there"}, **settings), 0, 0)


def bins() -> list[Bin]:
    """Rows 3, 0 | 2, 1 with candidates that tell their row; logits are ten times the candidate."""
    made = []
    for ids, counts in (([3, 0], [2, 1]), ([2, 1], [3, 2])):
        candidates = [10 * row + place for row, n in zip(ids, counts, strict=True)
                      for place in range(n)]  # fmt: skip
        made.append(
            Bin(
                input_ids=np.arange(4, dtype=np.int32),
                seq_lens=np.array([2, 2], np.int32),
                positions=np.array([1, 3], np.int32),
                choice_ids=np.array(candidates, np.int32),
                choice_counts=np.array(counts, np.int32),
                target_probs=np.zeros(0, np.float32),
                weights=np.zeros(0, np.float32),
                mix_weights=np.zeros((2, 0), np.float32),
                row_ids=np.array(ids, np.int64),
            )
        )
    return made


def test_predictions_stand_in_the_order_of_row_ids() -> None:
    some = bins()
    got = in_row_order(some, [one.choice_ids.astype(np.float32) * 10 for one in some])
    assert got.counts.tolist() == [1, 2, 3, 2]
    assert got.choice_ids.tolist() == [0, 10, 11, 20, 21, 22, 30, 31]
    assert got.logits.tolist() == [0, 100, 110, 200, 210, 220, 300, 310]


def test_a_step_on_disk(tmp_path: Path) -> None:
    directory = storage.step_directory(tmp_path, "quiz", 20)
    assert storage.state(directory, ORIGIN) == "missing"
    storage.write_predictions(directory, PREDICTIONS, ORIGIN)
    with pa.ipc.open_file(str(directory / "predictions.arrow")) as reader:
        table = reader.read_all()
    assert table.schema.field("row_id").type == pa.int64()
    assert table.to_pydict() == {
        "row_id": [0, 1],
        "choice_ids": [[7, 8], [7, 9, 5]],
        "choice_logits": [[0.0, 1.0], [0.5, -2.0, 3.0]],
    }
    assert storage.state(directory, ORIGIN) == "predicted"
    storage.write_metrics(directory, {"step": 20, "accuracy": 0.5})
    assert storage.state(directory, ORIGIN) == "scored"
    (directory / "metrics.json").write_text('{"step": 20, "accura')
    assert storage.state(directory, ORIGIN) == "predicted"


@pytest.mark.parametrize(
    "other",
    [
        Origin("quiz", 20, "p", "another key/20", "content"),
        Origin("quiz", 20, "p", "key/20", "another content"),
    ],
)
def test_results_of_other_weights_or_another_set_do_not_count(
    tmp_path: Path, other: Origin
) -> None:
    directory = storage.step_directory(tmp_path, "quiz", 20)
    storage.write_predictions(directory, PREDICTIONS, other)
    storage.write_metrics(directory, {"step": 20, "accuracy": 0.5})
    assert storage.state(directory, other) == "scored"
    assert storage.state(directory, ORIGIN) == "missing"
    storage.write_predictions(directory, PREDICTIONS, ORIGIN)  # takes the old marker away
    assert storage.state(directory, ORIGIN) == "predicted"


def test_damaged_predictions_are_no_predictions(tmp_path: Path) -> None:
    directory = storage.step_directory(tmp_path, "quiz", 20)
    storage.write_predictions(directory, PREDICTIONS, ORIGIN)
    path = directory / "predictions.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    assert storage.state(directory, ORIGIN) == "missing"


def test_steps_are_told_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        directory = storage.step_directory(tmp_path, "quiz", step)
        storage.write_predictions(directory, PREDICTIONS, ORIGIN)
        if step != 3:
            facts = {"step": step, "scorer": "a.b", "rows": 2, "seconds": 0.1}
            storage.write_metrics(directory, facts | {"accuracy": step / 100})
    (found,) = summaries(tmp_path)
    assert [(one.step, one.metrics) for one in found.steps] == [
        (20, {"accuracy": 0.2}),
        (100, {"accuracy": 1.0}),
    ]


def scorer(function: Any, **kwargs: Any) -> Scorer:
    return Scorer("mine.function", function, kwargs)


def test_numbers_of_any_kind_are_metrics() -> None:
    found = {"a": 1, "b": np.float32(0.5), "c": torch.tensor(2.0), "d": np.array(3)}
    assert scorer(lambda **_: found)() == {"a": 1.0, "b": 0.5, "c": 2.0, "d": 3.0}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "NoneType"),
        (0.5, "float 0.5, not metrics by name"),
        ({"a": math.nan}, "a=nan, not a finite number"),
        ({"a": np.float64("inf")}, "a=inf, not a finite number"),
        ({"a": "0.5"}, "a=str '0.5', not a number"),
        ({"a": {"b": 1.0}}, "a=dict"),
        ({"a": [1.0]}, "a=list"),
        ({"a": True}, "a=bool True, not a number"),
        ({"a": np.array([1.0])}, "a=ndarray"),
        ({3: 1.0}, "a metric named 3"),
        ({"rows": 1.0}, "'rows', which the run itself writes"),
    ],
)
def test_anything_else_is_told(found: Any, told: str) -> None:
    with pytest.raises(ScorerFailed) as failure:
        scorer(lambda **_: found)()
    assert str(failure.value).startswith("choice_eval.import_path=mine.function: returned ")
    assert told in str(failure.value)


def test_what_a_scorer_raises_is_one_line() -> None:
    def broken(**_: Any) -> None:
        raise OSError("no\nspace")

    with pytest.raises(ScorerFailed, match=r"mine\.function: raised OSError: no space$"):
        scorer(broken)()


@pytest.mark.parametrize(
    ("path", "kwargs", "told"),
    [
        ("score", {}, "no import path"),
        ("curriculum.choice_evals.scores", {}, "cannot be imported"),
        ("curriculum.choice_evals.scorers.FACTS", {}, "names a tuple"),
        ("curriculum.choice_evals.score", {"bin": 3}, "cannot be called with"),
        ("curriculum.choice_evals.score", {"step": 3}, "step is given by the run"),
    ],
)
def test_a_scorer_that_cannot_work_is_refused_at_the_start(
    path: str, kwargs: dict[str, Any], told: str
) -> None:
    settings = ChoiceEval(sets={"quiz": "there"}, import_path=path, kwargs=kwargs)
    with pytest.raises(UserError, match=told):
        load_scorer("plan.phases.p.choice_eval", settings)


def write_targets(path: Path, ids: Any, targets: Any) -> None:
    table = pa.table({"row_id": ids, "target_probs": pa.array(targets, pa.list_(pa.float32()))})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def test_targets_are_found_by_row_id(tmp_path: Path) -> None:
    path = tmp_path / "targets.arrow"
    write_targets(path, [1, 0], [[0.5, 0.0, 0.5], [0.0, 1.0]])
    assert read_targets(path, np.array([2, 3])).tolist() == [0.0, 1.0, 0.5, 0.0, 0.5]
    probs = pa.array([[0.25, 0.75]], pa.large_list(pa.float64()))
    wide = pa.table({"row_id": pa.array([0], pa.uint8()), "target_probs": probs})
    with pa.ipc.new_file(str(path), wide.schema) as writer:
        writer.write_table(wide)
    assert read_targets(path, np.array([2])).tolist() == [0.25, 0.75]


TARGETS: dict[str, tuple[Any, Any, str]] = {
    "a row that is missing": ([0, 2], [[0.5, 0.5], [1.0]], "every row id from 0 to 1 once"),
    "a row twice": ([0, 0], [[0.5, 0.5], [0.5, 0.5]], "every row id from 0 to 1 once"),
    "a row too many": ([0, 1, 2], [[0.5, 0.5], [1.0, 0, 0], [1.0]], "every row id from 0 to 1"),
    "too few": ([1, 0], [[0.5, 0.5], [0.5, 0.5]], "row_id=1: has 2 probabilities for 3 choices"),
    "per cent": ([1, 0], [[50, 0, 50], [0.5, 0.5]], "row_id=1: target_probs sum to 100; they sum"),
    "negative": ([0, 1], [[0.5, 0.5], [-0.5, 1, 0.5]], "row_id=1: target_probs=-0.5: must be fin"),
    "NaN": ([0, 1], [[0.5, math.nan], [0, 1, 0]], "row_id=0: target_probs=nan: must be finite"),
    "a null": ([0, 1], [[0.5, None], [0, 1, 0]], "must hold no null"),
    "a null row": ([0, 1], [None, [0, 1, 0]], "must hold no null"),
    "a null id": ([0, None], [[0.5, 0.5], [0, 1, 0]], "must hold no null"),
    "texts as ids": (["0", "1"], [[0.5, 0.5], [0, 1, 0]], "row_id has the type string; it must"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_targets_must_fit_their_rows(tmp_path: Path, kind: str) -> None:
    ids, targets, told = TARGETS[kind]
    write_targets(tmp_path / "targets.arrow", ids, targets)
    with pytest.raises(BadSet, match=told) as refused:
        read_targets(tmp_path / "targets.arrow", np.array([2, 3]))
    assert refused.value.file == tmp_path / "targets.arrow"


def test_a_file_that_holds_no_targets(tmp_path: Path) -> None:
    path = tmp_path / "targets.arrow"
    table = pa.table({"row_id": [0], "target_probs": [1.0]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(BadSet, match="target_probs has the type double; it must be list<float>"):
        read_targets(path, np.array([1]))
    for data in (b"", b"ARROW1", b"x" * 100):
        path.write_bytes(data)
        with pytest.raises(BadSet, match="holds no row_id and target_probs"):
            read_targets(path, np.array([1]))


def scored(tmp_path: Path, **kwargs: Any) -> dict[str, float]:
    storage.write_predictions(tmp_path, PREDICTIONS, ORIGIN)
    predictions = tmp_path / "predictions.arrow"
    return score(
        name="quiz", path=tmp_path, step=20, predictions=predictions, output_dir=tmp_path, **kwargs
    )


def test_the_shipped_scorer_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"targets\.arrow: no such file; the shipped scorer needs"):
        scored(tmp_path)
    write_targets(tmp_path / "mine.arrow", [0, 1], [[0.0, 1.0], [0.5, 0.0, 0.5]])
    mine = str(tmp_path / "mine.arrow")
    assert scored(tmp_path, targets=mine)["accuracy"] == 1.0
    with pytest.raises(RunError, match=r"kwargs\.bins=0: the calibration error needs at least 1"):
        scored(tmp_path, targets=mine, bins=0)


def test_a_mark_is_of_a_function_with_its_kwargs() -> None:
    one = Scorer("a.f", len, {"bins": 10, "names": ["x"]})
    values = facts(one, 20, 2, 0.5, None)
    assert one.scored(values)
    assert Scorer("a.f", len, {"names": ["x"], "bins": 10}).scored(values)
    assert not Scorer("a.f", len, {"bins": 11, "names": ["x"]}).scored(values)
    assert not Scorer("a.g", len, dict(one.kwargs)).scored(values)
    assert not one.scored(facts(None, 20, 2, 0.5, None))
    del values["scorer_kwargs"]  # of a mark that was made before they were noted
    assert one.scored(values)


def test_the_shipped_scorer_refuses_logits_that_are_no_numbers(tmp_path: Path) -> None:
    logits = np.array([0.0, 1.0, 0.5, np.nan, 3.0], np.float32)
    storage.write_predictions(
        tmp_path, Predictions(PREDICTIONS.counts, PREDICTIONS.choice_ids, logits), ORIGIN
    )
    write_targets(tmp_path / "targets.arrow", [0, 1], [[0.0, 1.0], [0.5, 0.0, 0.5]])
    with pytest.raises(RunError, match="row 1 has a logit that is not finite"):
        score(
            name="quiz",
            path=tmp_path,
            step=20,
            predictions=tmp_path / "predictions.arrow",
            output_dir=tmp_path,
        )
