"""The rebuilt set: its share, its balance, its bytes, and what is refused."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from qa_sets import ABSTENTION, dominant_set, extractive, read, rebuilt, write_dominant_set

from curriculum.data.abstention import BANK, is_abstention, matcher_for
from curriculum.data.abstention.command import main
from curriculum.errors import RunError, UserError


def uses(rows: list[dict[str, Any]], bank: tuple[str, ...] = BANK) -> Counter[str | None]:
    return Counter(matcher_for(bank).which(r["answer"]) for r in rows if not r["answerable"])


def refused(folder: Path, *words: str, kind: type[Exception] = UserError) -> str:
    """What a command is refused with; the folder must not change."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(kind) as caught:
        main([*words, f"cache_dir={folder / 'cache'}"])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(caught.value)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.jsonl"
    rows = [extractive(n, answerable=n % 5 > 0) for n in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.25])
def test_the_share_is_met_to_the_nearest_record_and_the_bank_is_used_evenly(
    tmp_path: Path, share: float
) -> None:
    rows = dominant_set(2000, 552)
    out, report = rebuilt(tmp_path, rows, share=share)
    missing = [row for row in out if not row["answerable"]]
    assert abs(len(missing) - share * len(out)) <= 0.5
    assert len(out) - len(missing) == 2000 - 552
    counts = uses(out)
    assert counts[None] == 0
    assert max(counts.values(), default=0) <= len(missing) / len(BANK) + 1
    assert min(counts[text] for text in BANK) >= len(missing) / len(BANK) - 1
    assert {p["paraphrase"]: p["records"] for p in report["paraphrases"] if p["records"]} == counts
    assert report["records"] == {
        "in": 2000, "bad": 0, "out": len(out),
        "answerable": 1448, "unanswerable": len(missing),
    }  # fmt: skip
    assert report["dropped"] == {"surplus unanswerable": 552 - len(missing)}
    assert report["share"]["before"] == 552 / 2000
    assert report["share"]["after"] == len(missing) / len(out)


def test_answerable_records_stay_as_they_are_and_in_order(tmp_path: Path) -> None:
    rows = dominant_set(500, 140)
    out, _ = rebuilt(tmp_path, rows)
    order = {row["id"]: n for n, row in enumerate(rows)}
    places = [order[row["id"]] for row in out]
    assert places == sorted(set(places))
    for row in out:
        before = rows[order[row["id"]]]
        assert row["passages"] == before["passages"]
        assert next(iter(row)) == "question" and list(row) == [
            "question", "id", "answer", "passages", "answerable"
        ]  # fmt: skip
        assert row["answerable"] == (before["answer"] != ABSTENTION)
        if row["answerable"]:
            assert row == before | {"answerable": True}
        else:
            assert is_abstention(row["answer"], BANK)


def test_what_is_dropped_comes_evenly_from_the_file(tmp_path: Path) -> None:
    rows = [extractive(n, answerable=n % 2 > 0, n=n) for n in range(4000)]
    out, _ = rebuilt(tmp_path, rows, share=0.1)
    kept = [row["n"] for row in out if not row["answerable"]]
    quarters = Counter(n // 1000 for n in kept)
    assert len(kept) == 222 and len(quarters) == 4
    assert max(quarters.values()) - min(quarters.values()) <= 2
    assert len({n % 18 for n in kept}) >= 5, "drawn, not every n-th"


def test_targets_before_and_after_are_reported(tmp_path: Path) -> None:
    rows = [extractive(n) for n in range(88)] + [extractive(1) | {"n": n} for n in range(3)]
    rows += [extractive(n) | {"answer": "Not answerable from the text"} for n in range(200, 209)]
    _, report = rebuilt(tmp_path, rows, share=0.05)
    before, after = report["targets"]["before"], report["targets"]["after"]
    assert before[0] == {"target": "Not answerable from the text", "records": 9, "share": 0.09}
    assert before[1] == {"target": "Old Tom 1", "records": 4, "share": 0.04}
    assert len(before) == len(after) == 10
    assert after[0] == {"target": "Old Tom 1", "records": 4, "share": 4 / 96}


def test_extra_fields_stay_and_reasoning_of_a_rewritten_record_goes(tmp_path: Path) -> None:
    extra = {"meta": {"b": [1, 2.5, None], "a": "\u2028\u0085\x0c"}, "answers": ["x"]}
    rows = [
        extractive(n, answerable=n >= 10, reasoning="" if n == 3 else "It says so.", **extra)
        for n in range(100)
    ]
    out, report = rebuilt(tmp_path, rows)
    assert len(out) == 100
    for row in out:
        assert row["meta"] == extra["meta"] and row["answers"] == ["x"]
        assert ("reasoning" in row) == row["answerable"]
    assert report["dropped_fields"] == {"reasoning": 9}


def test_synthesizing_takes_every_passage_with_the_answer_and_leaves_the_others(
    tmp_path: Path,
) -> None:
    rows = [extractive(n, n=n) for n in range(60)]
    rows += [extractive(n, n=n) for n in range(60, 80)]
    for row in rows[60:70]:  # nothing would remain
        row["passages"] = [row["passages"][1]]
    for row in rows[70:]:  # twice, once in other spelling
        row["passages"].append(f"They call him OLD  tom-{row['n']}!")
    out, report = rebuilt(tmp_path, rows, share=0.25, synthesize="true")
    assert len(out) == 80
    made = [row for row in out if not row["answerable"]]
    assert len(made) == 20 == report["rewritten"]["synthesized"]
    for row in made:
        assert not 60 <= row["n"] < 70
        assert row["passages"] == [f"Mill {row['n']} grinds.", "It rains."]
        assert is_abstention(row["answer"], BANK)
    for row in out:
        if row["answerable"]:
            assert row == rows[row["n"]] | {"answerable": True}
    assert len(set(uses(out))) == 20
    # all but those ten can lose their passages, and no more
    all_, _ = rebuilt(tmp_path, rows, share=0.875, synthesize="true")
    assert sum(not row["answerable"] for row in all_) == 70
    with pytest.raises(RunError, match=r"only 70 answerable ones .* at most share=0\.875"):
        rebuilt(tmp_path, rows, share=0.9, synthesize="true")


def test_labels_lose_no_passages(tmp_path: Path) -> None:
    rows = [
        extractive(n, answerable=True) | {"answer": "no", "passages": ["There is no way.", "Rain."]}
        for n in range(50)
    ]
    with pytest.raises(RunError, match="only 0 answerable ones"):
        rebuilt(tmp_path, rows, synthesize="true")


def test_too_few_without_synthesizing_is_an_error_with_figures_and_remedy(
    tmp_path: Path, source: str
) -> None:
    said = refused(tmp_path, source, str(tmp_path / "o.jsonl"), "share=0.5", kind=RunError)
    assert "20 of 100" in said and "20.00%" in said and "50 would be needed" in said
    assert "synthesize=true" in said and "share=0.2" in said


def test_a_set_without_answerable_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="all 5 records are unanswerable"):
        rebuilt(tmp_path, [extractive(n, answerable=False) for n in range(5)])
    assert not (tmp_path / "out.jsonl").exists()


def test_a_bank_of_the_users(tmp_path: Path) -> None:
    bank = tmp_path / "bank.txt"
    bank.write_bytes(
        '\ufeffAsk\u2028elsewhere.\r\n"{question}"? Pass.\nNo word on {entity}\n'.encode()
    )
    rows = [extractive(n, answerable=n >= 10) for n in range(90)]
    rows += [extractive(n) | {"question": f"who {n}?", "answerable": False} for n in range(90, 100)]
    out, report = rebuilt(tmp_path, rows, share=0.2, bank=bank)
    mine = ("Ask\u2028elsewhere.", '"{question}"? Pass.', "No word on {entity}")
    assert sorted(uses(out, mine).values()) == [6, 7, 7]
    naming = [row for row in out if row["answer"].startswith("No word on")]
    assert all(
        row["answer"] == f"No word on Mill {row['question'].split()[-1][:-1]}" for row in naming
    )
    assert any("a bank of 20 would keep each at 1%" in note for note in report["notes"])
    bank.write_text('["A {entity}.", "B."]')
    out, _ = rebuilt(tmp_path, rows, share=0.2, bank=bank)
    assert uses(out, ("A {entity}.", "B.")) == {"A {entity}.": 10, "B.": 10}


@pytest.mark.parametrize(
    ("content", "complaints"),
    [
        (
            "Fine.\n{name} is out.\n\nfine!\nA } b\n{question}\n",
            [
                "line 2: '{name} is out.' has {name}",
                "line 3: '': empty",
                "line 4: 'fine!' repeats line 1",
                "line 5: 'A } b' has }",
                "line 6: '{question}': empty",
            ],
        ),
        ('["Fine.", 3]', ["item 2: 3: a paraphrase is a text"]),
        ('["Fine.", "{x}"]', ["item 2: '{x}' has {x}"]),
        ('["Fine.",', ["not valid JSON"]),
        ("", ["holds no paraphrase"]),
        ("[]", ["holds no paraphrase"]),
    ],
)
def test_a_bank_with_faults_is_refused_by_line(
    tmp_path: Path, source: str, content: str, complaints: list[str]
) -> None:
    bank = tmp_path / "bank.txt"
    bank.write_text(content)
    said = refused(tmp_path, source, str(tmp_path / "o.jsonl"), "share=0.1", f"bank={bank}")
    lines = said.splitlines()
    assert len(lines) == len(complaints)
    for line, complaint in zip(lines, complaints, strict=True):
        assert line.startswith(f"bank={bank}: ") and complaint in line


def test_bad_records_are_listed_or_skipped(tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "o.jsonl"
    good = [json.dumps(extractive(n, answerable=n > 0)) for n in range(10)]
    bad = ['{"question": "", "answer": "x"}', "{", '{"question": "q?", "answer": 3}']
    path.write_text("\n".join([good[0], *bad, *good[1:]]))
    said = refused(tmp_path, str(path), str(out), "share=0.1", kind=RunError).splitlines()
    assert [line.startswith(f"{path}:{n}: ") for n, line in enumerate(said[:3], 2)] == [True] * 3
    assert "question=''" in said[0] and "must not be empty" in said[0]
    assert "not valid JSON" in said[1] and "answer=3" in said[2]
    assert said[3:] == ["correct them, or leave them out by on_bad_record=skip"]

    words = ["share=0.1", "on_bad_record=skip", f"cache_dir={tmp_path / 'cache'}"]
    assert main([str(path), str(out), *words]) == 0
    report = json.loads(out.with_name("o.jsonl.report.json").read_text())
    assert len(read(out)) == 10
    assert report["records"]["in"] == 13 and report["records"]["bad"] == 3
    assert sum(n for reason, n in report["dropped"].items() if "bad record" in reason) == 3

    path.write_text("{\n" * 100)
    said = refused(tmp_path, str(path), str(tmp_path / "p.jsonl"), "share=0.1", kind=RunError)
    assert len(said.splitlines()) == 22 and "20 bad records" in said


def test_other_formats_in_and_out(tmp_path: Path, source: str) -> None:
    import pyarrow as pa

    cache = f"cache_dir={tmp_path / 'cache'}"
    packed = tmp_path / "part.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(source).read_bytes()))
    outs = [tmp_path / f"out.{suffix}" for suffix in ("jsonl", "jsonl.gz", "jsonl.zst")]
    for given, out in zip((source, str(tmp_path / "part.*"), str(packed)), outs, strict=True):
        assert main([given, str(out), "share=0.1", cache]) == 0
    plain = outs[0].read_bytes()
    assert gzip.decompress(outs[1].read_bytes()) == plain
    with pa.CompressedInputStream(pa.OSFile(str(outs[2])), "zstd") as stream:
        assert stream.read() == plain
    first = outs[1].read_bytes()
    time.sleep(1.1)  # the clock of a gzip header ticks in seconds
    assert main([source, str(outs[1]), "share=0.1", cache, "overwrite=true"]) == 0
    assert outs[1].read_bytes() == first


def test_same_input_and_seed_same_bytes_in_any_process(tmp_path: Path) -> None:
    source = write_dominant_set(tmp_path / "in.jsonl", 600, 200)
    digests = []
    for seed, hashing in (("1", "1"), ("1", "2"), ("2", "1")):
        out = tmp_path / f"{seed}.{hashing}.jsonl"
        code = "import sys; from curriculum.data.abstention.command import main; main(sys.argv[1:])"
        code += "; assert 'torch' not in sys.modules"
        words = [str(source), str(out), "share=0.1", f"seed={seed}", f"cache_dir={tmp_path}/cache"]
        subprocess.run(
            [sys.executable, "-c", code, *words],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": hashing},
        )
        digests.append(out.read_bytes())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "share: required"),
        (["share=1.0"], "share=1.0: input should be less than 1"),
        (["share=lots"], "share=lots: input should be a valid number"),
        (["share=0.1", "sede=3"], "sede=3: unknown key; did you mean 'seed'?"),
        (["share=0.1", "xyz=3"], "xyz=3: unknown key; valid keys: share, seed"),
        (["share=0.1", "absent=maybe"], "absent=maybe: "),
        (["share=0.1", "bank=/no/such"], "bank=/no/such: cannot be read"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, source: str, words: list[str], complaint: str
) -> None:
    assert complaint in refused(tmp_path, source, str(tmp_path / "o.jsonl"), *words)


def test_no_file_is_replaced_unasked_and_no_input_ever(tmp_path: Path, source: str) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text("mine")
    assert "overwrite=true" in refused(tmp_path, source, str(out), "share=0.1")
    (tmp_path / "link.jsonl").symlink_to(source)
    for name in (source, str(tmp_path / "link.jsonl")):
        said = refused(tmp_path, source, name, "share=0.1", "overwrite=true")
        assert "would replace a file that is read" in said
    for name in ("o.json", ".jsonl", "o.parquet"):
        assert "OUT is a file" in refused(tmp_path, source, str(tmp_path / name), "share=0.1")
    assert "no such file" in refused(
        tmp_path, f"{source}.no", str(tmp_path / "p.jsonl"), "share=0.1"
    )
    assert "usage:" in refused(tmp_path, source, "share=0.1")
    words = ["share=0.1", "overwrite=true", f"cache_dir={tmp_path / 'cache'}"]
    assert main([source, str(out), *words]) == 0
    assert out.read_text() != "mine"


def test_nothing_is_left_if_a_source_changes_meanwhile(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from curriculum.data.abstention import build

    choose = build.choose

    def touch_and_choose(*arguments: Any) -> Any:
        os.utime(source, (1, 1))
        return choose(*arguments)

    monkeypatch.setattr(build, "choose", touch_and_choose)
    said = refused(tmp_path, source, str(tmp_path / "o.jsonl"), "share=0.1", kind=RunError)
    assert "changed while it was read" in said


def test_a_rebuilt_set_rebuilds_to_the_same_share(tmp_path: Path) -> None:
    once, _ = rebuilt(tmp_path / "a", dominant_set(400, 200))
    for row in once:
        del row["answerable"]
    twice, report = rebuilt(tmp_path / "b", once)
    assert len(twice) == len(once)
    assert report["found"]["wording"] == round(200 / 9) and report["found"]["dominant"] == 0


def test_the_story_at_full_size(tmp_path: Path) -> None:
    """74,709 records, 20,606 of which say one sentence: 27.6%, many times the next."""
    source = write_dominant_set(tmp_path / "in.jsonl")
    out = tmp_path / "out.jsonl"
    started = time.process_time()
    assert main([str(source), str(out), "share=0.10", f"cache_dir={tmp_path / 'cache'}"]) == 0
    seconds = time.process_time() - started
    rows = read(out)
    missing = sum(not row["answerable"] for row in rows)
    assert abs(missing / len(rows) - 0.10) < 0.001
    assert len(rows) - missing == 74709 - 20606
    top = Counter(row["answer"] for row in rows).most_common(1)[0]
    assert top[1] / len(rows) < 0.005
    assert max(uses(rows).values()) <= missing / len(BANK) + 1
    assert seconds < 60, "measured: 8 s of CPU time"
