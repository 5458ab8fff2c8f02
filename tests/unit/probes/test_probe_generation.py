"""Generation figures from known outputs, and prompts from known records."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from curriculum.config import Model
from curriculum.data.records import QA, Instruction, Message, Messages
from curriculum.probes import ProbeSuite
from curriculum.probes.generation import (
    GenerationProbe,
    Prompt,
    build_prompt,
    model_positions,
    summarise,
)


@pytest.fixture(autouse=True)
def bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two abstentions, whatever the paraphrase bank holds."""
    known = {"The passages do not say.", "It is not stated."}
    monkeypatch.setattr("curriculum.probes.generation.is_abstention", lambda text: text in known)


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def probe(
    tokenizer: PreTrainedTokenizerFast, prompts: list[Prompt], max_tokens: int = 20
) -> GenerationProbe:
    stop = frozenset(ids(tokenizer, "<end><eos>"))
    return GenerationProbe(
        "qa.generation", "qa", "generative", prompts, tokenizer, stop, max_tokens, 1, 2
    )


def prompt(target: str, answerable: bool | None, reasoning: bool = False) -> Prompt:
    return Prompt("f:1", "Who?", [5, 6], target, answerable, reasoning)


def test_figures_of_known_outputs(tokenizer, evaluator) -> None:
    """Five records: right, wrong, wrong (abstains), abstains rightly, answers wrongly."""
    prompts = [prompt("Ann", True), prompt("Bob", True), prompt("Bob", True)]
    prompts += [prompt("It is not stated.", False), prompt("It is not stated.", False)]
    replies = ["Ann<end>", "Ann Ann Ann Ann Ann", "The passages do not say.<end>"]
    replies += ["It is not stated.<eos>", "Bob<end>"]
    evaluator.replies = [ids(tokenizer, reply) for reply in replies]
    result = probe(tokenizer, prompts).run(evaluator)
    assert result.values == {
        "records": 5,
        "exact_match": pytest.approx(1 / 3),
        "repeated_trigram_rate": pytest.approx((2 / 3) / 5),  # only Ann x 5: 3 trigrams, 1 distinct
        "stopped_share": pytest.approx(4 / 5),
        "most_common_output_share": pytest.approx(1 / 3),
        "abstention_precision": pytest.approx(1 / 2),
        "abstention_recall": pytest.approx(1 / 2),
        "abstention_f1": pytest.approx(1 / 2),
        "false_abstention_share": pytest.approx(1 / 3),
        "answerable": 3,
        "unanswerable": 2,
        "over_long": 1,
        "skipped": 2,
    }
    assert [row["output"] for row in result.rows] == [
        "Ann", "Ann Ann Ann Ann Ann", "The passages do not say.", "It is not stated.", "Bob",
    ]  # fmt: skip
    assert [row["abstained"] for row in result.rows] == [False, False, True, True, False]
    assert [row["stopped"] for row in result.rows] == [True, False, True, True, True]
    assert evaluator.prompts == [[5, 6]] * 5
    assert evaluator.stop_ids == set(ids(tokenizer, "<end><eos>"))


def test_the_most_common_output_is_over_all_records_but_for_qa(tokenizer, evaluator) -> None:
    prompts = [prompt("Ann", None), prompt("Bob", None), prompt("Bob", None), prompt("Orr", None)]
    evaluator.replies = [ids(tokenizer, f"{word}<end>") for word in ["Ann", "Ann", "Ann", "Orr"]]
    values = probe(tokenizer, prompts).run(evaluator).values
    assert values["most_common_output_share"] == 3 / 4
    assert values["exact_match"] == 2 / 4
    assert not any("abst" in key or "answerable" in key for key in values)


def test_new_tokens_only_up_to_the_limit(tokenizer, evaluator) -> None:
    evaluator.replies = [ids(tokenizer, "Ann Bob Orr king<end>")]
    (row,) = probe(tokenizer, [prompt("Ann Bob", None)], max_tokens=2).run(evaluator).rows
    assert (row["output"], row["stopped"], row["exact_match"]) == ("Ann Bob", False, True)


def test_an_empty_output_counts(tokenizer, evaluator) -> None:
    evaluator.replies = [[], ids(tokenizer, "<end>")]
    result = probe(tokenizer, [prompt("Ann", None)] * 2).run(evaluator)
    assert [row["output"] for row in result.rows] == ["", ""]
    assert result.values["stopped_share"] == 0.5
    assert result.values["most_common_output_share"] == 1.0


def test_figures_over_no_record_are_left_out() -> None:
    row: dict[str, Any] = {"exact_match": False, "repeated_trigram_rate": 0.0, "stopped": True}
    values = summarise([row | {"answer": "x", "answerable": False, "abstained": False}])
    assert values == {
        "records": 1,
        "repeated_trigram_rate": 0,
        "stopped_share": 1,
        "abstention_precision": 0,
        "abstention_recall": 0,
        "abstention_f1": 0,
        "answerable": 0,
        "unanswerable": 1,
    }


def test_reasoning_before_the_answer_is_not_compared(tokenizer, evaluator) -> None:
    evaluator.replies = [ids(tokenizer, "The king first.\n\nAnn<end>")]
    with_reasons = prompt("Reasons first.\n\nAnn", True, reasoning=True)
    assert probe(tokenizer, [with_reasons]).run(evaluator).values["exact_match"] == 1
    without = prompt("Reasons first.\n\nAnn", True)
    assert probe(tokenizer, [without]).run(evaluator).values["exact_match"] == 0


def test_the_prompt_ends_with_the_generation_prompt(tokenizer) -> None:
    built = build_prompt("f:1", QA(question="Who is the king?", answer="Ann"), tokenizer)
    assert built is not None
    expected = "<start>user\nQuestion: Who is the king?<end>\n<start>assistant\n"
    assert built.input_ids == ids(tokenizer, expected)
    assert (built.target, built.answerable) == ("Ann", True)
    assert built.excerpt == "Question: Who is the king?"


def test_a_conversation_is_asked_for_its_last_assistant_turn(tokenizer) -> None:
    turns = [("user", "Who?"), ("assistant", "Ann."), ("user", "king?"), ("assistant", "Bob.")]
    record = Messages(messages=[Message(role=role, content=text) for role, text in turns])
    built = build_prompt("f:1", record, tokenizer)
    assert built is not None
    before = "<start>user\nWho?<end>\n<start>assistant\nAnn.<end>\n<start>user\nking?<end>\n"
    assert built.input_ids == ids(tokenizer, before + "<start>assistant\n")
    assert (built.target, built.answerable) == ("Bob.", None)


def test_records_without_an_answer_have_no_prompt(tokenizer) -> None:
    asked = Messages(messages=[Message(role="user", content="Who?")])
    assert build_prompt("f:1", asked, tokenizer) is None
    called = Message(role="assistant", tool_calls=[{"name": "f", "arguments": {}}])
    calls = Messages(messages=[Message(role="user", content="Who?"), called])
    assert build_prompt("f:1", calls, tokenizer) is None


@pytest.mark.parametrize(
    ("answer", "given", "answerable"),
    [
        ("Ann", None, True),
        ("The passages do not say.", None, False),
        ("Ann", False, False),
        ("The passages do not say.", True, True),
    ],
)
def test_answerable_as_given_or_by_the_answer(tokenizer, answer, given, answerable) -> None:
    built = build_prompt("f:1", QA(question="Who?", answer=answer, answerable=given), tokenizer)
    assert built is not None
    assert built.answerable is answerable


def model(config: dict[str, Any] | None, path: str | None = None) -> Model:
    return Model("m", path, config, None, None, None)


def test_positions_of_a_model(tmp_path) -> None:
    assert model_positions(model({"max_position_embeddings": 64})) == 64
    assert model_positions(model({"n_positions": 32})) == 32
    assert model_positions(model({"text_config": {"max_position_embeddings": 16}})) == 16
    assert model_positions(model({"hidden_size": 8})) is None
    assert model_positions(model(None, str(tmp_path))) is None
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')
    assert model_positions(model(None, str(tmp_path))) == 128


def test_suite_from_files(tokenizer, evaluator, config, phase, write_jsonl) -> None:
    """The whole way from files: windows, prompts and pools, prepared once, run twice."""
    qa = [{"question": "Who is the king?", "answer": "Ann"}]
    qa += [{"question": "Who?", "answer": "It is not stated.", "answerable": False}]
    qa += [{"question": "Who? " * 40, "answer": "Bob"}]  # beyond the model's 64 positions
    tier = [{"query": "Who is Ann?", "positive": "Ann king", "negatives": ["Bob king"]}]
    phases = {
        "qa": phase("generative", "qa", [write_jsonl("qa.jsonl", qa)], seq_len=64,
                    data={"on_over_long": "drop"}),
        "text": phase("causal", "text", [write_jsonl("text.jsonl", [{"text": "Ann is king"}])]),
        "tier": phase("retrieval", "retrieval", [write_jsonl("tier.jsonl", tier)], seq_len=3,
                      retrieval={"temperature": 0.05, "documents": 2}),
    }  # fmt: skip
    suite = ProbeSuite.build(config(phases), tokenizer)
    assert suite.notes == []
    evaluator.replies = [ids(tokenizer, "Ann<end>"), ids(tokenizer, "Ann<end>")]
    seen: list[list[int]] = []

    def embed(texts, layer=-1, pooling="last"):
        import numpy as np

        seen[:] = [list(text) for text in texts]
        return np.eye(len(texts), dtype=np.float32)[[0, 1, 0]]

    evaluator.embeddings = embed
    for _ in range(2):
        found = {r.name: r for r in suite.run(evaluator)}
    assert {r.status for r in found.values()} == {"ok"}
    assert list(found) == [
        "qa.perplexity", "text.perplexity", "perplexity.generative", "perplexity.causal",
        "tier.retrieval", "qa.generation",
    ]  # fmt: skip
    # 'Ann', its end; 'It is not stated.' and its end. Text: Ann (not predicted) is king <eos>.
    assert found["qa.perplexity"].values["trained_tokens"] == 2 + 6
    assert found["text.perplexity"].values["trained_tokens"] == 3
    eos = tokenizer.eos_token_id
    assert seen == [
        [*ids(tokenizer, "Ann king"), eos],
        [*ids(tokenizer, "Bob king"), eos],
        [*ids(tokenizer, "Who is"), eos],
    ]
    assert found["tier.retrieval"].values["top1"] == 1
    generated = found["qa.generation"].values
    assert (generated["records"], generated["over_long"]) == (2, 1)
    assert (generated["answerable"], generated["unanswerable"]) == (1, 1)
    assert generated["exact_match"] == 1
    assert set(ids(tokenizer, "<end><eos>")) == evaluator.stop_ids


@pytest.mark.parametrize("policy", ["drop", "truncate_source"])
def test_a_held_out_set_that_is_dropped_whole_is_absent(
    tokenizer, evaluator, config, phase, write_jsonl, policy
) -> None:
    records = [{"instruction": "Who? " * 40, "response": "Bob"}] * 3
    phases = {"i": phase("generative", "instruction", [write_jsonl("i.jsonl", records)],
                         data={"on_over_long": policy})}  # fmt: skip
    suite = ProbeSuite.build(config(phases), tokenizer)
    results = suite.run(evaluator)
    assert [(r.name, r.status, r.values) for r in results] == [
        ("i.perplexity", "absent", {}),
        ("i.generation", "absent", {}),
    ]
    assert "over-long" in suite.notes[0]
    assert "3 beyond the model's positions" in suite.notes[1]


def test_retrieval_texts_are_those_of_training(tokenizer) -> None:
    from curriculum.data.records import RetrievalRecord
    from curriculum.data.render import render_retrieval
    from curriculum.probes.retrieval import build_pool

    record = RetrievalRecord(query="Who is Ann?", positive="Ann king of Orr", negatives=["Bob"])
    for seq_len in (2, 4, 32):
        pool = build_pool(iter([("f:1", record)]), tokenizer, seq_len, None)
        trained = render_retrieval(record, tokenizer, seq_len, 3)
        assert [*pool.queries, *pool.documents] == trained


def test_limits_hold(tokenizer, evaluator, config, phase, write_jsonl) -> None:
    records = [{"instruction": f"Who {'Ann ' * (i % 3)}?", "response": "Bob"} for i in range(12)]
    phases = {"i": phase("generative", "instruction", [write_jsonl("i.jsonl", records)],
                         packing="none")}  # fmt: skip
    limited = config(phases, generation_records=5, perplexity_windows=2)
    evaluator.replies = [ids(tokenizer, "Bob<end>")] * 5
    found = {r.name: r.values for r in ProbeSuite.build(limited, tokenizer).run(evaluator)}
    assert found["i.generation"]["records"] == 5
    assert found["i.perplexity"]["trained_tokens"] == 2 * 2
    assert Instruction(**records[0]).response == "Bob"
