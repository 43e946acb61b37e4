"""Texts with a class from your own table: csv, tsv or JSON, as one file or one file per split."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.options import REQUIRED, Kind, listing, near, stated
from tasks.config.options import text as word
from tasks.data.dataset import DataSet, Limited, Manifest, make
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read import own
from tasks.data.read.formats import count, damaged
from tasks.data.read.own import setting
from tasks.data.records import Example

KIND = "texts"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# Labels that mean that there is none.
MISSING = {"-", "?", "nan", "NaN", "NAN", "NA", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}


def columns() -> Any:
    """An option with the name of one column, or a list of one or two; the value is always a list."""

    def read(value: Any) -> list[str]:
        names = [value] if isinstance(value, str) else value
        listed = isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names)
        if not listed or not 1 <= len(names) <= 2 or len(set(names)) < len(names):
            raise ValueError("must be the name of a column, or two different ones as [premise,hypothesis]")
        return list(names)

    kind = Kind(list, read, "columns of texts")
    return dataclasses.field(default=REQUIRED, metadata={"kind": kind})


def names(help: str) -> Any:
    """An option with a list of labels, each a text or a number."""
    kind = listing(REQUIRED, word()).metadata["kind"]

    def read(value: Any) -> list[str]:
        listed = value if isinstance(value, list) else [value]
        return kind.read([own.cell(one) if isinstance(one, (int, float)) else one for one in listed])

    return dataclasses.field(default=REQUIRED, metadata={"kind": Kind(list, read, help)})


@dataclass
@stated("data/table")
class Options(Limited):
    """Columns of a table."""

    path: str | None = local("folder with files for train, dev and test, or one file to split")
    text: list = columns()
    label: str = word(help="column of the class")
    classes: list = names("the classes in their order; []: those of the training examples")
    drop: list = names("labels of rows to leave out, such as [-1] for unlabelled ones")

    def problems(self) -> list[str]:
        found = [f"label={self.label!r} is a column of data.text too"] if self.label in self.text else []
        if len(set(self.classes)) != len(self.classes) or len(self.classes) == 1:
            found.append(f"classes={self.classes} must be at least two different names")
        return found


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load examples; rows with a blank text are left out and counted."""
    files, fields = own.find(options.path, own.TABLES, own.NO_DEV), len(options.text)
    names = [*options.text, options.label]
    rows = {split: list(own.filled(own.rows(path, names), slice(fields))) for split, (path,) in files.items()}
    if options.drop:
        for split, (path,) in files.items():
            kept = [row for row in rows[split] if row.cells[-1] not in options.drop]
            count(f"rows of {path.name} left out: {options.label} is in data.drop", len(rows[split]) - len(kept))
            rows[split] = kept
    first = next(iter(rows.values()))  # rows of train, of a single file, or of a test set without train
    classes = list(options.classes) or _classes(first, options)
    number = {name: i for i, name in enumerate(classes)}
    for row in (row for found in rows.values() for row in found):
        if row.cells[-1] not in number:
            found = f"{options.label} is {row.cells[-1][:40]!r}{near(row.cells[-1], classes)}"
            step = f"correct it, or leave out such rows: {setting(drop=[*options.drop, row.cells[-1] or 'LABEL'])}"
            raise row.wrong(found, f"one of {', '.join(classes)[:400]}", row.cells[-1], step)
    splits = {s: [Example(row.cells[:fields], number[row.cells[-1]]) for row in rows[s]] for s in rows}
    whole = own.whole_of(files)
    texts = [] if whole is None else [" ".join(example.texts) for example in splits[whole]]
    dropped, notes = ([options.drop] if options.drop else []), []
    sources = own.sources(files, options.text, options.label, classes, *dropped, texts=texts)
    if whole is not None:
        parts, note = own.split(splits.pop(whole), files, texts, sources["train"], root, progress)
        splits = parts | splits
        notes.append(note)
    return make(
        manifest, KIND, lambda progress: splits, f"own table, {Path(str(options.path)).name}", sources=sources,
        limits=options.limits, notes=notes, about={"classes": classes, "fields": list(options.text)},
    )  # fmt: skip


def _classes(rows: Sequence[own.Row], options: Options) -> list[str]:
    """The labels of the rows: numbers sorted by value, followed by words in alphabetical order."""
    found: dict[str, None] = {}
    for row in rows:
        if not row.cells[-1]:
            blank = sum(not other.cells[-1] for other in rows)
            said = f"{options.label} is blank, in {blank:,} of {len(rows):,} rows"
            raise row.wrong(said, "a class; fill it in or delete the rows", blank)
        found[row.cells[-1]] = None
    if sign := own.joined(found):
        row = next(row for row in rows if sign in row.cells[-1])
        ways = setting(text=options.text[0], label=[options.label], separator=sign)
        step = f"read them as several labels: task=multilabel data=features {ways}; or keep each as one class: "
        said = f"{options.label} is {row.cells[-1][:40]!r}, which looks like several labels"
        raise row.wrong(said, "one class", row.cells[-1], step + setting(classes=list(found)))
    if not 2 <= len(found) <= max(len(rows) / 2, 2):
        raise damaged(
            rows[0].path if rows else Path(str(options.path)), f"{len(found):,} different values of {options.label} in {len(rows):,} rows",
            "a class for each row: at least two, most of them in several rows", step="correct data.label, or list data.classes", value=len(found),
        )  # fmt: skip
    ordered = sorted(found, key=lambda name: (0, float(name), name) if NUMBER.fullmatch(name) else (1, 0.0, name))
    if missing := sorted(MISSING & set(found)) or [name for name in ("-1",) if {"-1", "0"} <= set(found)]:
        n = sum(row.cells[-1] in missing for row in rows)
        said = f"{options.label} is {' or '.join(map(repr, missing))} in {n:,} of {len(rows):,} rows, which often means that there is none"
        step = f"leave these rows out: {setting(drop=missing)}; or keep them as a class: {setting(classes=ordered)}"
        row = next(row for row in rows if row.cells[-1] in missing)
        raise row.wrong(said, "a class for each row", missing, step)
    return ordered
