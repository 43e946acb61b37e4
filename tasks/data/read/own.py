"""Your own files: finding them, reading rows by column name, and splitting a single file by content.

A path is either one file, or a folder with the files of each split: `train.csv`, `dev.csv` and `test.csv` (or only
`test.csv`, to evaluate a model on it). Files may be compressed with gzip or bzip2. A tsv file has no quoting: a cell is
the text between two tabs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.data.dataset import SPLITS, fingerprint
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.progress import Progress
from tasks.data.read.formats import check_fields, count, damaged, dialect, json_lines, parse_json, read_text, table
from tasks.data.read.pairs import cached_parts
from tasks.data.read.splits import ENOUGH, normalized, split_by_content
from tasks.data.records import clean, subset

RECIPE = 1  # increased when the same files would give other records or splits
SPLIT_RECIPE = 2  # of a single file with texts beyond ASCII, which another rule split before
WHOLE = ""  # key used instead of a split name: one file that is still to be split
STEMS = {"train": ("train",), "dev": ("dev", "valid", "val"), "test": ("test",)}
PACKED = ("", ".gz", ".bz2")
TABLES = ((".csv",), (".tsv",), (".jsonl",), (".json",))
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # usual ones
WARNED = 0.1  # the footer warns if a larger share of the texts is left out
STEP = "correct the file, or the options data.* that say how it is read"
MEMORISED = "its scores show what was memorised"
EQUAL = (("dev", "train", MEMORISED), ("test", "train", MEMORISED), ("test", "dev", "its scores chose the model"))
SCALARS = (str, int, float, bool, type(None))
Files = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True)
class Row:
    """The cells of one record, with runs of white space as single spaces, and its position in the file.

    `place` is the position in a JSON list.
    """

    cells: tuple[str, ...]
    path: Path
    line: int | None
    place: str = ""

    def wrong(self, problem: str, expected: str, value: Any, step: str = STEP) -> DataError:
        return damaged(self.path, f"{self.place}{problem}", expected, line=self.line, step=step, value=value)


def find(path: str | None, layouts: Sequence[tuple[str, ...]], needed: Sequence[str] = SPLITS) -> Files:
    """The files of each split of a folder, or {WHOLE: (file,)} for a single file.

    Args:
        layouts: possible endings of a split's files: (".tsv",), or (".en", ".de") for two files.
        needed: the splits that a folder must have, unless it has only a test split.

    Raises:
        DataUnavailable: a file is missing; the message lists the names that were looked for.
        DataError: there are several files for one split, or the format is not supported.
    """
    wanted = ", ".join(" and ".join(f"*{end}" for end in layout) for layout in layouts)
    if path is None:
        step = f"set data.path to a file or folder ({wanted})"
        raise DataUnavailable("no file or folder of your own is given", "data.path is not set", step, "data.path")
    place = Path(path)
    if place.is_file():
        if (ending(place),) not in layouts:
            formats = ", ".join(layout[0] for layout in layouts if len(layout) == 1)
            step = "rename or convert it, or set a folder"
            raise DataError(f"{place.name} ends in none of {formats}", f"data.path={path}", step, "data.path", path)
        return {WHOLE: (place,)}
    if not place.is_dir():
        step = f"correct data.path ({wanted})"
        raise DataUnavailable(f"there is no file or folder {path}", f"data.path={path}", step, "data.path", path)
    found = {}
    for split, stems in STEMS.items():
        there = [(layout, files) for stem in stems for layout in layouts if (files := _there(place, stem, layout))]
        if len(there) > 1 or any(len(files) > len(layout) for layout, files in there):
            names = ", ".join(file.name for _, files in there for file in files)
            what = f"the folder {path} has several files for {split}"
            raise DataError(what, names, "keep one of them there", split, names)
        if there:
            found[split] = there[0][1]
    missing = [split for split in needed if split not in found]
    if missing and set(found) != {"test"}:
        names = {s: [" and ".join(stem + end for end in one) for stem in STEMS[s] for one in layouts] for s in missing}
        looked = "; ".join(f"{split}: {', or '.join(any_of)}" for split, any_of in names.items())
        held = ", ".join(sorted(file.name for file in place.iterdir())[:12]) or "nothing"
        what, where = f"{place}: no file for {' and '.join(missing)}", f"looked for {looked}. The folder holds {held}"
        step = "use one of these names; or set data.path to one file, which is split by content"
        raise DataUnavailable(what, where, step, "data.path", missing)
    return found


def _there(folder: Path, stem: str, layout: Sequence[str]) -> tuple[Path, ...]:
    """The files of a layout, plain and compressed; empty if one of its endings has no file."""
    found = [[p for packed in PACKED if (p := folder / f"{stem}{end}{packed}").is_file()] for end in layout]
    return tuple(path for files in found for path in files) if all(found) else ()


def ending(path: Path) -> str:
    """The ending of a file name, ignoring .gz and .bz2."""
    return Path(path.stem).suffix if path.suffix in PACKED[1:] else path.suffix


def rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The cells of `columns` in every record of a file.

    The file is a csv or tsv file with a header line, a jsonl file, or a JSON list of objects.

    Raises:
        DataError: a line is not a record, or a column is missing.
    """
    if (kind := ending(path)) in DELIMITERS:
        for line, row in table(path, tuple(columns), **dialect(path, DELIMITERS[kind])):
            yield Row(tuple(clean(row[name]) for name in columns), path, line)
        return
    for line, place, entry in objects(path, columns):
        yield Row(tuple(cell(entry[name]) for name in columns), path, line, place)


def objects(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """The objects of a jsonl file or a JSON list with their places; `columns` must be texts, numbers, booleans or null."""
    fields = dict.fromkeys(columns, SCALARS)
    if ending(path) == ".jsonl":
        yield from ((line, "", entry) for line, entry in json_lines(path, fields))
        return
    loaded = parse_json(read_text(path), path)
    if not isinstance(loaded, list) or not loaded:
        raise damaged(path, "no list at its top", f"a list of objects with {', '.join(columns)}", step=STEP)
    for number, entry in enumerate(loaded, 1):
        place = f"record {number:,}: "
        yield None, place, check_fields(entry, fields, path, place)


def cell(value: str | float | bool | None) -> str:
    """A value of JSON as the cell of a table: "4" for 4.0, "true" for true, "" for null."""
    if isinstance(value, float):
        return str(int(value) if value.is_integer() else value)
    return "" if value is None else clean(value) if isinstance(value, str) else str(value).lower()


def filled(found: Iterator[Row], texts: slice) -> Iterator[Row]:
    """The rows whose cells `texts` are all non-blank; the others are counted."""
    for row in found:
        if all(row.cells[texts]):
            yield row
        else:
            count(f"rows of {row.path.name} left out: a blank text")


def sources(files: Files, *read: Any, texts: Sequence[str] = ()) -> dict[str, Any]:
    """Map each split to its source, in the form that `tasks.data.dataset.make` accepts.

    `read`: options that affect the records; `texts`: of a single file to split. Splits with equal files are counted.
    """
    recipe = RECIPE if all(map(str.isascii, texts)) else SPLIT_RECIPE
    stamps = {split: [recipe, [sha256_of(path) for path in paths], *read] for split, paths in files.items()}
    for split, other, why in EQUAL:
        if split in stamps and stamps[split] == stamps.get(other):
            count(f"split has the same content as {other} ({files[split][0].name}): {why}")
    return dict.fromkeys(SPLITS, stamps[WHOLE]) if WHOLE in stamps else stamps


def split(
    records: Sequence[Any], files: Files, texts: Sequence[str], source: Any, root: Path, progress: Progress
) -> tuple[dict[str, Sequence[Any]], str]:
    """Split the records of one file, keeping near-duplicates together; only equal texts if nearly all texts are alike.

    Returns the records of each split, and a sentence for the footer, which warns of the second case.

    Args:
        texts: the text of each record; texts that differ only in case, digits or punctuation are treated as one text.
        source: description of the records' source.
        root: folder in which the split is stored.

    Raises:
        DataError: there are too few texts for three splits.
    """
    same: dict[str, list[int]] = {}
    for i, one in enumerate(texts):
        same.setdefault(normalized(one), []).append(i)
    numbers = list(same.values())
    once, key = [texts[own[0]] for own in numbers], fingerprint(source, ENOUGH)
    (path,) = files[WHOLE]
    kept = root / "own" / path.name / f"split-{key[:16]}.json"
    parts = cached_parts(kept, key, lambda: split_by_content([[] for _ in once], once, [once]), progress)
    refuse_empty(path, f"its {len(once):,} different texts", {s: getattr(parts, s) for s in SPLITS})
    note = "split by content, only equal texts together" if parts.alike else parts.note("texts")
    if (near := parts.alike or len(parts.left_out)) > WARNED * len(once):
        fate = "so that scores on dev and test are too good" if parts.alike else "and were left out"
        note += (
            f". WARNING: {near:,} of {len(once):,} different texts share half of their words with one in another split, {fate}. "
            "To avoid this, split the file yourself: data.path=FOLDER with a file each for train, dev and test"
        )
    return {s: subset(records, [i for n in getattr(parts, s) for i in numbers[n]]) for s in SPLITS}, note


def refuse_empty(path: Path, what: str, filled: Mapping[str, bool | Sequence[Any]]) -> None:
    """Raise DataError if a split of the file at `path` is empty; `what` names its items."""
    if few := [s for s, full in filled.items() if not full]:
        step = "set data.path to a folder with a file for each split"
        said = f"{what} are too few to be split: none for {' and '.join(few)}"
        raise damaged(path, said, "some hundreds", step=step, value=few)
