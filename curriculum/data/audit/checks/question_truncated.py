"""`data/question-truncated`: prompts whose question an earlier truncation cut away.

Two kinds of evidence. A field of the record names the question, and the prompt does not hold it.
Or prompts that were cut at a common length, in mid-sentence, lack what marks the question in the
others: a label, a question mark near the end, a last line or the way it begins. A missing mark
alone says nothing, since sets mix kinds of prompts; nor does a common length alone.
"""

from collections.abc import Iterator

import numpy as np

from curriculum.data.audit.context import PhaseData, of
from curriculum.data.audit.facts import Facts, Flag, frequent
from curriculum.data.examples import TOO_LONG_WITHOUT_SOURCE
from curriculum.finding import Finding

_FEWEST = 3
_BUNCH = 0.01  # of the records, at the length of a cut
_HELD = 0.5  # of the other records have the mark
_DROP = 0.5  # of that share, at most, do where prompts are cut
_OPEN = 0.7  # of what is cut ends in mid-sentence
_SPREAD = 0.35  # of lengths around a cut by tokens, in medians, nine tenths less one tenth
_LONGER = 0.10  # of the others, at most, are longer than what such a cut leaves
_LONG = 200  # characters: nobody cuts by fewer tokens, and short sentences are much alike
_SHORTER = 0.50  # of the others, at least, are shorter than nearly all of what it leaves
_OTHERS = 0.10  # of the records, at least, are not cut
_NEAR = 0.5  # of the length of the cut, which some of the others reach
_NEAR_SHARE = 0.05
_NEARLY_ALL = 0.9
_CLEARLY = 2  # times more records that a mark must tell to displace a mark of a question
_SLACK = 2  # characters that stripping takes after a cut
_RARE = 0.05  # of the records with a field of the question hold it: the field is something else


def question_truncated(data: PhaseData) -> Iterator[Finding]:
    """Error if more than 2% of the records lack their question, warning for fewer."""
    facts = data.facts
    by_field = _lacks_named(facts)
    by_shape, why = _cut(facts, data.phase.task)
    by_shape &= ~facts.has(Flag.HOLDS_QUESTION) | (data.phase.task == "qa")
    found = by_field | by_shape
    count, total = int(found.sum()), len(facts)
    if count:
        reasons = [f"{int(by_field.sum()):,} do not hold the question that a field names"]
        reasons = reasons if by_field.any() else []
        reasons += [why] if by_shape.any() else []
        yield data.finding(
            "data/question-truncated",
            "error" if count / total > data.limits.max_question_truncated_share else "warning",
            f"{of(count, total)} have lost their question: {'; '.join(reasons)}",
            "build the file again with the question first, or cut passages and never the whole "
            "prompt: qa records (question, passages, answer) with "
            f"plan.phases.{data.name}.data.on_over_long=truncate_source are cut that way",
            facts.addresses(found, data.limits.examples),
        )
    if data.windows is not None and (dropped := data.windows.drops.get(TOO_LONG_WITHOUT_SOURCE, 0)):
        noted = [
            place
            for chunk in data.windows.manifest.chunks
            for place in chunk.dropped_at.get(TOO_LONG_WITHOUT_SOURCE, [])
        ]
        yield data.finding(
            "data/question-truncated",
            "warning",
            f"{of(dropped, data.records_read, 'records read')} are dropped: seq_len="
            f"{data.phase.seq_len} has no room for question and target even without passages",
            f"raise plan.phases.{data.name}.seq_len",
            noted,
        )


def _lacks_named(facts: Facts) -> np.ndarray:
    """bool [R]: records whose prompt lacks the question that a field names, where most or at
    least some of the prompts hold theirs."""
    named, holds = facts.has(Flag.NAMES_QUESTION), facts.has(Flag.HOLDS_QUESTION)
    lacks = named & ~holds
    if not named.any() or holds[named].mean() < _RARE:
        return np.zeros(len(facts), dtype=bool)
    return lacks


def _cut(facts: Facts, task: str) -> tuple[np.ndarray, str]:
    """bool [R]: cut prompts that lack the mark most others hold, and a description.

    Of several marks and lengths the one that tells most, marks of a question before others.
    """
    asks = facts.has(Flag.ASKS)
    is_open = asks & ~facts.has(Flag.CLOSED)
    best, why = np.zeros(len(facts), dtype=bool), ""
    for marks in (_question_marks(facts, task), _last_line_marks(facts, asks, task)):
        before = best.sum() * _CLEARLY
        for mark, name, needed in marks:
            for lacks, held, where in _lacking(facts, asks, is_open, mark):
                if held >= needed and lacks.sum() > max(best.sum(), before):
                    best = lacks
                    why = (
                        f"they end in mid-sentence at {where}, without {name}, which {held:.0%} "
                        "of the others have"
                    )
    return best, why


def _lacking(
    facts: Facts, asks: np.ndarray, is_open: np.ndarray, mark: np.ndarray
) -> Iterator[tuple[np.ndarray, float, str]]:
    """Cut prompts without a mark, the share of the other prompts with it, and where the cut is.

    By exact length: many prompts have it, most end in mid-sentence, and few of them the mark. By
    tokens, where lengths only come close: those that lack the mark are the longest of all.
    """
    fewest = max(_FEWEST, _BUNCH * asks.sum())
    lengths = facts.numbers["characters"]
    for cut, where in _bunches(facts, asks):
        others = asks & ~cut
        length = int(lengths[cut].max())
        if (
            cut.sum() >= fewest
            and _comparable(lengths[others], length, fewest, nearby=length < _LONG)
            and is_open[cut].mean() >= _OPEN
        ):
            held = float(mark[others].mean())
            if mark[cut].mean() <= _DROP * held:
                yield cut & is_open & ~mark, held, where
    without = is_open & ~mark
    others = asks & mark
    if without.sum() < fewest:
        return
    low, middle, high = np.quantile(lengths[without], (0.1, 0.5, 0.9))
    as_long = asks & ~mark & (lengths >= low)
    if middle < _LONG or is_open[as_long].mean() < _OPEN:
        return
    if not _comparable(lengths[others], middle, fewest):
        return
    longer = (lengths[others] > middle).mean()
    shorter = (lengths[others] < low).mean()
    if (high - low) <= _SPREAD * middle and longer <= _LONGER and shorter >= _SHORTER:
        held = float(mark[asks & ~without].mean())
        yield without, held, f"about {int(middle):,} characters, longer than the others"


def _comparable(others: np.ndarray, length: float, fewest: float, nearby: bool = True) -> bool:
    """Whether the other prompts are many, and, if `nearby`, of a kind with those cut at `length`:
    some come near it. A set of questions and letters is not one kind of prompt, though short
    letters may well be of one length."""
    if len(others) < max(_FEWEST, _OTHERS * fewest / _BUNCH):
        return False
    return not nearby or float((others >= _NEAR * length).mean()) >= _NEAR_SHARE


def _bunches(facts: Facts, asks: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Prompts of the length at which most of the long ones end, by unit of length."""
    for unit in ("characters", "bytes", "words"):
        lengths = facts.numbers[unit]
        present = lengths[asks]
        if not len(present):
            return
        length = int(present.max())
        if unit == "words":  # coarse: some number of words is always common
            yield asks & (lengths == length), f"{length:,} words"
            continue
        values, counts = np.unique(present[present >= np.median(present)], return_counts=True)
        length = int(values[np.argmax(counts)])
        for slack in (0, _SLACK):
            near = asks & (lengths <= length) & (lengths >= length - slack)
            yield near, f"{length:,} {unit}"


Mark = tuple[np.ndarray, str, float]  # bool [R], its name, share of the others that must have it


def _question_marks(facts: Facts, task: str) -> Iterator[Mark]:
    """What marks a question. Running text asks now and then, so there it must be the rule."""
    yield facts.has(Flag.LABELLED), "a label such as 'Question:'", _HELD
    rule = _NEARLY_ALL if task == "text" else _HELD
    yield facts.has(Flag.MARKED), "a question mark near the end", rule
    if task == "qa":
        yield facts.has(Flag.CLOSED), "a sentence's end", _HELD


def _last_line_marks(facts: Facts, asks: np.ndarray, task: str) -> Iterator[Mark]:
    """What most prompts end with, whatever it says."""
    for column, name in (
        ("last_line", "the usual last line"),
        ("opening", "the usual beginning of the last line"),
        ("label", "the usual last label"),
    ):
        values, _ = frequent(facts.hashes[column][asks])
        if len(values) and task != "text":
            yield facts.hashes[column] == values[0], name, _HELD
