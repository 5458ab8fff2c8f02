"""`python -m curriculum data abstain IN OUT share=0.10 [key=value ...]`"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from curriculum.data.abstention.bank import BANK
from curriculum.data.abstention.build import SUFFIXES, build, field_of, rebuilt
from curriculum.data.abstention.options import Options, parse_options
from curriculum.data.abstention.own_bank import read_bank
from curriculum.data.abstention.report import summary, table
from curriculum.data.sources import Source, expand
from curriculum.errors import UserError
from curriculum.files import write_json
from curriculum.word_options import parted

USAGE = "usage: python -m curriculum data abstain IN OUT share=0.10 [key=value ...]"
HELP = f"""{USAGE}

Rebuilds a question-answering set: unanswerable records are found, said in many ways instead of
one, and brought to a share of the set. Writes OUT and OUT.report.json.

  IN    a path or a glob of qa records (question, answer, passages, reasoning, answerable)
  OUT   a new {", ".join(SUFFIXES)} file

  share=0.10               unanswerable records among those written; required
  seed=0                   what is drawn by chance; same input and seed, same bytes
  bank=FILE                own paraphrases: one a line or a JSON list, with the slots {{question}}
                           and {{entity}}
  synthesize=false         true: too few are made up for by taking passages from answerable ones
  abstention=TEXT          a target that is an abstention, if no rule would see it
  dominant=auto            false: a frequent target is never taken for an abstention
  dominant_share=0.01      share of all records from which on a target is frequent
  dominant_ratio=10        times the next target, from which on an unknown sentence dominates
  absent=auto              whether an answer that no passage holds marks a record: auto (where
                           nearly all others hold theirs) | true | false
  extractive_share=0.9     how many "nearly all" are
  on_bad_record=error      skip: leave bad records out and count them
  overwrite=false          true: OUT may exist
  output=table             json: print the report as one JSON object
  cache_dir=.curriculum/cache   where compressed and columnar sources are unpacked
"""


def main(argv: Sequence[str]) -> int:
    """Rebuild a set and print what was done; 0. `UserError` for a wrong command, `RunError` for bad
    records and a share that cannot be reached."""
    if any(word in ("-h", "--help") for word in argv):
        print(HELP, end="")
        return 0
    pattern, out, options = _arguments(argv)
    files, missing = expand([pattern])
    if missing:
        raise UserError(f"{pattern}: no such file; IN is a file or a glob that matches some")
    report_path = out.with_name(f"{out.name}.report.json")
    _check_out(files, out, report_path, options)
    bank = BANK if options.bank is None else read_bank(options.bank)
    built = build(files, out, options, bank)

    source = Source(files, options.cache_dir)

    def new_target(row: int) -> str:
        record = rebuilt(orjson.loads(source[row][1]), row, built.choice, bank)
        return str(record["answer"])

    report: dict[str, Any] = {
        "in": [str(file) for file in files],
        "out": str(out),
        "options": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(options).items()
            if not name.startswith("_")
        },
        **summary(built, options, bank, (partial(field_of, source, "answer"), new_target)),
    }
    write_json(report_path, report)
    print(orjson.dumps(report).decode() if options.output == "json" else table(report, files, out))
    return 0


def _arguments(argv: Sequence[str]) -> tuple[str, Path, Options]:
    """IN, OUT and the options."""
    paths, words = parted(argv)
    if len(paths) != 2 or any(path.startswith("-") for path in paths):
        given = f"got {' '.join(paths)}" if paths else "none given"
        raise UserError(f"data abstain takes IN and OUT, {given}; {USAGE}")
    options = parse_options(words)
    return paths[0], Path(paths[1]).expanduser(), options


def _check_out(files: Sequence[Path], out: Path, report: Path, options: Options) -> None:
    if not out.name.endswith(SUFFIXES) or out.name in SUFFIXES:
        raise UserError(f"{out}: OUT is a file NAME{', NAME'.join(SUFFIXES)}")
    for path in (out, report):
        if path.is_dir():
            raise UserError(f"{path}: a directory; OUT is a file")
        if path.exists() and any(path.samefile(file) for file in files):
            raise UserError(f"{path}: would replace a file that is read; name another OUT")
        if path.exists() and not options.overwrite:
            raise UserError(f"{path}: exists already; name another OUT, or give overwrite=true")
