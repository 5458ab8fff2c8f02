"""Records of task `choice` become rows of bins: which token, where, and what is left out."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_builders import (
    CHATML,
    LLAMA3,
    MARKED,
    PLAIN_NEWLINE,
    QWEN3,
    THINK_STRIPPING,
    bpe_tokenizer,
    byte_tokenizer,
    decode,
    word_tokenizer,
    write_jsonl,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from curriculum.data.counts import Report
from curriculum.data.packed_choice import (
    Packed,
    open_eval,
    open_packed,
    pack_records,
    read_choices,
    write_eval,
    write_packed,
)
from curriculum.data.records import Chat, Choice, parse
from curriculum.data.render import prompt_ids
from curriculum.data.sources import Address, Source
from curriculum.errors import RunError, UserError

WORDS = ["yes", "no", "maybe", "sky", "blue", "is", "the", "?", "\n", " ", "user", "assistant"]


def records(rows: Iterable[dict[str, Any]]) -> list[tuple[Address, Choice]]:
    found = []
    for number, row in enumerate(rows, 1):
        address = Address("in.jsonl", number)
        found.append((address, parse("choice", json.dumps(row).encode(), address)))
    return found  # type: ignore[return-value]


def packed(rows: Iterable[dict[str, Any]], tokenizer: Any = None, **options: Any) -> Packed:
    given = {"seq_len": 200, "split": "train"} | options
    return pack_records(records(rows), tokenizer or byte_tokenizer(), **given)


def rows_of(bins: Iterable[Any]) -> list[dict[str, Any]]:
    """Each row of the bins by itself, found by walking segments one by one."""
    found = []
    for one in bins:
        start = row = choice = 0
        for length in one.seq_lens.tolist():
            assert start <= one.positions[row] < start + length
            count = int(one.choice_counts[row])
            entry = {
                "segment": one.input_ids[start : start + length].tolist(),
                "position": int(one.positions[row]) - start,
                "choices": one.choice_ids[choice : choice + count].tolist(),
            }
            if len(one.weights):
                entry["targets"] = one.target_probs[choice : choice + count].tolist()
                entry["weight"] = float(one.weights[row])
                entry["mix"] = one.mix_weights[row].tolist()
            if one.row_ids is not None:
                entry["row_id"] = int(one.row_ids[row])
            found.append(entry)
            start, row, choice = start + length, row + 1, choice + count
        assert row == one.rows == len(one.seq_lens)
    return found


def rendered(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


SAMPLE = [
    {"prompt": "Is the sky blue?", "choices": ["A", "B"], "answer": "B", "weight": 0.5},
    {"prompt": "Or?" * 9, "choices": ["C", "A", "B"], "target_probs": [0.125, 0.25, 0.625]},
    {"messages": [{"role": "system", "content": "Be brief."},
                  {"role": "user", "content": "Which?"}],
     "choices": ["B", "A"], "answer": 0},
]  # fmt: skip


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MARKED])
@pytest.mark.parametrize("make", [byte_tokenizer, bpe_tokenizer])
def test_a_row_is_the_prompt_its_choices_and_its_targets(template, make):
    tokenizer = make(template)
    made = packed(SAMPLE, tokenizer, split="val")
    expected = []
    token = {letter: tokenizer.convert_tokens_to_ids(letter) for letter in "ABC"}
    for row, targets, behind in zip(
        SAMPLE, ([0, 1], [0.125, 0.25, 0.625], [1, 0]), "BBB", strict=True
    ):
        messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer(rendered(tokenizer, messages), add_special_tokens=False)["input_ids"]
        expected.append({
            "segment": [*prompt, token[behind]],
            "position": len(prompt) - 1,
            "choices": [token[choice] for choice in row["choices"]],
            "targets": targets,
            "weight": row.get("weight", 1.0),
            "mix": [],
        })  # fmt: skip
    assert rows_of(made) == expected
    assert (made.records, made.rows, made.tokens) == (
        3,
        3,
        sum(len(e["segment"]) for e in expected),
    )
    assert made.spelled == {"{}": 3} and made.mix_components == ()


def test_an_evaluation_row_ends_with_its_prompt_and_keeps_its_number(tmp_path: Path):
    rows = [
        {"prompt": "x" * (n % 37), "choices": ["A", "B"], "answer": n % 2} for n in range(1, 80)
    ]
    rows = [row for row in rows if row["prompt"]]
    train, made = packed(rows), packed(rows, split="eval")
    write_eval(tmp_path / "e", made, name="e", seq_len=200, targets=made.targets)
    bins = open_eval(tmp_path / "e", vocab_size=400)
    firsts = [int(one.row_ids[0]) for one in bins]
    assert len(bins) > 3 and firsts == sorted(firsts)
    found = rows_of(bins)
    by_id = sorted(found, key=lambda row: row["row_id"])
    assert [row["row_id"] for row in by_id] == list(range(len(rows)))
    tokenizer = byte_tokenizer()
    for row, one in zip(rows, by_id, strict=True):
        text = rendered(tokenizer, [{"role": "user", "content": row["prompt"]}])
        assert decode(tokenizer, one["segment"]) == text
        assert one["position"] == len(one["segment"]) - 1 and "targets" not in one
    assert [one.tolist() for one in made.targets] == [[1 - n % 2, n % 2] for n in range(1, 80)
                                                      if n % 37]  # fmt: skip
    # the same prompts as in training, where an answer follows each
    longer = sorted(row["segment"][:-1] for row in rows_of(train))
    assert longer == sorted(row["segment"] for row in found)


def test_bins_are_full_hold_every_record_once_and_are_written(tmp_path: Path):
    lengths = np.random.default_rng(0).integers(1, 150, 400)
    rows = [{"prompt": f"{n:03d}" + "x" * int(length), "choices": ["A", "B"], "answer": "A"}
            for n, length in enumerate(lengths)]  # fmt: skip
    made = packed(rows, seq_len=256)
    write_packed(tmp_path / "set", made, split="train", seq_len=256)
    bins = open_packed(tmp_path / "set", vocab_size=300, split="train")
    texts = [decode(byte_tokenizer(), row["segment"]) for row in rows_of(bins)]
    wanted = [rendered(byte_tokenizer(), [{"role": "user", "content": r["prompt"]}]) + "A"
              for r in rows]  # fmt: skip
    assert sorted(texts) == sorted(wanted)
    assert bins.tokens.sum() == sum(map(len, wanted_ids(wanted)))
    assert bins.tokens.sum() / (len(bins) * 256) > 0.95 and bins.tokens.max() <= 256
    # not from the longest to the shortest
    longest = [int(one.seq_lens.max()) for one in bins]
    assert longest != sorted(longest, reverse=True)
    same = packed(rows, seq_len=256)
    assert [b.input_ids.tolist() for b in same] == [b.input_ids.tolist() for b in bins]
    other = packed(rows, seq_len=256, seed=1)
    assert [b.input_ids.tolist() for b in other] != [b.input_ids.tolist() for b in bins]
    assert sorted(b.input_ids.tolist() for b in other) == sorted(b.input_ids.tolist() for b in bins)


def wanted_ids(texts: list[str]) -> list[list[int]]:
    tokenizer = byte_tokenizer()
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


EARLIER = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "hello you"},
    {"role": "user", "content": "and now"},
]


@pytest.mark.parametrize("template", [CHATML, LLAMA3, PLAIN_NEWLINE])
def test_earlier_turns_are_cut_as_in_training(template):
    tokenizer = bpe_tokenizer(template)
    row = {"messages": EARLIER, "choices": ["A", "B"], "answer": "A"}
    (found,) = rows_of(packed([row], tokenizer))
    chat = Chat([*EARLIER, {"role": "assistant", "content": "A"}])
    assert found["segment"][:-1] == prompt_ids(chat, tokenizer)
    if template is PLAIN_NEWLINE:  # whose tokens reach across the borders of turns
        text = rendered(tokenizer, EARLIER)
        assert found["segment"][:-1] != tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_prompt_that_shows_earlier_turns_in_another_way_is_not_cut_by_them():
    shorter = "{{ m.content[3:] if add_generation_prompt else m.content }}"
    template = PLAIN_NEWLINE.replace("{{ m.content }}", shorter)
    tokenizer = bpe_tokenizer(template)
    row = {"messages": EARLIER, "choices": ["A", "B"], "answer": "A"}
    (found,) = rows_of(packed([row], tokenizer))
    text = rendered(tokenizer, EARLIER)
    assert found["segment"][:-1] == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_earlier_turns_that_the_template_rewrites_are_shown_as_it_shows_them():
    tokenizer = bpe_tokenizer(THINK_STRIPPING)
    turns = [EARLIER[0], {"role": "assistant", "content": "<think>x</think>hello you"}, EARLIER[2]]
    row = {"messages": turns, "choices": ["A", "B"], "answer": "A"}
    (found,) = rows_of(packed([row], tokenizer))
    text = rendered(tokenizer, turns)
    assert "think" not in text
    assert found["segment"][:-1] == tokenizer(text, add_special_tokens=False)["input_ids"]


def spaced_tokenizer(*tokens: str) -> PreTrainedTokenizerFast:
    """Bytes, and whole tokens for some texts, as byte-level vocabularies have them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    merges = []
    for token in tokens:
        piece = token.replace(" ", "\u0120")
        whole = piece[1:] in vocabulary and len(piece) > 2  # a space before a token
        for end in [len(piece)] if whole else range(2, len(piece) + 1):
            if piece[:end] not in vocabulary:
                vocabulary[piece[:end]] = len(vocabulary)
                merges.append(
                    (piece[:1], piece[1:]) if whole else (piece[: end - 1], piece[end - 1])
                )
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<eos>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.chat_template = CHATML
    return tokenizer


def test_the_first_spelling_that_suits_all_choices_of_a_record_is_taken():
    tokenizer = spaced_tokenizer("yes", "no", " yes", " no", " maybe")
    ids = tokenizer.convert_tokens_to_ids
    rows = [
        {"prompt": "q", "choices": ["yes", "no"], "answer": "yes"},
        {"prompt": "q", "choices": ["yes", "maybe"], "answer": "maybe"},
    ]
    both = packed(rows, tokenizer, spellings=["{}", " {}"], split="val")
    first, second = rows_of(both)
    assert first["choices"] == [ids("yes"), ids("no")] and both.spelled == {"{}": 1, " {}": 1}
    assert second["choices"] == [ids("Ġyes"), ids("Ġmaybe")]
    assert second["segment"][-1] == ids("Ġmaybe")
    turned = packed(rows, tokenizer, spellings=[" {}", "{}"], split="val")
    assert turned.spelled == {" {}": 2}
    told = r"a choice is not one distinct token: choices\[1\]='maybe' is 5 tokens: 'm' .* 'e'"
    with pytest.raises(RunError, match=rf"in\.jsonl:2: {told}"):
        packed(rows, tokenizer)


REFUSED = {
    "two tokens": (["yes", "perhaps"], r"choices\[1\]='perhaps' is 7 tokens: 'p' \(\d+\) 'e' "),
    "no token in any spelling": (
        ["yes", "no"],
        r"spelled '\({}\)': choices\[0\]='yes' is 3 tokens: '\(' .*; spelled ' {}!': choices",
    ),
}


def test_a_choice_that_is_no_token_is_refused_with_its_tokens():
    tokenizer = spaced_tokenizer("yes", "no")
    with pytest.raises(RunError, match=REFUSED["two tokens"][1]):
        packed([{"prompt": "q", "choices": ["yes", "perhaps"], "answer": 0}], tokenizer)
    with pytest.raises(RunError, match=REFUSED["no token in any spelling"][1]):
        packed(
            [{"prompt": "q", "choices": ["yes", "no"], "answer": 0}],
            tokenizer,
            spellings=["({})", " {}!"],
        )


def test_choices_that_share_a_token_are_refused():
    """A tokenizer that ignores white space reads both alike."""
    from data_builders import Regex

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "yes": 1, "no": 2, "q": 3}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), "removed", invert=True)
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<eos>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = CHATML
    row = {"prompt": "q", "choices": ["no", "yes", "no "], "answer": 0}
    with pytest.raises(
        RunError, match=r"choices\[2\]='no ' and choices\[0\] are both 1 token: 'no'"
    ):
        packed([row], tokenizer)


def test_a_choice_that_the_tokenizer_does_not_know_is_refused():
    tokenizer = word_tokenizer(WORDS)
    tokenizer.unk_token = "<unk>"
    row = {"prompt": "is the sky blue", "choices": ["yes", "never"], "answer": "yes"}
    with pytest.raises(RunError, match=r"choices\[1\]='never' is 1 token: '<unk>' \(0\), which st"):
        packed([row], tokenizer)


def test_an_answer_prefix_belongs_to_the_prompt_and_to_the_context_of_the_choice():
    tokenizer = spaced_tokenizer("yes", "no", " yes", " no")
    ids = tokenizer.convert_tokens_to_ids
    rows = [{"prompt": "q", "choices": ["yes", "no"], "answer": "no"}]
    options = {"answer_prefix": "So:", "spellings": ["{}", " {}"]}
    (found,) = rows_of(packed(rows, tokenizer, **options))
    text = rendered(tokenizer, [{"role": "user", "content": "q"}]) + "So:"
    assert decode(tokenizer, found["segment"][:-1]) == text
    assert found["choices"] == [ids("yes"), ids("no")]
    # behind a space, "yes" is no token of its own: the tokenizer joins the two
    options |= {"answer_prefix": "So: ", "spellings": ["{}"]}
    with pytest.raises(
        RunError, match=r"choices\[0\]='yes' is 4 tokens: .*' yes' .*prefix included"
    ):
        packed(rows, tokenizer, **options)
    rows = [{"prompt": "q", "choices": ["yesA", "noB"], "answer": 0}]
    with pytest.raises(RunError, match=r"choices\[0\]='yesA' is 5 tokens: .*prefix included"):
        packed(rows, tokenizer, **options)


def test_an_empty_think_block_can_stand_before_the_choice():
    tokenizer = byte_tokenizer(QWEN3)
    row = {"prompt": "q", "choices": ["A", "B"], "answer": "A"}
    (found,) = rows_of(packed([row], tokenizer, answer_prefix="<think>\n\n</think>\n\n"))
    closed = tokenizer.apply_chat_template(
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A"}], tokenize=False
    )
    assert decode(tokenizer, found["segment"]) == closed.removesuffix("<|im_end|>\n")


def test_records_that_are_too_long_follow_the_policy():
    rows = [{"prompt": "x" * n, "choices": ["A", "B"], "answer": "A"} for n in (5, 50, 6)]
    size = len(rows_of(packed(rows[:1]))[0]["segment"])
    exact = packed(rows[:1], seq_len=size)
    assert exact.rows == 1
    with pytest.raises(
        RunError, match=rf"in\.jsonl:1: {size} tokens do not fit seq_len={size - 1}"
    ):
        packed(rows[:1], seq_len=size - 1)
    with pytest.raises(RunError, match=r"1 record\(s\) cannot be used\nin\.jsonl:2: "):
        packed(rows, seq_len=size + 1)
    for policy, reason in (
        ("drop", "over-long"),
        ("truncate_source", "over-long: no source to shorten"),
    ):
        made = packed(rows, seq_len=size + 1, on_over_long=policy)
        assert made.rows == 2 and made.records == 3
        assert made.report.drops == {reason: 1}
        assert made.report.dropped_at == {reason: ["in.jsonl:2"]}
    kept = packed(rows, seq_len=size + 1, on_over_long="drop", split="eval")
    assert sorted(row["row_id"] for row in rows_of(kept)) == [0, 1]
    with pytest.raises(RunError, match=r"no record is left to pack \(over-long: 3\)"):
        packed(rows, seq_len=3, on_over_long="drop")
    with pytest.raises(RunError, match=r"no record is left to pack \(there are none\)"):
        packed([])


RAISING = (
    "{% if messages|length > 2 %}{{ raise_exception('two turns at most') }}{% endif %}" + CHATML
)


def test_records_that_cannot_be_packed_are_all_named_or_counted(tmp_path: Path):
    lines = [
        {"prompt": "q", "choices": ["A", "B"], "answer": "A"},
        {"prompt": "q", "choices": ["A", "B"], "answer": "C"},
        {"messages": EARLIER, "choices": ["A", "B"], "answer": "A"},
        {"prompt": "q", "choices": ["A", "BB"], "answer": "A"},
        {"prompt": "q", "choices": ["A", "B"], "answer": "A", "weight": 1e300},
        {"prompt": "r", "choices": ["A", "B"], "answer": "B"},
    ]
    source = Source([write_jsonl(tmp_path / "in.jsonl", lines)], tmp_path / "cache")
    tokenizer = byte_tokenizer(RAISING)

    def pack(policy: Any) -> Packed:
        report = Report()
        return pack_records(
            read_choices(source, report, on_bad_record=policy),
            tokenizer,
            seq_len=200,
            split="train",
            on_bad_record=policy,
            report=report,
            what="in.jsonl",
        )

    with pytest.raises(RunError) as caught:
        pack("error")
    head, *told = str(caught.value).splitlines()
    assert head == "in.jsonl: 4 record(s) cannot be used"
    file = tmp_path / "in.jsonl"
    for line, (number, words) in zip(told, [
        (2, "answer='C': must be one of the choices, letter by letter"),
        (3, "the chat template refuses the conversation: two turns at most"),
        (4, "a choice is not one distinct token: choices[1]='BB' is 2 tokens: 'B'"),
        (5, "weight=1e+300: does not fit float32"),
    ], strict=True):  # fmt: skip
        assert line.startswith(f"{file}:{number}: {words}")
    made = pack("skip")
    assert made.rows == 2 and sum(made.report.drops.values()) == 4
    assert made.report.drops["a choice is not one distinct token"] == 1


def test_mixtures_become_columns():
    rows = [
        {"prompt": "1", "choices": ["A", "B"], "answer": 0, "mix": "taste"},
        {"prompt": "2", "choices": ["A", "B"], "answer": 0, "mix": {"facts": 0.25, "taste": 0.5}},
        {"prompt": "3", "choices": ["A", "B"], "answer": 0, "mix": {"facts": 0}},
    ]
    made = packed(rows, split="val")
    assert made.mix_components == ("facts", "taste")
    assert [row["mix"] for row in rows_of(made)] == [[0, 1], [0.25, 0.5], [0, 0]]
    named = packed(rows, split="val", mix_components=["taste", "other", "facts"])
    assert [row["mix"] for row in rows_of(named)] == [[1, 0, 0], [0.5, 0, 0.25], [0, 0, 0]]
    with pytest.raises(RunError, match=r"in\.jsonl:1: mix='taste': is no mix component; did you"):
        packed(rows, mix_components=["facts", "tastes"])
    without = {"prompt": "4", "choices": ["A", "B"], "answer": 0}
    with pytest.raises(RunError, match=r"in\.jsonl:4: mix: not given, but .* facts, taste"):
        packed([*rows, without])
    skipped = packed([*rows, without], on_bad_record="skip")
    assert skipped.rows == 3 and skipped.report.drops == {"no mix in a set with mix components": 1}
    assert packed([*rows, without], split="eval").mix_components == ()


def test_observed_ids_are_written_if_every_record_has_an_answer():
    answered = [{"prompt": "1", "choices": ["A", "B"], "answer": 1},
                {"prompt": "2", "choices": ["B", "A"], "answer": "A"}]  # fmt: skip
    tokenizer = byte_tokenizer()
    (one,) = packed(answered, tokenizer, split="val")
    a, b = tokenizer.convert_tokens_to_ids(["A", "B"])
    assert one.observed_ids.tolist() == [b, a]
    assert one.input_ids[one.positions + 1].tolist() == [b, a]
    believed = {"prompt": "3", "choices": ["A", "B"], "target_probs": [0.75, 0.25]}
    (one,) = packed([*answered, believed], tokenizer, split="val")
    assert one.observed_ids is None
    assert one.input_ids[one.positions + 1].tolist() == [b, a, a]


def test_wrong_spellings_are_refused_before_anything_is_read():
    def never() -> Iterable[Any]:
        raise AssertionError("read")
        yield

    for spellings in ([], ["{"], ["{}", "answer"], ["{} {}"]):
        with pytest.raises(UserError, match="spellings"):
            pack_records(never(), byte_tokenizer(), seq_len=9, split="val", spellings=spellings)
