"""Pairs of texts, and texts with a class, from your own files.

files   for each of train, dev and test, a folder has `train.en` and `train.fr` with one text per line, or `train.tsv`
        (source, tab, target), or `train.jsonl` or `train.csv` with the names of the languages as keys or columns
table   csv, tsv or JSON with columns for one or two texts and a class

A single file is split by content.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repro.errors import near
from repro.options import option
from repro.options import text as word
from tasks.data.dataset import DataSet, Loader, Manifest, make
from tasks.data.errors import DataError
from tasks.data.progress import Progress
from tasks.data.read import formats, own
from tasks.data.read.formats import count, damaged
from tasks.data.read.labelled import AS_LISTS, is_list, joined
from tasks.data.read.lines import paired
from tasks.data.read.own import setting
from tasks.data.records import Example, Pair, clean, subset

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8})*")


def load_pairs(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load pairs; those with a blank side are left out and counted."""
    names = sides(options)
    files = own.find(options.path, ((f".{names[0]}", f".{names[1]}"), *own.FILES), own.NO_DEV)
    headed = options.source is not None or options.target is not None
    read = {split: partial(_pairs, paths, names, headed) for split, paths in files.items()}
    stamps = own.sources(files, names, headed)
    splits, notes = own.split(files, read, lambda pair: pair.source, "sources", stamps, root, progress)
    title, about = f"own pairs of texts, {Path(str(options.path)).name}", options.about()
    more = {"sources": stamps, "limits": options.limits, "notes": notes, "about": about}
    return make(manifest, "pairs", lambda progress: {s: read() for s, read in splits.items()}, title, **more)


def sides(options: Any) -> tuple[str, str]:
    """The names of source and target in file names, columns and keys."""
    codes = options.source_lang, options.target_lang
    source, target = codes if codes[0] != codes[1] else ("source", "target")
    return options.source or source, options.target or target


def _pairs(paths: tuple[Path, ...], names: tuple[str, str], headed: bool) -> Sequence[Pair]:
    if len(paths) == 2:
        lines = paired(paths)
        kept = [i for i, pair in enumerate(lines) if pair.source and pair.references[0]]
        count(f"lines of {paths[0].name} and {paths[1].name} left out: a blank text", len(lines) - len(kept))
        return lines if len(kept) == len(lines) else subset(lines, kept)
    (path,) = paths
    found = own.rows(path, names) if headed or own.ending(path) != ".tsv" else _two_columns(path)
    pairs = [Pair(row.cells[0], (row.cells[1],)) for row in own.filled(found, slice(2))]
    if not pairs:
        raise damaged(path, "no row has two texts", "pairs of texts", step=own.STEP)
    return pairs


def _two_columns(path: Path) -> Iterator[own.Row]:
    """Read a tsv file without a header line."""
    for number, cells in formats.cells(path, **own.dialect(path) | {"delimiter": "\t"}):
        row = own.Row(tuple(map(clean, cells)), path, number)
        if len(cells) != 2:
            headed = "for a header line set data.source and data.target to its names"
            raise row.wrong(f"{len(cells)} column(s)", f"source, tab, target and no header line; {headed}")
        yield row


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# Labels that mean a missing label.
MISSING = {"", "-", "?", "nan", "NaN", "NAN", "NA", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}


def names(help: str) -> Any:
    """An option with a list of names, each a text or a number; a single name is a list of one."""

    def read(value: Any) -> list[str]:
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(one, (str, int, float)) for one in listed):
            raise ValueError("must be a list of names, each a text or a number")
        return list(map(own.cell, listed))

    return option(list, read, help)


def load_table(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load examples; rows with a blank text are left out and counted."""
    files, fields = own.find(options.path, own.FILES, own.NO_DEV), len(options.text)
    names = [*options.text, options.label]
    rows = {split: list(own.filled(own.rows(path, names), slice(fields))) for split, (path,) in files.items()}
    for split, (path,) in files.items() if options.drop else ():
        kept = [row for row in rows[split] if row.cells[-1] not in options.drop]
        count(f"rows of {path.name} left out: {options.label} is in data.drop", len(rows[split]) - len(kept))
        rows[split] = kept
    first = next(iter(rows.values()))  # rows of train, of a single file, or of a test set without train
    classes = list(options.classes) or _classes(first, options)
    number = {name: i for i, name in enumerate(classes)}
    for row in (row for found in rows.values() for row in found):
        if (label := row.cells[-1]) not in number:
            why = "is not in data.classes" if options.classes else "no training example has"
            step = f"correct it; or leave out such rows: {setting(drop=[*options.drop, label])}; or keep them, though they cannot be "
            step += f"learned: {setting(classes=[*classes, label])}"
            found = f"{options.label} is {label[:40]!r}, which {why}{near(label, classes)}"
            raise row.wrong(found, f"one of {', '.join(classes)[:400]}", step)
    examples = {s: [Example(row.cells[:fields], number[row.cells[-1]]) for row in rows[s]] for s in rows}
    stamps = own.sources(files, options.text, options.label, classes, options.drop)
    read = {split: partial(list, found) for split, found in examples.items()}
    splits, notes = own.split(files, read, lambda example: " ".join(example.texts), "texts", stamps, root, progress)
    title, about = f"own table, {Path(str(options.path)).name}", {"classes": classes, "fields": list(options.text)}
    more = {"sources": stamps, "limits": options.limits, "notes": notes, "about": about}
    return make(manifest, "texts", lambda progress: {s: read() for s, read in splits.items()}, title, **more)


def _classes(rows: Sequence[own.Row], options: Any) -> list[str]:
    """The labels of the rows: numbers sorted by value, followed by words in alphabetical order."""
    labels = Counter(row.cells[-1] for row in rows)
    ordered = sorted(labels, key=lambda name: (0, float(name), name) if NUMBER.fullmatch(name) else (1, 0.0, name))
    keep, sign = setting(classes=ordered), joined(labels)

    def wrong(which: Sequence[str], why: str, step: str) -> DataError:
        row, n = next(row for row in rows if row.cells[-1] in which), sum(labels[name] for name in which)
        said = f"{options.label} is {' or '.join(name[:40] for name in map(repr, which[:3]))} in {n:,} of {len(rows):,} rows, {why}"
        return row.wrong(said, "a class for each row", f"{step}; or keep them as classes: {keep}")

    if several := [name for name in labels if is_list(name)] or [name for name in labels if sign and sign in name]:
        ways = setting(text=options.text[0], label=[options.label], separator=sign or None)
        read = AS_LISTS if is_list(several[0]) else f"read them as several labels: task=multilabel data=features {ways}"
        raise wrong(several, "which looks like several labels", read)
    if missing := sorted(MISSING & set(labels)) or [name for name in ("-1",) if {"-1", "0"} <= set(labels)]:
        raise wrong(missing, "which often means that there is none", f"leave these rows out: {setting(drop=missing)}")
    if not 2 <= len(labels) <= max(len(rows) / 2, 2):
        path = rows[0].path if rows else Path(str(options.path))
        said = f"{len(labels):,} different values of {options.label} in {len(rows):,} rows"
        expected = "a class for each row: at least two, most of them in several rows"
        raise damaged(path, said, expected, step="correct data.label, or list all classes: 'data.classes=[NAME,NAME]'")
    return ordered


def _problems_of_pairs(options: Any) -> list[str]:
    wrong = {option: code for option, code in options.about().items() if not LANGUAGE.fullmatch(code)}
    found = [f"{option}={code!r} must be a language code, as en or pt_br" for option, code in wrong.items()]
    if options.source is not None and options.source == options.target:
        found.append(f"target={options.target!r} is the source too; name two different columns")
    return found


def _problems_of_table(options: Any) -> list[str]:
    found = [f"label={options.label!r} is a column of data.text too"] if options.label in options.text else []
    if not 1 <= len(set(options.text)) == len(options.text) <= 2 or "" in options.text:
        found.append(f"text={options.text} must be a column name, or two different names such as [premise,hypothesis]")
    if len(set(options.classes)) != len(options.classes) or len(options.classes) == 1:
        found.append(f"classes={options.classes} must be at least two different names")
    return found


PAIRS = {
    "source_lang": word(help="language code; selects Moses' rules and names the files or columns"),
    "target_lang": word(help="language of the targets, like source_lang"),
    "source": word(optional=True, help="name of files or columns instead; a tsv file then has a header"),
    "target": word(optional=True, help="column of the targets, like source"),
}
TABLE = {
    "text": names("columns of texts, one or two"),
    "label": word(help="column of the class"),
    "classes": names("the classes in their order; []: those of the training examples"),
    "drop": names("labels of rows to leave out, such as [-1] for unlabelled ones"),
}
SETS = {
    "files": Loader("pairs", load_pairs, PAIRS, _problems_of_pairs),
    "table": Loader("texts", load_table, TABLE, _problems_of_table),
}
