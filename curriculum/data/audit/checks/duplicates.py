"""Findings about texts that occur twice where they should not."""

from collections.abc import Iterator

import numpy as np

from curriculum.data.audit.context import PhaseData, of
from curriculum.data.audit.facts import Flag, surplus
from curriculum.finding import Finding

_IN_RECORD = {"qa": "passage", "retrieval": "document"}


def duplicate_in_record(data: PhaseData) -> Iterator[Finding]:
    """Warning if records hold the same passage, document or message twice."""
    found = data.facts.has(Flag.REPEATS)
    if found.any():
        what = _IN_RECORD.get(data.phase.task, "message")
        yield data.finding(
            "data/duplicate-in-record",
            "warning",
            f"{of(int(found.sum()), len(found))} hold the same {what} twice",
            f"keep one of each {what} a record"
            + (
                "; an equal negative counts twice in the loss"
                if data.phase.task == "retrieval"
                else ""
            ),
            data.facts.addresses(found, data.limits.examples),
        )


def duplicate_documents(data: PhaseData) -> Iterator[Finding]:
    """Warning if whole records are equal; for running text and summaries, if the texts are.

    Several queries may well have the same positive, so retrieval records count as a whole.
    """
    texts = data.phase.task in ("text", "summarization")
    hashes = data.facts.hashes["prompt" if texts else "pair"]
    later = surplus(hashes)
    if not later.any():
        return
    what = "documents" if texts else "records"
    _, counts = np.unique(hashes, return_counts=True)
    yield data.finding(
        "data/duplicate-documents",
        "warning",
        f"{of(int(later.sum()), len(later), what)} repeat an earlier one up to case and white "
        f"space (the most frequent occurs {int(counts.max()):,} times)",
        f"remove the repeated {what} from the files of plan.phases.{data.name}.data.sources",
        data.facts.addresses(later, data.limits.examples),
    )


def id_conflict(data: PhaseData) -> Iterator[Finding]:
    """Warning if records of different content have the same `id`."""
    ids, contents = data.facts.hashes["identifier"], data.facts.hashes["pair"]
    named = np.flatnonzero(ids)
    both = np.unique(np.stack([ids[named], contents[named]]), axis=1)
    values, kinds = np.unique(both[0], return_counts=True)
    shared = values[kinds > 1]
    if len(shared):
        rows = named[np.isin(ids[named], shared)]
        rows = rows[np.argsort(ids[rows], kind="stable")]
        yield data.finding(
            "data/id-conflict",
            "warning",
            f"{len(shared):,} of {len(values):,} ids name records of different content "
            f"({len(rows):,} records)",
            "give every record an id of its own, or remove the field",
            data.facts.addresses(rows, data.limits.examples),
        )
