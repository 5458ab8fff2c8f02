"""The verb `eval`: paths, configurations, and what it prints, around a fake engine."""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import curriculum.engine
from curriculum import evaluate
from curriculum.config import Model, load
from curriculum.errors import RunError, UserError
from curriculum.probes import ProbeResult


@pytest.fixture
def run_dir(tmp_path: Path, values, phase) -> Path:
    """A finished run of a plan with one qa phase."""
    folder = tmp_path / "runs" / "small"
    (folder / "final").mkdir(parents=True)
    (folder / "final" / "config.json").write_text('{"max_position_embeddings": 64}')
    given = values({"qa": phase("generative", "qa", [])})
    (folder / "config.yaml").write_text(yaml.safe_dump(given))
    return folder


def test_targets(tmp_path: Path, run_dir: Path) -> None:
    assert evaluate.find_target(run_dir) == evaluate.Target(run_dir / "final", run_dir)
    assert evaluate.find_target(run_dir / "final") == evaluate.Target(run_dir / "final", run_dir)
    alone = tmp_path / "hf"
    alone.mkdir()
    (alone / "config.json").write_text("{}")
    assert evaluate.find_target(alone) == evaluate.Target(alone, None)
    step = run_dir / "checkpoints" / "step_7"
    step.mkdir(parents=True)
    (step / "COMMITTED").touch()
    assert evaluate.find_target(step) == evaluate.Target(step, run_dir, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such directory"),
        (lambda path: path.write_text(""), "a file, but eval takes a directory"),
        (lambda path: path.mkdir(), "neither a run"),
        (
            lambda path: (path.mkdir(), (path / "config.yaml").write_text("{}")),
            "a run without final/, so it is not finished",
        ),
    ],
)
def test_wrong_paths_are_told_in_one_line(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "somewhere"
    make(path)
    with pytest.raises(UserError, match=message) as caught:
        evaluate.main([str(path)])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("argv", [[], ["a", "b"], ["output=json"], ["--flag"], ["a", "--flag"]])
def test_one_path_is_needed(argv: list[str]) -> None:
    with pytest.raises(UserError, match="eval takes one RUN or DIR"):
        evaluate.main(argv)


def test_config_dir_must_exist(run_dir: Path, tmp_path: Path) -> None:
    for flag in (["--config-dir", str(tmp_path / "own")], [f"--config-dir={tmp_path / 'own'}"]):
        with pytest.raises(UserError, match=r"own: no such folder"):
            evaluate.main([*flag, str(run_dir)])


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 512}')
    model = Model("m", str(tmp_path), None, "own", None, None)
    evaluate.check_vocabulary(model, 512)
    with pytest.raises(UserError, match=r"own: 522 tokens, but the model knows 512"):
        evaluate.check_vocabulary(model, 522)


def test_a_directory_without_weights_is_told_in_one_line(run_dir: Path, tokenizer, probes) -> None:
    (run_dir / "final" / "config.json").write_text('{"model_type": "llama"}')
    tokenizer.save_pretrained(run_dir / "final")
    with pytest.raises(UserError, match=r"no file named model\.safetensors") as caught:
        evaluate.main([str(run_dir)])
    assert "\n" not in str(caught.value)


def test_the_configuration_of_a_run_with_overrides(run_dir: Path) -> None:
    target = evaluate.find_target(run_dir)
    config = evaluate.configuration(target, ["probes.generation_records=3", "output=json"])
    assert config.plan.name == "small"
    assert (config.probes.generation_records, config.output) == (3, "json")
    assert (config.model.path, config.model.config) == (str(run_dir / "final"), None)
    assert config.model.tokenizer is not None  # the run's: final/ holds none
    (run_dir / "final" / "tokenizer.json").write_text("{}")
    assert evaluate.configuration(target, []).model.tokenizer is None
    with pytest.raises(UserError, match="did you mean 'generation_records'"):
        evaluate.configuration(target, ["probes.generation_record=3"])


def test_a_checkpoint_keeps_the_model_of_the_run(run_dir: Path) -> None:
    target = evaluate.Target(run_dir / "checkpoints" / "step_7", run_dir, True)
    config = evaluate.configuration(target, [])
    assert (config.model.path, config.model.config) == (None, {"max_position_embeddings": 64})


def test_a_directory_of_no_run_needs_a_plan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"belongs to no run; name a plan by \+plan=NAME"):
        evaluate.configuration(evaluate.Target(tmp_path, None), [])


RESULTS = [
    ProbeResult("qa.perplexity", "qa", {"perplexity": 4.5418, "trained_tokens": 45.0}, [], "p"),
    ProbeResult("tier.retrieval", "tier", {"worst_rank": 710}, [], "r", "retrieval", "ok", "note"),
    ProbeResult("x.generation", "x", {}, [], "g", "generative", "absent", "data.heldout is empty"),
]


def test_table() -> None:
    assert evaluate.table(RESULTS, Path("hf"), "small").splitlines() == [
        "hf measured on plan small",
        "probe           metric          value",
        "qa.perplexity   perplexity      4.542",
        "                trained_tokens  45",
        "tier.retrieval  worst_rank      710",
        "                note            note",
        "x.generation    absent          data.heldout is empty",
    ]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, evaluator: Any) -> SimpleNamespace:
    """The engine replaced: a world of one, and the fake evaluator for any directory."""
    state = SimpleNamespace(opened=[], main=True)

    def open_evaluator(config: Any, directory: Path, ranks: Any) -> Any:
        state.opened.append(directory)
        return evaluator

    world = lambda engine: nullcontext(SimpleNamespace(is_main=state.main))  # noqa: E731
    fakes = {
        "evaluate": SimpleNamespace(open_evaluator=open_evaluator),
        "distributed": SimpleNamespace(world=world),
        "checkpoint": SimpleNamespace(),
        "model": SimpleNamespace(),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, f"curriculum.engine.{name}", fake)
        monkeypatch.setattr(curriculum.engine, name, fake, raising=False)
    monkeypatch.setattr("curriculum.data.tokenizer.load_tokenizer", lambda model: [])
    return state


class Fixed:
    """A probe with a set result."""

    reason = None

    def __init__(self, result: ProbeResult) -> None:
        self.result = result
        self.name, self.phase, self.kind = result.name, result.phase, result.kind
        self.objective = result.objective

    def run(self, evaluator: object) -> ProbeResult:
        return self.result


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[ProbeResult]:
    """The results of the one registered probe."""
    results = list(RESULTS)
    make = {"fixed": lambda config, tokenizer: [Fixed(result) for result in results]}
    monkeypatch.setattr("curriculum.probes.PROBES", make)
    return results


def test_json_output_is_one_object(run_dir: Path, engine, probes, capsys) -> None:
    assert evaluate.main([str(run_dir), "output=json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["model"], shown["plan"]) == (str(run_dir / "final"), "small")
    assert [probe["name"] for probe in shown["probes"]] == [r.name for r in RESULTS]
    assert shown["probes"][0]["values"] == {"perplexity": 4.5418, "trained_tokens": 45.0}
    assert engine.opened == [run_dir / "final"]


def test_a_failed_probe_is_shown_and_gives_1(run_dir: Path, engine, probes, capsys) -> None:
    probes[0] = replace(probes[0], status="failed", values={}, reason="loss is nan")
    assert evaluate.main([str(run_dir)]) == 1
    assert "qa.perplexity   failed      loss is nan" in capsys.readouterr().out


def test_other_ranks_print_nothing(run_dir: Path, engine, probes, capsys) -> None:
    engine.main = False
    assert evaluate.main([str(run_dir)]) == 0
    assert capsys.readouterr().out == ""


def test_nothing_to_measure_is_an_error_before_the_model_is_loaded(run_dir: Path, engine) -> None:
    with pytest.raises(RunError, match=r"no held-out data .* data\.heldout is empty"):
        evaluate.main([str(run_dir)])
    assert engine.opened == []


def test_config_of_the_run_is_what_was_written(run_dir: Path) -> None:
    written = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert load(written).plan.name == "small"
