"""The windows of choice phases: packed directories as they are, records packed once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_builders import config_for
from packed_choice_builders import COMPONENTS, training_bins, write_training
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from curriculum.config import Config
from curriculum.data.choice_data import data_files
from curriculum.data.choice_set import ChoiceSet
from curriculum.data.order import epoch_permutation
from curriculum.data.windows import find, prepare
from curriculum.errors import RunError, UserError

WORDS = ("<eos>", "<unk>", "one", "two", "three", "yes", "no", "maybe", "four")
MODEL = {"config": {"vocab_size": 50}}


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}"
    return made


def settings(root: Path, **more: Any) -> Config:
    return config_for(root, "choice", seq_len=12, **{"model": MODEL, **more})


def test_a_packed_directory_is_taken_in_file_order(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    train = write_training(tmp_path / "train")
    val = write_training(tmp_path / "val", split="val")
    config = settings(tmp_path, sources=[str(train)], heldout=[str(val)])
    windows = prepare(config, "one", "train", tokenizer, 1)
    assert isinstance(windows, ChoiceSet)
    assert len(windows) == 4 and windows.exhausted
    assert windows.mix_components == tuple(COMPONENTS)
    for window, row in zip((windows[i] for i in range(4)), training_bins(), strict=True):
        assert window.input_ids.tolist() == row["input_ids"]
        weights = np.zeros(len(row["input_ids"]), np.float32)
        weights[row["positions"]] = row["weights"]
        assert window.loss_weights.tolist() == weights.tolist()
        assert window.choice.positions.tolist() == row["positions"]
        assert window.choice.mix_weights.tolist() == row["mix_weights"]
    found = find(config, "one", "train")
    assert found is not None and len(found) == 4
    assert len(prepare(config, "one", "heldout", tokenizer, None)) == 4


def test_tokens_and_rows_are_counted_over_epochs(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    config = settings(tmp_path, sources=[str(write_training(tmp_path / "train"))])
    windows = prepare(config, "one", "train", tokenizer, None)
    tokens, rows = [10, 12, 3, 10], [2, 0, 0, 3]  # the row of weight 0 is not trained
    second, third = (epoch_permutation(4, config.seed, "one", epoch) for epoch in (1, 2))
    for count in range(12):
        places = [*range(4), *second, *third][:count]
        assert windows.forward_tokens(count) == sum(tokens[i] for i in places)
        assert windows.trained_tokens(count) == sum(rows[i] for i in places)


def test_what_a_phase_does_not_take(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    train = str(write_training(tmp_path / "train"))
    val = str(write_training(tmp_path / "val", split="val"))

    def refusal(split: str = "train", **more: Any) -> str:
        with pytest.raises((UserError, RunError)) as refused:
            prepare(settings(tmp_path, **more), "one", split, tokenizer, None)
        return str(refused.value)

    assert "split='val'; 'train' is needed" in refusal(sources=[val])
    assert "split='train'; 'val' is needed" in refusal("heldout", heldout=[train])
    told = refusal(sources=[train, val])
    assert told.startswith("plan.phases.one.data.sources=") and "one packed directory" in told
    assert "one packed directory" in refusal(sources=[str(tmp_path / "*")])
    assert "no file matches" in refusal(sources=[str(tmp_path / "absent")])
    small = {"config": {"vocab_size": 46}}
    told = refusal(sources=[train], model=small)
    assert "bin 1" in told and "46" in told  # the token 46 in the second file


def test_training_data_without_any_weight_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [{**row, "weights": [0.0] * len(row["weights"])} for row in training_bins()]
    masked = str(write_training(tmp_path / "masked", rows))
    val = str(write_training(tmp_path / "val", rows, split="val"))
    config = settings(tmp_path, sources=[masked], heldout=[val])
    with pytest.raises(RunError, match=r"data\.sources: no row of .*masked has a weight above 0"):
        prepare(config, "one", "train", tokenizer, None)
    assert len(prepare(config, "one", "heldout", tokenizer, None)) == 4  # a probe tells of it


def test_held_out_bins_take_the_mixture_of_the_training_data(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    def opened(name: str, components: list[str], shares: list[float]) -> ChoiceSet:
        rows = [{**row, "mix_weights": [shares] * len(row["positions"])} for row in training_bins()]
        path = str(write_training(tmp_path / name, rows, mix_components=components))
        return prepare(settings(tmp_path, sources=[path]), "one", "train", tokenizer, None)

    both = opened("both", ["facts", "taste"], [0.25, 0.75])
    turned = both.with_components(("taste", "more", "facts"))
    assert turned.mix_components == turned[0].mix_components == ("taste", "more", "facts")
    assert turned[0].choice.mix_weights.tolist() == [[0.75, 0.0, 0.25]] * 2
    assert turned[2].choice.mix_weights.shape == (0, 3)
    assert (
        both.with_components(both.mix_components)[0].choice.mix_weights.tolist()
        == [[0.25, 0.75]] * 2
    )
    none, whole = opened("none", [], []), opened("whole", ["all"], [1.0])
    assert none.with_components(("all",))[0].choice.mix_weights.tolist() == [[1.0]] * 2
    assert whole.with_components(())[0].choice.mix_weights.shape == (2, 0)
    for one, names in ((both, ("facts",)), (both, ()), (none, ("facts",)), (whole, ("facts",))):
        with pytest.raises(RunError, match="that of the training data of"):
            one.with_components(names)


def test_the_files_of_a_directory_are_those_of_its_manifest(tmp_path: Path) -> None:
    train = write_training(tmp_path / "train")
    (train / "notes.txt").write_text("not data")
    phase = settings(tmp_path).plan.phases["one"]
    found, missing = data_files(phase, [str(train), str(tmp_path / "absent.jsonl")])
    listed = json.loads((train / "manifest.json").read_text())["files"]
    names = {train / "manifest.json", *(train / file["name"] for file in listed)}
    assert set(found) == names
    assert missing == [str(tmp_path / "absent.jsonl")]


def records(file: Path, count: int = 12, **more: Any) -> str:
    lines = [
        {"prompt": " ".join(WORDS[2 + (n + i) % 3] for i in range(3)),
         "choices": ["yes", "no", "maybe"], "answer": n % 3, **more}
        for n in range(count)
    ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def saved(tokenizer: PreTrainedTokenizerFast, root: Path) -> dict[str, Any]:
    tokenizer.save_pretrained(str(root / "tokenizer"))
    return {**MODEL, "tokenizer": str(root / "tokenizer")}


def contents(windows: ChoiceSet) -> list[list[int]]:
    return [windows[i].input_ids.tolist() for i in range(len(windows))]


def test_records_are_packed_once(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = saved(tokenizer, tmp_path)
    source = records(tmp_path / "choice.jsonl")
    config = settings(tmp_path, sources=[source], model=model)
    assert find(config, "one", "train") is None
    windows = prepare(config, "one", "train", tokenizer, None)
    # three words, <eos> and the answer: two records a bin of 12 tokens
    assert [len(ids) for ids in contents(windows)] == [10] * 6
    yes = tokenizer.convert_tokens_to_ids(["yes", "no", "maybe"])
    assert windows[0].choice.choice_ids.tolist() == yes * 2
    before = {p: p.stat().st_mtime_ns for p in windows.directory.iterdir()}
    again = prepare(config, "one", "train", tokenizer, None)
    assert {p: p.stat().st_mtime_ns for p in again.directory.iterdir()} == before
    found = find(config, "one", "train")
    assert found is not None and contents(found) == contents(windows)

    records(tmp_path / "choice.jsonl", 14)
    assert find(config, "one", "train") is None
    assert len(prepare(config, "one", "train", tokenizer, None)) == 7


def test_what_records_become_depends_on_what_it_should(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model, source = saved(tokenizer, tmp_path), records(tmp_path / "choice.jsonl")

    def places(**more: Any) -> list[str]:
        config = settings(
            tmp_path, **{"sources": [source], "heldout": [source], "model": model, **more}
        )
        name = next(iter(config.plan.phases))
        return [
            prepare(config, name, split, tokenizer, None).directory.name
            for split in ("train", "heldout")
        ]

    train, heldout = places()
    assert places() == [train, heldout]
    assert places(seed=8)[0] != train and places(seed=8)[1] == heldout
    assert places(phase="two")[0] != train and places(phase="two")[1] == heldout
    assert places(spellings=["{}"]) == [train, heldout]
    for more in ({"answer_prefix": "two "}, {"spellings": [" {}"]}, {"on_over_long": "drop"}):
        assert set(places(**more)).isdisjoint({train, heldout}), more


def test_records_that_cannot_be_used_are_named(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = saved(tokenizer, tmp_path)
    source = records(tmp_path / "choice.jsonl", 2, choices=["yes", "no no", "maybe"])
    with pytest.raises(RunError) as refused:
        prepare(settings(tmp_path, sources=[source], model=model), "one", "train", tokenizer, None)
    told = str(refused.value)
    assert told.startswith("phase one, train data: 2 record(s) cannot be used")
    assert "choice.jsonl:1: " in told and "'no no'" in told
    weighted = [{"path": records(tmp_path / "fine.jsonl"), "weight": 2.0}]
    with pytest.raises(UserError, match="have no weights of their own"):
        prepare(settings(tmp_path, sources=weighted, model=model), "one", "train", tokenizer, None)
