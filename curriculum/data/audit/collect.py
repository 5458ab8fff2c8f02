"""Reads a source once, in order, and keeps the facts.

A second look, by index, is taken at few records: those whose text a message quotes, and
abstentions on a question that another record answers.
"""

import hashlib
import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np
import orjson

from curriculum.data import workers
from curriculum.data.audit import abstains
from curriculum.data.audit.compare import quoted, repeats, stands_in
from curriculum.data.audit.facts import HASHES, NUMBERS, Facts, Flag, frequent
from curriculum.data.audit.fields import Unreadable, View, view
from curriculum.data.audit.shape import shape
from curriculum.data.records import normalised
from curriculum.data.sources import Source

_RECORDS_A_WORKER = 10_000  # fewer are read sooner than a process starts and reports
_QUOTED = 10  # most frequent targets whose text is kept
_FREQUENT = 3  # a target is frequent from here on
_ANSWERS = 8  # answers to one question that are looked for
_REMEMBERED = 100_000  # targets looked up in the bank
_NONE = bytes(8)


def collect(source: Source, task: str, processes: int = 1) -> Facts:
    """The facts of a source, whatever the number of processes that read it. Records that cannot
    be read are counted, not refused."""
    processes = min(processes, len(source) // _RECORDS_A_WORKER)
    if processes > 1 and workers.may_fork():
        borders = np.linspace(0, len(source), processes + 1, dtype=int).tolist()
        job = partial(_part, source, task)
        with ProcessPoolExecutor(
            processes, get_context("fork"), workers.follow, (os.getpid(),)
        ) as pool:
            parts = list(pool.map(job, borders, borders[1:]))
    else:
        parts = [_part(source, task, 0, len(source))]
    facts, indices = _joined(parts, source)
    again = _Again(source, task, indices)
    return _with_answers_elsewhere(_with_texts(facts, again), again)


@dataclass
class _Part:
    """Some consecutive records: indices of the readable ones, a row of HASHES and one of NUMBERS
    for each, and per file what its addresses have between name and number."""

    indices: "array[int]"
    hashes: bytearray
    numbers: "array[int]"
    separators: dict[int, str]


def _part(source: Source, task: str, start: int, stop: int) -> _Part:
    rows = _Rows([str(file) for file in source.files], task)
    indices = array("q")
    for index in range(start, stop):
        address, line = source[index]
        try:
            rows.add(str(address), view(task, orjson.loads(line)))
        except (Unreadable, orjson.JSONDecodeError):
            continue
        indices.append(index)
    return _Part(indices, rows.hashes, rows.numbers, rows.separators)


def _joined(parts: Sequence[_Part], source: Source) -> tuple[Facts, np.ndarray]:
    indices = np.concatenate([np.frombuffer(part.indices, np.int64) for part in parts])
    hashes = np.concatenate([np.frombuffer(part.hashes, "<u8") for part in parts])
    numbers = np.concatenate([np.frombuffer(part.numbers, np.int64) for part in parts])
    hashes, numbers = hashes.reshape(-1, len(HASHES)), numbers.reshape(-1, len(NUMBERS))
    separators = {place: text for part in parts for place, text in part.separators.items()}
    facts = Facts(
        records=len(source),
        bad=len(source) - len(indices),
        hashes={name: hashes[:, place].copy() for place, name in enumerate(HASHES)},
        numbers={name: numbers[:, place].copy() for place, name in enumerate(NUMBERS)},
        texts={},
        separators=[separators.get(place, "") for place in range(len(source.files))],
        files=[str(file) for file in source.files],
    )
    return facts, indices


class _Rows:
    """Columns that grow record by record."""

    def __init__(self, files: list[str], task: str) -> None:
        self.separators: dict[int, str] = {}
        self.hashes = bytearray()  # a row of HASHES a record
        self.numbers = array("q")  # a row of NUMBERS a record
        self._files, self._task = files, task
        self._places: dict[str, int] = {}  # address without its number -> index of the file
        self._bank: dict[bytes, bool] = {}

    def add(self, address: str, seen: View) -> None:
        """Append the facts of one record."""
        normals = [normalised(text) for _, text in seen.turns]
        prompt = "\x1e".join(
            role + " " + n for (role, _), n in zip(seen.turns, normals, strict=True)
        )
        exact = "\x1e".join(role + " " + text for role, text in seen.turns)
        target = normalised(seen.target or "")
        question = normalised(seen.question or "")
        prompt_hash, exact_hash, target_hash = _hash(prompt), _hash(exact), _hash(target)
        exact_rest = f"{seen.target}\x1d{seen.rest}"
        rest = f"{target}\x1d{normalised(seen.rest)}"
        flags, wording = 0, _NONE
        if len(seen.distinct) > 1 and repeats(seen.distinct):
            flags |= Flag.REPEATS
        if seen.answerable:
            flags |= Flag.ANSWERABLE
        if seen.gold and any(stands_in(seen.gold, seen.passages)):
            flags |= Flag.ANSWER_IN_FIELD
        if target and (seen.answerable is False or self._from_bank(seen, target_hash)):
            flags |= Flag.ABSTAINS
            wording = _hash(abstains.wording(target, question or prompt))
        lengths, texts = (0, 0, 0), ("", "", "")
        if seen.asked is not None:
            own = seen.question is seen.asked
            found = shape(seen.asked, question if own else normalised(seen.asked))
            flags |= found.flags
            lengths, texts = found.lengths, found.texts
            if question and (not own or seen.holder):
                holder = prompt if not own else normalised(seen.holder or "")
                held = Flag.HOLDS_QUESTION if question in holder else 0
                flags |= Flag.NAMES_QUESTION | held
        self.hashes += b"".join(
            (
                prompt_hash,
                exact_hash,
                _digest(prompt_hash + _encoded(rest)),
                _digest(exact_hash + _encoded(exact_rest)),
                target_hash,
                _hash(question),
                _hash(seen.identifier),
                wording,
                *map(_hash, texts),
            )
        )
        prefix = address.rstrip("0123456789")
        if prefix not in self._places:
            self._places[prefix] = self._file_of(prefix)
        number = int(address[len(prefix) :])
        self.numbers.extend((self._places[prefix], number, flags, *lengths))

    def _file_of(self, prefix: str) -> int:
        """The longest file name that an address begins with; notes what comes after it."""
        fitting = [place for place, name in enumerate(self._files) if prefix.startswith(name)]
        place = max(fitting, key=lambda place: len(self._files[place]))
        self.separators[place] = prefix[len(self._files[place]) :]
        return place

    def _from_bank(self, seen: View, target: bytes) -> bool:
        if self._task not in abstains.TASKS:
            return False
        known = self._bank.get(target)
        if known is None:
            if len(self._bank) >= _REMEMBERED:
                self._bank.clear()
            known = self._bank[target] = abstains.is_from_bank(seen.target or "")
        return known


class _Again:
    """Readable records of a source by place, for a second look."""

    def __init__(self, source: Source, task: str, indices: np.ndarray) -> None:
        self.task = task
        self._source, self._indices = source, indices

    def __getitem__(self, place: int) -> View:
        return view(self.task, orjson.loads(self._source[int(self._indices[place])][1]))


def _with_texts(facts: Facts, again: _Again) -> Facts:
    """Quotes the most frequent targets and wordings, and marks those that read like abstentions:
    only beside its many copies is such a text told from an answer that means it."""
    targets, flags = facts.hashes["target"], facts.numbers["flags"].copy()
    wordings = facts.hashes["wording"].copy()
    texts: dict[int, str] = {}
    values, counts = frequent(targets)
    for value, count in zip(values[:_QUOTED], counts[:_QUOTED], strict=True):
        rows = np.flatnonzero(targets == value)
        text = again[int(rows[0])].target or ""
        texts[int(value)] = quoted(text)
        if (
            again.task in abstains.TASKS
            and count >= _FREQUENT
            and abstains.reads_like_abstention(text)
        ):
            unknown = rows[(flags[rows] & Flag.ABSTAINS) == 0]
            flags[unknown] |= Flag.ABSTAINS
            wordings[unknown] = value
    values, counts = frequent(wordings)
    for value in values[:1]:
        row = int(np.flatnonzero(wordings == value)[0])
        texts[int(value)] = quoted(again[row].target or "")
    hashes = facts.hashes | {"wording": wordings}
    return replace(facts, hashes=hashes, numbers=facts.numbers | {"flags": flags}, texts=texts)


def _with_answers_elsewhere(facts: Facts, again: _Again) -> Facts:
    """Marks abstentions on a question that another record answers with words of its own passages,
    where these passages hold that answer too."""
    flags, questions = facts.numbers["flags"].copy(), facts.hashes["question"]
    gives_up = facts.has(Flag.ABSTAINS)
    asked = np.intersect1d(questions[gives_up], questions[~gives_up])
    candidates = np.flatnonzero(np.isin(questions, asked[asked != 0]))
    candidates = candidates[np.argsort(questions[candidates], kind="stable")]
    _, starts = np.unique(questions[candidates], return_index=True)
    for group in np.split(candidates, starts[1:]):
        answered = [again[int(row)] for row in group[~gives_up[group]][:_ANSWERS]]
        answers = [
            seen.target
            for seen in answered
            if seen.target and any(stands_in([seen.target], seen.passages))
        ]
        for row in group[gives_up[group]] if answers else ():
            if any(stands_in(answers, again[int(row)].passages)):
                flags[row] |= Flag.ANSWER_ELSEWHERE
    return replace(facts, numbers=facts.numbers | {"flags": flags})


def _hash(text: str) -> bytes:
    return _digest(_encoded(text)) if text else _NONE


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
