"""What a dry run makes of prepared windows and of files."""

from dataclasses import dataclass

import pytest

from curriculum.compose import compose
from curriculum.dry import dry_run, missing_data, window_count
from curriculum.errors import UserError
from curriculum.plan.budget import WindowCount

LENGTHS = [8, 7, 6, 5]


@dataclass
class Windows:
    """Four windows of known lengths, repeated for ever."""

    exhausted: bool

    def __len__(self):
        return len(LENGTHS)

    def forward_tokens(self, count):
        return sum(LENGTHS[i % len(LENGTHS)] for i in range(count))

    def trained_tokens(self, count):
        return count


def phase(**more):
    config = compose(["+plan=corrective", "profile=production"])
    found = config.plan.phases["rag_qa"]
    for name, value in {"batch_size": 1, **more}.items():
        setattr(found if hasattr(found, name) else found.data, name, value)
    return found


@pytest.mark.parametrize(
    ("settings", "exhausted", "expected"),
    [
        ({"steps": 3}, False, WindowCount(4, False, 21, 3)),
        ({"steps": 4}, True, WindowCount(4, True, 26, 4)),
        ({"steps": 6}, False, WindowCount(4, False, None, None)),
        ({"steps": 6}, True, WindowCount(4, True, None, None)),
        ({"steps": 6, "on_short": "repeat"}, True, WindowCount(4, True, 41, 6)),
        ({"steps": None, "epochs": 1.5}, True, WindowCount(4, True, 41, 6)),
        ({"steps": None, "epochs": 1.5}, False, WindowCount(4, False, None, None)),
        ({"steps": None, "epochs": 1.5, "max_steps": 2}, True, WindowCount(4, True, 15, 2)),
    ],
)
def test_window_count(settings, exhausted, expected):
    assert window_count(phase(**settings), Windows(exhausted)) == expected


def test_short_data_is_an_error_of_the_dry_run(tmp_path, monkeypatch):
    for split in ("train", "heldout"):
        file = tmp_path / "data" / "planning" / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}\n")
    (tmp_path / "cache").mkdir()
    asked = []

    def find(config, name, split):
        asked.append((name, split))
        return Windows(exhausted=True)

    monkeypatch.setattr("curriculum.data.windows.find", find)
    result = dry_run(
        compose(
            [
                "+plan=corrective",
                "profile=production",
                "plan.init_from=scratch",
                f"data.root={tmp_path / 'data'}",
                f"cache.dir={tmp_path / 'cache'}",
            ]
        )
    )
    assert asked == [("planning", "train")], "phases without files are not looked up"
    (short,) = [f for f in result.findings if f.code == "data/short"]
    # 900 steps of 32 windows against 4
    assert short.phase == "planning" and "28,800 windows" in short.message
    assert not result.ok


def test_missing_data_names_patterns(tmp_path):
    (tmp_path / "rag_qa").mkdir()
    (tmp_path / "rag_qa" / "train.jsonl").touch()
    config = compose(["+plan=corrective", "profile=production", f"data.root={tmp_path}"])
    missing = missing_data(config)
    assert missing["rag_qa"] == [f"{tmp_path}/rag_qa/heldout.*"]
    assert missing["planning"] == [f"{tmp_path}/planning/train.*", f"{tmp_path}/planning/heldout.*"]


def test_what_is_missing_stops_a_start(tmp_path):
    config = compose(["+plan=corrective", "profile=production"])
    assert dry_run(config).ok
    started = dry_run(config, starting=True)
    assert not started.ok
    assert {f.code for f in started.findings if f.severity == "error"} == {
        "data/missing",
        "plan/init-missing",
    }


def test_the_embedded_corpus_needs_a_place():
    with pytest.raises(UserError, match=r"data\.root: required by profile\.corpus=demo"):
        dry_run(compose(["+plan=corrective", "data.root=null"]))
