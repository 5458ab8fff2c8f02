"""`data pack-choice` and `data unpack-choice`: what is written, printed and refused."""

import gzip
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_builders import CHATML, byte_tokenizer, decode, write_jsonl
from packed_choice_builders import TRAINING, read_rows

from curriculum.cli import main
from curriculum.data.packed_choice import EvalManifest, Manifest, open_eval, open_packed
from curriculum.data.packed_choice.options import PackOptions, UnpackOptions
from curriculum.word_options import key_of

ROWS = [
    {"prompt": "Is the sky blue?", "choices": ["A", "B"], "answer": "B", "weight": 0.5},
    {"prompt": "And the sea?", "choices": ["C", "A", "B"], "target_probs": [0.125, 0.25, 0.625]},
    {"prompt": "x" * 300, "choices": ["A", "B"], "answer": 0},
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    byte_tokenizer(CHATML).save_pretrained(tmp_path / "tok")
    write_jsonl(tmp_path / "in.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["data", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def pack(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    given = ["seq_len=200", "split=train", "model.tokenizer=tok", "on_over_long=drop"]
    return call(capsys, "pack-choice", *given, *words)


def test_a_set_is_packed_and_reported(place: Path, capsys: Any) -> None:
    code, out, err = pack(capsys, "in.jsonl", "made/set")
    assert (code, err) == (0, "")
    length = sum(len(f"<s>user\n{r['prompt']}<e>\n<s>assistant\nA") - 6 for r in ROWS[:2])
    assert out.splitlines() == [
        "in.jsonl -> made/set",
        "records    3 in, 2 packed",
        "choices    2 to 3 a record, spelled '{}' 2",
        f"bins       1 of 200 tokens, {length / 200:.1%} full: {length} tokens in all",
        "mixture    none",
        "left out   1 x over-long, e.g. in.jsonl:3",
    ]
    (row,) = read_rows(place / "made" / "set")
    assert row["target_probs"] == [[0, 1], [0.125, 0.25, 0.625]] and row["weights"] == [0.5, 1]
    bins = open_packed("made/set", vocab_size=300, seq_len=200, split="train")
    source = bins.manifest.source
    assert source["files"] == ["in.jsonl"] and source["dropped"] == {"over-long": 1}
    assert source["chat_template"] == CHATML and len(source["tokenizer"]["sha256"]) == 64
    assert not list(place.glob("**/*.tmp"))


def test_every_format_of_sources_gives_the_same_bins(place: Path, capsys: Any) -> None:
    first, second = ROWS[:1], ROWS[1:2]
    (place / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(first[0]).encode()))
    pq.write_table(pa.Table.from_pylist(second), place / "b.parquet")
    (place / "c.json").write_text(json.dumps(ROWS[:2], indent=1))
    names = {name for row in ROWS for name in row}
    table = pa.Table.from_pylist([dict.fromkeys(sorted(names)) | row for row in ROWS[:2]])
    with pa.ipc.new_file(place / "d.arrow", table.schema) as writer:
        writer.write_table(table)
    assert pack(capsys, "in.jsonl", "one")[0] == 0
    assert pack(capsys, "a.*", "b.*", "two")[0] == 0
    assert pack(capsys, "c.json", "three")[0] == 0
    assert pack(capsys, "d.arrow", "four")[0] == 0
    assert read_rows(place / "one") == read_rows(place / "two") == read_rows(place / "three")
    assert read_rows(place / "one") == read_rows(place / "four")


def test_an_evaluation_set_has_its_targets_beside_it(place: Path, capsys: Any) -> None:
    code, out, err = pack(capsys, "in.jsonl", "quiz", "split=eval", "output=json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["records"] == {"in": 3, "packed": 2} and report["dropped"] == {"over-long": 1}
    assert report["dropped_at"] == {"over-long": ["in.jsonl:3"]}
    bins = open_eval("quiz", vocab_size=300)
    assert bins.manifest.name == "quiz" and bins.manifest.num_rows == 2
    assert bins[0].row_ids.tolist() == [0, 1]
    with pa.ipc.open_file(place / "quiz" / "targets.arrow") as reader:
        assert reader.read_all().to_pydict() == {
            "row_id": [0, 1],
            "target_probs": [[0.0, 1.0], [0.125, 0.25, 0.625]],
        }
    assert pack(capsys, "in.jsonl", "other", "split=eval", "name=nice")[0] == 0
    assert open_eval("other", vocab_size=300).manifest.name == "nice"


SHOWN = """\
bin 0: 96 tokens, 2 segments, 2 rows

--- segment 0: 50 tokens
<|im_start|>user
Is the sky blue?<|im_end|>
<|im_start|>assistant
\u27e6B\u27e7
row 0, position 48: weight 0.5, all 1
    0.0000  'A' (32)
    1.0000  'B' (33)

--- segment 1: 46 tokens
<|im_start|>user
And the sea?<|im_end|>
<|im_start|>assistant
\u27e6B\u27e7
row 1, position 94: weight 1, all 1
    0.1250  'C' (34)
    0.2500  'A' (32)
    0.6250  'B' (33)
"""


def test_bins_are_shown_as_text(place: Path, capsys: Any) -> None:
    letters = sorted({"A": 32, "B": 33, "C": 34}.items())
    tokenizer = byte_tokenizer()
    assert [decode(tokenizer, [token]) for _, token in letters] == ["A", "B", "C"]
    pack(capsys, "in.jsonl", "set")
    code, out, err = call(capsys, "unpack-choice", "set", "0")
    assert (code, err) == (0, "")
    (row,) = read_rows(place / "set")
    sizes = row["seq_lens"]
    expected = SHOWN.replace("96 tokens", f"{sum(sizes)} tokens")
    expected = expected.replace("50 tokens", f"{sizes[0]} tokens")
    expected = expected.replace("46 tokens", f"{sizes[1]} tokens")
    expected = expected.replace("48:", f"{sizes[0] - 2}:").replace("94:", f"{sum(sizes) - 2}:")
    assert out == expected + "\n"
    whole = call(capsys, "unpack-choice", "set", "model.tokenizer=tok")[1]
    head, rest = whole.split("\n\n", 1)
    assert rest == out and head == (
        f"set: split train, mixture all; 1 bins of 200 tokens, 2 rows of up to 3 choices, "
        f"{sum(sizes)} tokens in all"
    )
    (place / "tok").rename(place / "gone")
    assert " (33)" in call(capsys, "unpack-choice", "set")[1]


def test_evaluation_bins_are_shown_with_their_targets(place: Path, capsys: Any) -> None:
    pack(capsys, "in.jsonl", "quiz", "split=eval")
    out = call(capsys, "unpack-choice", "quiz")[1]
    assert out.startswith("quiz: evaluation set quiz; 1 bins of 200 tokens, 2 rows of up to 3")
    assert "assistant\n\u27e6\u27e7\nrow 1, position" in out and "row id 1" in out
    assert "    0.6250  'B' (33)" in out
    (place / "quiz" / "targets.arrow").unlink()
    bare = call(capsys, "unpack-choice", "quiz")[1]
    assert bare.replace(" ", "") == re.sub(r"\d\.\d{4}", "", out).replace(" ", "")


WRONG: dict[str, tuple[list[str], int, str]] = {
    "no OUT": (["in.jsonl"], 2, "takes IN and OUT, got in.jsonl; usage"),
    "no such IN": (["none.jsonl", "out"], 2, "none.jsonl: no such file"),
    "OUT is a file": (["in.jsonl", "tok/tokenizer.json"], 2, "a file; OUT is a directory"),
    "an unknown key": (["in.jsonl", "out", "spelling=x"], 2, "did you mean 'spellings'?"),
    "a wrong value": (["in.jsonl", "out", "split=test"], 2, "split=test: input should be 'train'"),
    "seq_len": (["in.jsonl", "out", "seq_len=1"], 2, "seq_len=1: input should be greater than"),
    "spellings": (["in.jsonl", "out", 'spellings=["{"]'], 2, "must hold {} once"),
    "no JSON": (["in.jsonl", "out", "spellings={}"], 2, "spellings={}: input should be a valid l"),
    "no tokenizer": (["in.jsonl", "out", "model.tokenizer=none"], 2, "no tokenizer.json there"),
    "a template": (["in.jsonl", "out", "model.chat_template={% if"], 2, "not valid Jinja"),
    "all dropped": (
        ["in.jsonl", "out", "seq_len=4"],
        1,
        "no record is left to pack (over-long: 3)",
    ),
    "a flag": (["in.jsonl", "out", "--fast"], 2, "takes IN and OUT, got in.jsonl out --fast"),
    "a seed": (["in.jsonl", "out", "seed=-1"], 2, "seed=-1: input should be greater than or"),
    "a name": (["in.jsonl", "out", "name=x"], 2, "name=x: only an evaluation set has a name"),
    "a mixture of an evaluation": (
        ["in.jsonl", "out", "split=eval", 'mix_components=["a"]'],
        2,
        "an evaluation set has no mixture",
    ),
    "a component twice": (
        ["in.jsonl", "out", 'mix_components=["a","a"]'],
        2,
        "mix_components=['a', 'a']: names must differ",
    ),
    "a directory": (["tok", "out"], 2, "tok: a directory; IN is a file or a glob"),
    "a format": (["tok/tokenizer.json", "in.txt", "out"], 2, "in.txt: no such file"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_commands_are_one_line_and_write_nothing(place, capsys, kind) -> None:
    words, code, told = WRONG[kind]
    found, out, err = pack(capsys, *words)
    assert (found, out) == (code, "") and told in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert not (place / "out").exists()


def test_missing_options_are_named_together(place: Path, capsys: Any) -> None:
    code, _, err = call(capsys, "pack-choice", "in.jsonl", "out", "model.tokenizr=tok")
    assert code == 2
    assert sorted(err.splitlines()) == sorted([
        "error: seq_len: required, but not given; for example seq_len=512",
        "error: split: required, but not given; for example split=train",
        "error: model.tokenizer: required, but not given; for example model.tokenizer=DIR",
        "error: model.tokenizr=tok: unknown key; did you mean 'model.tokenizer'?",
    ])  # fmt: skip


def test_a_set_that_lies_there_is_kept(place: Path, capsys: Any) -> None:
    pack(capsys, "in.jsonl", "set")
    before = read_rows(place / "set")
    code, _, err = pack(capsys, "in.jsonl", "set", "seq_len=80")
    assert (
        code == 2 and "holds a packed set already; name another OUT, or give overwrite=true" in err
    )
    assert read_rows(place / "set") == before
    write_jsonl(place / "bad.jsonl", [{"prompt": "q", "choices": ["A", "BB"], "answer": 0}])
    assert pack(capsys, "bad.jsonl", "set", "overwrite=true")[0] == 1
    assert read_rows(place / "set") == before
    assert pack(capsys, "in.jsonl", "set", "seq_len=40", "overwrite=true")[0] == 0
    assert len(read_rows(place / "set")) == 2


def test_wrong_bins_are_refused(place: Path, capsys: Any) -> None:
    pack(capsys, "in.jsonl", "set")
    for words, told in (
        (["set", "1"], "1: set has 1 bins, from 0 on"),
        (["set", "x"], "takes DIR and N"),
        ([], "takes DIR and N"),
        (["none"], "no such directory"),
        (["tok"], "manifest.json: is missing"),
        (["set", "model.tokenizer=x"], "no tokenizer.json there"),
    ):
        code, out, err = call(capsys, "unpack-choice", *words)
        assert code in (1, 2) and out == "" and told in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "options"), [("pack-choice", PackOptions), ("unpack-choice", UnpackOptions)]
)
def test_help_names_every_option(capsys: Any, command: str, options: type) -> None:
    code, out, _ = call(capsys, command, "--help")
    assert code == 0 and out.startswith(f"usage: python -m curriculum data {command} ")
    assert all(f"\n  {key_of(field)}=" in out for field in fields(options))


def test_the_page_on_choice_data_names_options_columns_and_keys() -> None:
    page = (Path(__file__).parents[3] / "docs" / "choice.md").read_text(encoding="utf-8")
    for field in fields(PackOptions):
        assert f"| `{key_of(field)}` |" in page
    for name, kind in TRAINING.items():
        assert (
            f"| `{name}` | `{str(kind).replace('item: ', '').replace('float>', 'float32>')}` |"
            in page
        )
    for field in (*fields(Manifest), *fields(EvalManifest)):
        assert f"`{field.name}`" in page
