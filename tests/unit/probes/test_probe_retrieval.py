"""Ranks and pools against hand-made embeddings."""

from dataclasses import dataclass

import numpy as np
import pytest

from curriculum.data.records import RetrievalRecord
from curriculum.probes import retrieval

# The first axis of a document is its score for the query (1, 0).
QUERY = np.array([[1.0, 0.0]], dtype=np.float32)


def documents(*scores: float) -> np.ndarray:
    return np.array([[s, 1 - s] for s in scores], dtype=np.float32)


def rank(scores: list[float], positives: list[int]) -> int:
    return int(retrieval.ranks(QUERY, documents(*scores), [positives])[0])


def test_rank_counts_the_documents_above() -> None:
    assert rank([0.9, 0.5, 0.7, 0.1], [0]) == 1
    assert rank([0.9, 0.5, 0.7, 0.1], [1]) == 3
    assert rank([0.9, 0.5, 0.7, 0.1], [3]) == 4


def test_ties_count_against_the_positive() -> None:
    assert rank([0.5, 0.5, 0.5, 0.1], [0]) == 3
    assert rank([0.5, 0.5, 0.5, 0.5], [3]) == 4


def test_the_best_of_several_positives_counts_and_the_others_never_do() -> None:
    assert rank([0.9, 0.5, 0.7, 0.1], [1, 2]) == 2
    assert rank([0.5, 0.5, 0.5, 0.1], [0, 1, 2]) == 1
    assert rank([0.9, 0.8, 0.7, 0.6], [3, 0]) == 1


def test_broken_embeddings_rank_last_never_first() -> None:
    nan = float("nan")
    assert rank([nan, 0.5, 0.7, 0.1], [0]) == 4
    assert rank([nan, 0.5, nan, 0.1], [1]) == 1
    assert rank([nan, nan, nan], [1]) == 3
    assert rank([float("inf"), 0.5, 0.7], [0]) == 3
    broken = np.full((1, 2), nan, dtype=np.float32)
    assert retrieval.ranks(broken, documents(0.9, 0.1, 0.2), [[0]]).tolist() == [3]


def test_a_collapsed_model_has_the_worst_rank_for_every_query() -> None:
    same = np.tile(np.random.default_rng(0).normal(size=16).astype(np.float32), (300, 1))
    same /= np.linalg.norm(same, axis=1, keepdims=True)
    found = retrieval.ranks(same, same, [[i] for i in range(300)])
    assert found.tolist() == [300] * 300


def test_ranks_equal_a_loop_over_pairs_across_chunks() -> None:
    rng = np.random.default_rng(3)
    queries = rng.normal(size=(600, 8)).astype(np.float32)
    pool = rng.normal(size=(50, 8)).astype(np.float32)
    positives = [sorted(rng.choice(50, size=1 + i % 3, replace=False).tolist()) for i in range(600)]
    found = retrieval.ranks(queries, pool, positives)
    for query, right, got in zip(queries, positives, found, strict=True):
        score = [sum(float(a) * float(b) for a, b in zip(query, d, strict=True)) for d in pool]
        best = max(score[i] for i in right)
        assert got == 1 + sum(s >= best for i, s in enumerate(score) if i not in right)


def test_scores_by_hand() -> None:
    found = retrieval.scores(np.array([1, 2, 10, 11, 74]))
    assert found["top1"] == pytest.approx(1 / 5)
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 10 + 1 / 11 + 1 / 74) / 5)
    assert found["recall_at_10"] == pytest.approx(3 / 5)
    assert found["worst_rank"] == 74


@dataclass
class Letters:
    """A stand-in for `texts_ids`: one id a character, so that texts can be told apart."""

    seen: list[tuple[str, int]]

    def __call__(self, texts: list[str], tokenizer: object, seq_len: int) -> list[list[int]]:
        self.seen += [(text, seq_len) for text in texts]
        return [[ord(c) for c in text] for text in texts]


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    fake = Letters([])
    monkeypatch.setattr(retrieval, "texts_ids", fake)
    return fake


def test_pool_holds_each_document_once(letters: Letters) -> None:
    records = [
        ("f:1", RetrievalRecord(query="q1", positive="A doc", negatives=["B", "C"])),
        ("f:2", RetrievalRecord(query="q2", positive="b", negatives=["a  DOC", "D"])),
        ("f:3", RetrievalRecord(query="q3", positives=["C", "D"])),
    ]
    pool = retrieval.build_pool(iter(records), None, 9, None)  # type: ignore[arg-type]
    assert pool.document_texts == ["A doc", "B", "C", "D"]
    assert pool.positives == [[0], [1], [2, 3]]
    assert pool.query_texts == ["q1", "q2", "q3"]
    assert pool.query_ids == ["f:1", "f:2", "f:3"]
    assert {seq_len for _, seq_len in letters.seen} == {9}


def test_a_query_asked_twice_has_the_positives_of_both(letters: Letters) -> None:
    records = [
        ("f:1", RetrievalRecord(query="Who?", positive="A", negatives=["X"])),
        ("f:2", RetrievalRecord(query="who?", positive="B")),
    ]
    pool = retrieval.build_pool(iter(records), None, 9, None)  # type: ignore[arg-type]
    assert pool.positives == [[0, 2], [0, 2]]


def test_a_limit_takes_fewer_queries_but_the_full_pool(letters: Letters) -> None:
    records = [(str(i), RetrievalRecord(query=f"q{i}", positive=f"d{i}")) for i in range(10)]
    pool = retrieval.build_pool(iter(records), None, 9, 3)  # type: ignore[arg-type]
    assert len(pool.queries) == 3
    assert len(pool.documents) == 10
    for text, right in zip(pool.query_texts, pool.positives, strict=True):
        assert [pool.document_texts[i] for i in right] == ["d" + text[1:]]


def test_probe_over_the_full_pool(letters: Letters, evaluator) -> None:
    """Texts are single letters; documents score 0.9 (A), 0.8 (B), 0.1 (C) for every query."""
    records = [
        ("f:1", RetrievalRecord(query="q", positive="A", negatives=["B"])),
        ("f:2", RetrievalRecord(query="r", positive="C", negatives=["B"])),
    ]
    table = {"A": [0.9, 0.1], "B": [0.8, 0.2], "C": [0.1, 0.9], "q": [1, 0], "r": [1, 0]}
    evaluator.embeddings = lambda texts: np.array(
        [table[chr(ids[0])] for ids in texts], dtype=np.float32
    )
    pool = retrieval.build_pool(iter(records), None, 9, None)  # type: ignore[arg-type]
    probe = retrieval.RetrievalProbe("tier.retrieval", "tier", "retrieval", pool)
    result = probe.run(evaluator)
    assert result.values == {
        "top1": 0.5,
        "mrr": pytest.approx((1 + 1 / 3) / 2),
        "recall_at_10": 1.0,
        "worst_rank": 3,
        "queries": 2,
        "pool": 3,
    }
    assert [row["rank"] for row in result.rows] == [1, 3]
    assert result.reason is None

    table["A"] = [float("nan"), 0.1]
    broken = probe.run(evaluator)
    assert [row["rank"] for row in broken.rows] == [3, 2]
    assert broken.reason == "1 of 5 embeddings are not finite"
