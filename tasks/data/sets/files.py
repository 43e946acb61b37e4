"""Pairs of texts from your own files, for translation and summarization.

For each of train, dev and test, a folder has `train.en` and `train.fr` with one text per line, or `train.tsv` (source,
tab, target), or `train.jsonl` or `train.csv` with the names of the languages as keys or columns. A single tsv, csv or
jsonl file is split by content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated, text
from tasks.data.dataset import DataSet, Limited, Manifest, Splits, make
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read import own
from tasks.data.read.formats import count, damaged, numbered
from tasks.data.read.lines import LinePairs
from tasks.data.read.pairs import Translated
from tasks.data.records import Pair, clean, subset

KIND = "pairs"
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8})*")


@dataclass
@stated("data/files")
class Options(Translated, Limited):
    """Names of the two sides; if both languages are the same, the sides are named source and target."""

    path: str | None = local("folder with files for train, dev and test, or one file to split")
    source_lang: str = text(help="language code: the rules of Moses, and what the files or columns are called")
    target_lang: str = text(help="as source_lang")
    source: str | None = text(optional=True, help="what they are called instead; a tsv file then has a head line")
    target: str | None = text(optional=True, help="as source")

    def problems(self) -> list[str]:
        wrong = {option: code for option, code in self.about().items() if not LANGUAGE.fullmatch(code)}
        found = [f"{option}={code!r} must be a language code, as en or pt_br" for option, code in wrong.items()]
        if self.source is not None and self.source == self.target:
            found.append(f"target={self.target!r} is the source too; name two different columns")
        return found


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load pairs; those with a blank side are left out and counted."""
    names = sides(options)
    layouts = ((f".{names[0]}", f".{names[1]}"), *own.TABLES)
    files = own.find(options.path, layouts, own.NO_DEV)
    headed = options.source is not None or options.target is not None
    whole = own.whole_of(files)
    pairs = [] if whole is None else _pairs(files[whole], names, headed)
    texts = [pair.source for pair in pairs]
    sources, notes, splits = own.sources(files, names, headed, texts=texts), [], {}
    if whole is not None:
        splits, note = own.split(pairs, files, texts, sources["train"], root, progress)
        notes.append(note.replace("split by content: texts", "split by content: sources", 1))

    def read(progress: Progress) -> Splits:
        rest = {split: paths for split, paths in files.items() if split not in (own.WHOLE, *splits)}
        return splits | {split: _pairs(paths, names, headed) for split, paths in rest.items()}

    place = Path(str(options.path)).name
    return make(
        manifest, KIND, read, f"own pairs of texts, {place}", sources=sources, limits=options.limits, notes=notes,
        about=options.about(),
    )  # fmt: skip


def sides(options: Options) -> tuple[str, str]:
    """The names of source and target in file names, columns and keys."""
    codes = options.source_lang, options.target_lang
    source, target = codes if codes[0] != codes[1] else ("source", "target")
    return options.source or source, options.target or target


def _pairs(paths: tuple[Path, ...], names: tuple[str, str], headed: bool) -> Sequence[Pair]:
    if len(paths) == 2:
        lines = LinePairs(paths[0], paths[1:])
        kept = [i for i, pair in enumerate(lines) if pair.source and pair.references[0]]
        count(f"lines of {paths[0].name} and {paths[1].name} left out: a blank text", len(lines) - len(kept))
        return lines if len(kept) == len(lines) else subset(lines, kept)
    (path,) = paths
    found = own.rows(path, names) if headed or own.ending(path) != ".tsv" else _two_columns(path)
    pairs = [Pair(row.cells[0], (row.cells[1],)) for row in own.filled(found, slice(2))]
    if not pairs:
        raise damaged(path, "every text is blank", "pairs of texts", step=own.STEP)
    return pairs


def _two_columns(path: Path) -> Iterator[own.Row]:
    """Read a tsv file without a header line."""
    form = own.dialect(path)
    if form["delimiter"] == "\t" and not form.get("quoting"):
        step = "add a head line, and set data.source and data.target to its names"
        raise damaged(path, "its cells are in quotes", "source, tab, target", line=1, step=step)
    for number, line in numbered(path):
        if not line.strip():
            continue  # as in tables, blank lines are skipped
        row = own.Row(tuple(map(clean, line.split("\t"))), path, number)
        if len(row.cells) != 2:
            parts, headed = len(row.cells), "for a head line set data.source and data.target to its names"
            raise row.wrong(f"{parts} column(s)", f"source, tab, target and no head line; {headed}", parts)
        yield row
