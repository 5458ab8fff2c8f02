"""Choice evals of a run: they change no number of training, and every step is scored once, whatever
scorers, kills and signals do."""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fault_plan import RUN, rows, weights
from faults import Server, Start, start, wait_until
from quiz_plan import TOTAL, command, eval_bins, lay_out

from curriculum.choice_evals.sets import EvalSet, open_sets
from curriculum.compose import compose
from curriculum.data.packed_choice import read_targets
from curriculum.data.tokenizer import load_tokenizer
from curriculum.plan.scale import scaled

SCORER = """
import json, time
from pathlib import Path
from curriculum.choice_evals import score

def recorded(*, step, **given):
    with open("calls.txt", "a") as file:
        file.write(f"{step}\\n")
    path = Path("behaviour.json")
    what = json.loads(path.read_text()).get(str(step)) if path.exists() else None
    if what == "raise":
        raise ValueError("no such\\nfile")
    if what == "exit":
        raise SystemExit(3)
    if what == "sleep":
        time.sleep(100)
    found = score(step=step, **given)
    return {
        "nan": found | {"ece": float("nan")},
        "text": found | {"ece": "low"},
        "nested": found | {"by_subject": {"history": 0.5}},
        "none": None,
    }.get(what, found)
"""
BAD = {1: "raise", 2: "nan", 4: "text", 5: "nested", 6: "none", 7: "exit"}
TOLD = {
    1: "raised ValueError: no such file",
    2: "returned ece=nan, not a finite number",
    4: "returned ece=str 'low', not a number",
    5: "returned by_subject=dict {'history': 0.5}, not a number",
    6: "returned NoneType None, not metrics by name (a dict of numbers)",
    7: "raised SystemExit: 3",
}


def evals(where: str = "sets/quiz", **more: Any) -> str:
    settings = {"interval": 1, "at_start": "true", "import_path": "my_scorer.recorded", **more}
    told = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return f"choice_eval={{sets: {{quiz: {where}}}, {told}}}"


def overrides(words: list[str]) -> list[str]:
    return [word for word in words if word not in ("run", "--config-dir", ".")]


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = lay_out(tmp_path_factory.mktemp("evals") / "laid_out")
    (root / "my_scorer.py").write_text(SCORER)
    return root


def copied(laid_out: Path, there: Path) -> Path:
    return Path(shutil.copytree(laid_out, there))


@pytest.fixture(scope="module")
def plain(server: Server, laid_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs without evals, by the number of ranks."""
    found = {}
    for ranks in (1, 2):
        found[ranks] = copied(laid_out, tmp_path_factory.mktemp("evals") / f"plain_{ranks}")
        whole = start(server, found[ranks], command(), ranks=ranks)
        assert whole.wait() == [0] * ranks, whole.text()
    return found


@pytest.fixture(scope="module")
def evaluated(server: Server, laid_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs with an eval at every step and a scorer that fails at some, and what they said."""
    found = {}
    for ranks in (1, 2):
        root = copied(laid_out, tmp_path_factory.mktemp("evals") / f"evaluated_{ranks}")
        (root / "behaviour.json").write_text(json.dumps(BAD))
        whole = start(server, root, command(evals()), ranks=ranks)
        assert whole.wait() == [0] * ranks, whole.text()
        found[ranks] = root, whole.text()
    return found


def step_directory(root: Path, step: int) -> Path:
    return root / RUN / "choice_evals" / "quiz" / f"step_{step}"


def marked(root: Path) -> list[int]:
    found = (root / RUN / "choice_evals" / "quiz").glob("step_*/metrics.json")
    return sorted(int(path.parent.name.removeprefix("step_")) for path in found)


def calls(root: Path) -> Counter[int]:
    return Counter(map(int, (root / "calls.txt").read_text().split()))


def table(root: Path, step: int) -> dict[str, list[Any]]:
    with pa.ipc.open_file(str(step_directory(root, step) / "predictions.arrow")) as reader:
        return reader.read_all().to_pydict()


@pytest.mark.parametrize("ranks", [1, 2])
def test_norms_and_weights_are_those_without_evals(plain: Any, evaluated: Any, ranks: int) -> None:
    root, _ = evaluated[ranks]
    assert len(rows(root)) == TOTAL
    assert rows(root) == rows(plain[ranks])
    assert weights(root) == weights(plain[ranks])


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_row_is_predicted_once_by_the_weights_of_the_step(evaluated: Any, ranks: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    root, _ = evaluated[ranks]
    lm = AutoModelForCausalLM.from_pretrained(root / RUN / "final", dtype=torch.float64)
    _, told, _ = eval_bins()
    got = table(root, TOTAL)
    assert got["row_id"] == list(range(9))
    assert got["choice_ids"] == [told[number][1] for number in range(9)]
    for number, logits in enumerate(got["choice_logits"]):
        prompt, choices = told[number]
        with torch.no_grad():
            wanted = lm(torch.tensor([prompt]), use_cache=False).logits[0, -1, choices]
        assert logits == pytest.approx(wanted.tolist(), abs=1e-5), number
    for step in range(TOTAL + 1):
        assert table(root, step)["row_id"] == list(range(9)), step


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_scorer_that_fails_stops_nothing_and_marks_nothing(evaluated: Any, ranks: int) -> None:
    root, said = evaluated[ranks]
    assert marked(root) == [step for step in range(TOTAL + 1) if step not in BAD]
    assert calls(root) == Counter(range(TOTAL + 1))
    assert "Traceback" not in said
    for step, why in TOLD.items():
        (line,) = [one for one in said.splitlines() if f"choice eval quiz, step {step}: not" in one]
        assert f"choice_eval.import_path=my_scorer.recorded: {why}" in line
        assert "training goes on" in line and f"curriculum eval {root / RUN}" in line


def test_metrics_follow_from_the_predictions(evaluated: Any) -> None:
    root, _ = evaluated[1]
    _, _, targets = eval_bins()
    found = json.loads((step_directory(root, 3) / "metrics.json").read_text())
    likelihoods, squares, hits = [], [], []
    for logits, target in zip(table(root, 3)["choice_logits"], targets, strict=True):
        odds = np.exp(np.array(logits, np.float64))
        q = odds / odds.sum()
        likelihoods.append(sum(t * np.log(p) for t, p in zip(target, q, strict=True)))
        squares.append(sum((p - t) ** 2 for t, p in zip(target, q, strict=True)))
        hits.append(target[q.argmax()] == target.max())
    assert found["log_likelihood"] == pytest.approx(np.mean(likelihoods))
    assert found["brier"] == pytest.approx(np.mean(squares))
    assert found["accuracy"] == pytest.approx(np.mean(hits))
    assert (found["step"], found["rows"]) == (3, 9)
    assert found["scorer"] == "my_scorer.recorded"
    assert found["seconds"] > 0 and found["peak_memory_bytes"] > 2**20


def test_metrics_are_the_same_on_any_number_of_ranks(evaluated: Any) -> None:
    for step in marked(evaluated[1][0]):
        alone, both = (
            json.loads((step_directory(evaluated[ranks][0], step) / "metrics.json").read_text())
            for ranks in (1, 2)
        )
        for name in ("accuracy", "log_likelihood", "kl", "brier", "ece"):
            assert both[name] == pytest.approx(alone[name], rel=1e-4), (step, name)


def test_the_report_shows_them(evaluated: Any) -> None:
    root, said = evaluated[1]
    assert "Choice evals: first -> last" in said
    page = (root / RUN / "report.html").read_text()
    assert "Choice evals, first and last" in page
    assert "reliability diagram of quiz" in page
    assert "step 0</text>" in page and f"step {TOTAL}</text>" in page


def test_eval_scores_what_waits_for_it_once(server: Server, evaluated: Any, tmp_path: Path) -> None:
    root = copied(evaluated[1][0], tmp_path / "here")
    (root / RUN / "final").rename(root / RUN / "not_final")  # as of a run that is not finished
    (root / "calls.txt").write_text("")
    (root / "behaviour.json").write_text(json.dumps({5: "raise"}))
    arguments = ["eval", str(RUN), "output=json"]
    first = start(server, root, arguments)
    assert first.wait() == [1], first.text()
    assert calls(root) == Counter(list(BAD))
    assert marked(root) == [step for step in range(TOTAL + 1) if step != 5]
    (shown,) = [line for line in first.text().splitlines() if line.startswith("{")]
    status = {one["step"]: one["status"] for one in json.loads(shown)["choice_evals"]}
    assert status == {step: "failed" if step == 5 else "ok" for step in BAD}
    (root / "behaviour.json").unlink()
    second = start(server, root, arguments)
    assert second.wait() == [0], second.text()
    assert calls(root) == Counter(list(BAD)) + Counter([5])
    assert marked(root) == list(range(TOTAL + 1))
    (root / "calls.txt").write_text("")
    for code in (0, 2):  # other kwargs are another score, once; then there is nothing to do
        third = start(server, root, [*arguments, "choice_eval.kwargs={bins: 3}"])
        assert third.wait() == [code], third.text()
        assert calls(root) == Counter(range(TOTAL + 1))


def resumed(server: Server, root: Path, ranks: int = 1) -> Start:
    last = start(server, root, command(evals()), ranks=ranks)
    assert last.wait() == [0] * ranks, last.text()
    return last


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_before_the_marker_only_the_score_is_made_again(
    server: Server, laid_out: Path, plain: Any, tmp_path: Path, ranks: int
) -> None:
    root = copied(laid_out, tmp_path / "here")
    moment = r"rename .*/\.metrics\.json\."
    one = start(server, root, command(evals()), ranks=ranks, die_on=moment, die_at=7)
    assert one.wait(60) == [-signal.SIGKILL, 1][:ranks], one.text()
    assert marked(root) == list(range(6))
    assert table(root, 6)["row_id"] == list(range(9))
    predictions = {step: step_directory(root, step) / "predictions.arrow" for step in range(7)}
    before = {step: path.stat().st_ino for step, path in predictions.items()}
    resumed(server, root, ranks)
    assert rows(root) == rows(plain[ranks])
    assert weights(root) == weights(plain[ranks])
    assert marked(root) == list(range(TOTAL + 1))
    assert calls(root) == Counter(range(TOTAL + 1)) + Counter([6])
    assert {step: path.stat().st_ino for step, path in predictions.items()} == before


def test_killed_before_the_predictions_the_step_is_evaluated_again(
    server: Server, laid_out: Path, plain: Any, tmp_path: Path
) -> None:
    root = copied(laid_out, tmp_path / "here")
    one = start(server, root, command(evals()), die_on=r"rename .*/\.predictions", die_at=8)
    assert one.wait() == [-signal.SIGKILL], one.text()
    assert marked(root) == list(range(7))
    assert not (step_directory(root, 7) / "predictions.arrow").exists()
    assert calls(root) == Counter(range(7))
    # the run goes on from step 5, in the middle of its choice phase, or from one before it
    (step_directory(root, 6) / "metrics.json").write_text('{"step": 6, "acc')
    kept = (step_directory(root, 3) / "metrics.json").read_bytes()
    resumed(server, root)
    assert rows(root) == rows(plain[1])
    assert marked(root) == list(range(TOTAL + 1))
    assert calls(root) - Counter([6]) == Counter(range(TOTAL + 1))
    assert json.loads((step_directory(root, 6) / "metrics.json").read_text())["rows"] == 9
    assert (step_directory(root, 3) / "metrics.json").read_bytes() == kept


@pytest.mark.parametrize(
    ("rank", "number", "ends"),
    [
        pytest.param(0, signal.SIGTERM, [75, 75], marks=pytest.mark.slow),
        (1, signal.SIGTERM, [75, 75]),
        (1, signal.SIGKILL, [1, -signal.SIGKILL]),
    ],
)
def test_a_signal_to_any_rank_ends_a_slow_scorer_and_nothing_half_done_is_kept(
    server: Server,
    laid_out: Path,
    plain: Any,
    tmp_path: Path,
    rank: int,
    number: int,
    ends: list[int],
) -> None:
    root = copied(laid_out, tmp_path / "here")
    (root / "behaviour.json").write_text(json.dumps({7: "sleep"}))
    one = start(server, root, command(evals()), ranks=2)
    wait_until(lambda: (root / "calls.txt").exists() and calls(root)[7])
    one.signal(number, rank)
    assert one.wait(20) == ends, one.text()
    assert "Traceback" not in one.text()
    assert marked(root) == list(range(7))
    assert rows(root) == rows(plain[2])[:7]
    (root / "behaviour.json").unlink()
    resumed(server, root, ranks=2)
    assert rows(root) == rows(plain[2])
    assert weights(root) == weights(plain[2])
    assert marked(root) == list(range(TOTAL + 1))
    assert calls(root) == Counter(range(TOTAL + 1)) + Counter([7])


def test_a_set_that_breaks_a_rule_is_refused_before_anything_trains(
    server: Server, laid_out: Path, tmp_path: Path
) -> None:
    root = copied(laid_out, tmp_path / "here")
    (root / "sets" / "quiz" / "bins-00001.arrow").unlink()
    one = start(server, root, command(evals()))
    assert one.wait() == [1], one.text()
    assert "bins-00001.arrow: is missing" in one.error()
    assert not (root / RUN / "metrics.jsonl").exists() or not rows(root)
    other = start(server, root, command(evals(import_path="my_scorer.recorder")))
    assert other.wait() == [2], other.text()
    assert "choice_eval.import_path='my_scorer.recorder': cannot be imported" in other.error()


def test_records_are_packed_into_the_cache_once(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copied(laid_out, tmp_path / "here")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    asked = [{"prompt": f"w{n} w7", "choices": ["w1", "w2"], "answer": n % 2} for n in range(5)]
    asked[3] = {"prompt": "w9", "choices": ["w5", "w6", "w4"], "target_probs": [0.5, 0.25, 0.25]}

    def opened() -> EvalSet:
        (root / "data" / "quiz.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
        words = command(evals(where="data/quiz.jsonl"))
        config = scaled(compose(overrides(words), "."))
        return open_sets(config, load_tokenizer(config.model))["quiz"]

    first = opened()
    assert first.rows == 5
    assert first.directory.is_relative_to(root / "cache")
    words = load_tokenizer(compose(overrides(command()), ".").model)
    found = {}
    for one in (first.bins[index] for index in range(len(first.bins))):
        ends = np.cumsum(one.seq_lens)
        for row, number in enumerate(one.row_ids.tolist()):
            prompt = words.decode(one.input_ids[ends[row] - one.seq_lens[row] : ends[row]])
            found[number] = prompt
            assert one.positions[row] == ends[row] - 1
    assert found[3].split() == ["[user]", "w9", "[end]", "[assistant]"]
    assert read_targets(first.directory / "targets.arrow", np.array([2, 2, 2, 3, 2])).tolist() == [
        *(1.0, 0.0, 0.0, 1.0, 1.0, 0.0),
        *(0.5, 0.25, 0.25, 1.0, 0.0),
    ]
    before = (first.directory / "manifest.json").stat().st_mtime_ns
    again = opened()
    assert again.directory == first.directory
    assert (again.directory / "manifest.json").stat().st_mtime_ns == before
    asked.pop()
    assert opened().directory != first.directory


def test_the_calibrated_plan_may_end_on_calibration(
    server: Server, tmp_path: Path, laid_out: Path
) -> None:
    root = copied(laid_out, tmp_path / "here")
    words = ["run", "+plan=calibrated", "profile=production", "dry_run=true", "output=json"]
    one = start(server, root, words)
    assert one.wait() == [0], one.text()
    plan = json.loads(one.text())
    assert [phase["name"] for phase in plan["phases"]][-2:] == ["planning", "calibration"]
    assert plan["phases"][-1]["role"] == "calibration"
    assert {finding["code"] for finding in plan["findings"]} <= {
        "data/missing",
        "plan/init-missing",
    }
