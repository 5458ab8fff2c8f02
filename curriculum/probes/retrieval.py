"""Retrieval over the full pool: where the right document ranks among all held-out documents.

Ranking a dozen in-batch candidates saturates: everything looks right. Here each query is ranked
against every distinct document of the held-out set by dot product of normalised embeddings, and
the worst rank is shown beside the means.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from curriculum.config import Config
from curriculum.data.records import RetrievalRecord, normalised
from curriculum.data.render import closed_text, tokenize
from curriculum.probes.base import (
    Evaluator,
    Heldout,
    Prepared,
    ProbeResult,
    heldout_sets,
    probe_name,
    read_records,
    spread,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KIND = "retrieval"
RECALL_AT = 10
# Scores closer than this are ties: about the error of a dot product of fp32 embeddings.
TIE = 1e-6
_CHUNK = 256


@dataclass(frozen=True)
class Pool:
    """All distinct documents, and for each query the pool indices of its positives."""

    queries: list[list[int]]
    query_ids: list[str]
    query_texts: list[str]
    positives: list[list[int]]
    documents: list[list[int]]
    document_texts: list[str]


@dataclass(frozen=True)
class RetrievalProbe:
    """Ranks of one phase's held-out queries in its full pool."""

    name: str
    phase: str
    objective: str
    pool: Pool
    layer: int = -1
    pooling: Literal["last", "mean"] = "last"
    kind: str = KIND
    reason: str | None = None

    def run(self, evaluator: Evaluator) -> ProbeResult:
        pool = self.pool
        embedded = evaluator.embed([*pool.documents, *pool.queries], self.layer, self.pooling)
        documents, queries = embedded[: len(pool.documents)], embedded[len(pool.documents) :]
        found = ranks(queries, documents, pool.positives)
        bad = int((~np.isfinite(embedded).all(axis=1)).sum())
        reason = f"{bad} of {len(embedded)} embeddings are not finite" if bad else None
        values = scores(found) | {"queries": len(queries), "pool": len(documents)}
        rows = [
            {
                "record": pool.query_ids[i],
                "query": pool.query_texts[i],
                "positive": pool.document_texts[pool.positives[i][0]],
                "rank": int(rank),
            }
            for i, rank in enumerate(found)
        ]
        return ProbeResult(self.name, self.phase, values, rows, KIND, self.objective, "ok", reason)


def ranks(
    queries: np.ndarray, documents: np.ndarray, positives: Sequence[Sequence[int]]
) -> np.ndarray:
    """int64 [Q]: 1 + the number of other documents that score at least the best positive.

    `queries` [Q, hidden] and `documents` [N, hidden], any float type; `positives[q]` indexes
    documents and is not empty. Ties (within `TIE`) count against the positive. The other
    positives of a query never count. A score that is not finite is below every finite one and ties
    with its like: a broken embedding ranks last.
    """
    found = np.empty(len(queries), dtype=np.int64)
    wide = documents.astype(np.float64)
    for start in range(0, len(queries), _CHUNK):
        # Quietly: NaN in, NaN out, and NaN is dealt with on the next line.
        with np.errstate(all="ignore"):
            block = queries[start : start + _CHUNK].astype(np.float64) @ wide.T
        block = np.where(np.isfinite(block), block, -np.inf)
        for row, right in zip(block, positives[start : start + _CHUNK], strict=True):
            best = row[list(right)].max()
            others = row >= best - TIE
            others[list(right)] = False
            found[start] = 1 + others.sum()
            start += 1
    return found


def scores(found: np.ndarray) -> dict[str, float]:
    """Over ranks [Q >= 1]: `top1`, `mrr`, `recall_at_10` (share of ranks <= 10), `worst_rank`.

    `mrr` is the mean of 1/rank (Voorhees, 1999).
    """
    return {
        "top1": float((found == 1).mean()),
        "mrr": float((1.0 / found).mean()),
        f"recall_at_{RECALL_AT}": float((found <= RECALL_AT).mean()),
        "worst_rank": int(found.max()),
    }


def prepare(config: Config, tokenizer: "PreTrainedTokenizerFast") -> list[Prepared]:
    """A probe for each retrieval held-out set of the (scaled) plan."""
    return [_prepare(config, held, tokenizer) for held in heldout_sets(config, ("retrieval",))]


def _prepare(config: Config, held: Heldout, tokenizer: "PreTrainedTokenizerFast") -> Prepared:
    if held.reason:
        return held.absent(KIND, held.reason)
    pool = build_pool(
        read_records(held), tokenizer, held.settings.seq_len, config.probes.retrieval_queries
    )
    if not pool.queries:
        return held.absent(KIND, "the held-out files hold no record")
    name, how = probe_name(held.phase, KIND), held.settings.retrieval
    if how is None:
        return RetrievalProbe(name, held.phase, held.objective, pool)
    return RetrievalProbe(name, held.phase, held.objective, pool, how.layer, how.pooling)


def build_pool(
    records: Iterable[tuple[str, RetrievalRecord]],
    tokenizer: "PreTrainedTokenizerFast",
    seq_len: int,
    limit: int | None,
) -> Pool:
    """The pool of (id, retrieval record) pairs: every document once, `limit` queries spread evenly.

    Documents are told apart by `records.normalised`. What is a positive of a query in any record
    is one of its positives in all. Texts are cut to `seq_len - 1` tokens and the end token, as in
    training.
    """
    texts: dict[str, str] = {}
    right: dict[str, set[str]] = defaultdict(set)
    asked: list[tuple[str, str]] = []
    for record_id, record in records:
        asked.append((record_id, record.query))
        for text in (*record.answers, *(record.negatives or ())):
            texts.setdefault(normalised(text), text)
        right[normalised(record.query)].update(map(normalised, record.answers))
    place = {key: index for index, key in enumerate(texts)}
    chosen = [asked[index] for index in spread(len(asked), limit)]
    return Pool(
        queries=texts_ids([query for _, query in chosen], tokenizer, seq_len),
        query_ids=[record_id for record_id, _ in chosen],
        query_texts=[query for _, query in chosen],
        positives=[sorted(place[key] for key in right[normalised(q)]) for _, q in chosen],
        documents=texts_ids(list(texts.values()), tokenizer, seq_len),
        document_texts=list(texts.values()),
    )


def texts_ids(
    texts: Sequence[str], tokenizer: "PreTrainedTokenizerFast", seq_len: int
) -> list[list[int]]:
    """Token ids of queries or documents as in training: cut to `seq_len - 1`, then EOS."""
    return [
        closed_text(ids, tokenizer, seq_len) for ids in tokenize(texts, tokenizer, special=True)
    ]
