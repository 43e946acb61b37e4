"""Your own files: finding them, reading rows by column name, and splitting a single file by content.

A path is either one table, or a folder with the table of each split: `train.csv`, `dev.csv` and `test.csv` (or only
`test.csv`, to evaluate a model on it). Without dev, a tenth of train becomes dev. Files may be compressed.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.files import quoted
from tasks.data.dataset import SPLITS, cached_parts, fingerprint
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.progress import Progress
from tasks.data.read import formats
from tasks.data.read.formats import check_fields, count, damaged, json_lines, numbered, table
from tasks.data.read.labelled import AS_LISTS, is_list
from tasks.data.read.labelled import CORRECT as STEP
from tasks.data.read.splits import ENOUGH, normalized
from tasks.data.records import clean, subset

RECIPE = 3  # increased when the same files would give different records or splits
WHOLE = ""  # key used instead of a split name: one file that is still to be split
NO_DEV = ("train", "test")  # a folder with only these: dev is split from train
STEMS = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
PACKED = ("", ".gz", ".bz2", ".xz", ".zst")
PART = re.compile(r"(train|dev|val\w*|test)-\d+-of-\d+\.(csv|jsonl?|parquet)")  # as on the hub
FILES = ((".csv",), (".tsv",), (".jsonl",), (".json",), (".parquet",))
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # usual ones
WARNED = 0.1  # the footer warns if a larger share of the texts is left out
SCALARS = (str, int, float, bool, type(None))
Files = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one record, with runs of white space as single spaces, and its position in the file.

    `place` is the position in a JSON list.
    """

    cells: tuple[str, ...]
    path: Path
    line: int | None
    place: str = ""

    def wrong(self, problem: str, expected: str, step: str = STEP) -> DataError:
        return damaged(self.path, f"{self.place}{problem}", expected, line=self.line, step=step)


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
        raise DataUnavailable("no file or folder of your own is given", "data.path is not set", step)
    place = Path(path)
    if place.is_file():
        if (ending(place),) not in layouts:
            known = ", ".join(layout[0] for layout in layouts if len(layout) == 1)
            step = "save it in one of these formats, or set a folder"
            raise DataError(f"{place.name} ends in none of {known}", f"data.path={path}", step)
        return {WHOLE: (place,)}
    if not place.is_dir():
        for layout in layouts:
            if len(layout) == 2 and (files := _there(place.parent, place.name, layout)):
                return {WHOLE: files}
        step = f"correct data.path ({wanted})"
        raise DataUnavailable(f"there is no file or folder {path}", f"data.path={path}", step)
    by_split: dict[str, tuple[Path, ...]] = {}
    for split, stems in STEMS.items():
        there = [(layout, files) for stem in stems for layout in layouts if (files := _there(place, stem, layout))]
        if len(there) > 1 or any(len(files) > len(layout) for layout, files in there):
            names = ", ".join(file.name for _, files in there for file in files)
            what = f"the folder {path} has several files for {split}"
            raise DataError(what, names, "keep one of them there")
        if there:
            by_split[split] = there[0][1]
    files = sorted(file for depth in ("*", "*/*", "*/*/*") for file in place.glob(depth) if _shown(file, place))
    if parts := [str(file.relative_to(place)) for file in files if PART.fullmatch(file.name)]:
        step = (
            "join those of each split into one file, such as train.parquet, with datasets.load_dataset and to_parquet"
        )
        raise DataError(f"{place} has files in parts", ", ".join(parts[:6]), step)
    used = {file for files in by_split.values() for file in files}
    others = [file for file in files if file.parent == place and file not in used]
    missing = [split for split in needed if split not in by_split]
    if "dev" not in by_split and {ending(file) for file in others} & {end for layout in layouts for end in layout}:
        missing = [split for split in SPLITS if split not in by_split]  # dev may have another name
    pairs = [_there(place, name, layout) for name in {*map(stem, others)} for layout in layouts if len(layout) == 2]
    if not by_split and [*map(len, filter(None, pairs))] == [2]:  # the only pair such as x.en and x.fr
        return {WHOLE: next(filter(None, pairs))}
    if missing and set(by_split) != {"test"}:
        looked = f"{' and '.join('|'.join(STEMS[split]) for split in missing)} with {wanted}"
        held = ", ".join(str(file.relative_to(place)) for file in files[:12]) or "nothing"
        what, where = f"{place}: no file for {' and '.join(missing)}", f"looked for {looked}. The folder holds {held}"
        step = "use one of these names; or set data.path to a folder that has them, or to one file, which is split by content"
        raise DataUnavailable(what, where, step)
    unread = [file.name for file in others if not re.match(r"(?i)readme|licen[cs]e|citation", file.name)]
    count(f"files of {place.name} are not read: {', '.join(unread[:6])}{', ...' if unread[6:] else ''}", len(unread))
    return by_split


def _shown(file: Path, place: Path) -> bool:
    """Whether a file is not hidden: neither its name nor that of a folder below `place` starts with a dot."""
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(place).parts)


def _there(folder: Path, stem: str, layout: Sequence[str]) -> tuple[Path, ...]:
    """The files of a layout, plain and compressed; empty if one of its endings has no file."""
    names = [[folder / f"{stem}{end}{packed}" for packed in PACKED] for end in layout]
    found = [[path for path in some if path.is_file()] for some in names]
    return tuple(path for files in found for path in files) if all(found) else ()


def ending(path: Path) -> str:
    """The ending of a file name, without that of its compression."""
    return (Path(path.stem) if path.suffix in PACKED[1:] else path).suffix


def stem(path: Path) -> str:
    """A file name without its `ending` and that of its compression."""
    return (path.stem if path.suffix in PACKED[1:] else path.name).removesuffix(ending(path))


def dialect(path: Path) -> dict[str, Any]:
    """The options of the csv module for a file with a delimiter; {} for other tables."""
    kind = ending(path)
    return formats.dialect(path, DELIMITERS[kind]) if kind in DELIMITERS else {}


def rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The cells of `columns` in every record of a table. Raises DataError if a record is damaged or a column missing."""
    for line, place, entry in objects(path, dict.fromkeys(columns, SCALARS)):
        yield Row(tuple(cell(entry[name]) for name in columns), path, line, place)


def objects(path: Path, columns: Mapping[str, tuple[type, ...]]) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Line, place and content of each record of a table; `columns`: required column -> types of its values."""
    if form := dialect(path):
        yield from ((line, "", row) for line, row in table(path, tuple(columns), **form))
        return
    for line, place, entry in _entries(path):
        if isinstance(entry, dict) and isinstance(sides := entry.get("translation"), dict):  # as on the hub
            entry = {name: value for name, value in entry.items() if name != "translation"} | sides
        yield line, place, check_fields(entry, columns, path, place, line)


def _entries(path: Path) -> Iterator[tuple[int | None, str, Any]]:
    """Line, place and content of each record of a file that is not a csv or tsv file."""
    if ending(path) == ".parquet":
        yield from ((None, f"record {number:,}: ", entry) for number, entry in enumerate(_arrow(path), 1))
    elif ending(path) == ".jsonl" or next(text for _, text in numbered(path) if text.strip()).lstrip()[0] != "[":
        yield from ((line, "", entry) for line, entry in json_lines(path, {}))
    else:
        loaded = formats.parse_json(formats.read_text(path), path)
        if not loaded:
            raise damaged(path, "its list is empty", "objects")
        yield from ((None, f"record {number:,}: ", entry) for number, entry in enumerate(loaded, 1))


def _arrow(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file; classes by name instead of number."""
    import datasets
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        features = datasets.Features.from_arrow_schema(file.schema_arrow)
        classes = {name: kind for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)}
        for row in (row for batch in file.iter_batches(1000) for row in batch.to_pylist()):
            known = {name: row[name] for name in classes if row[name] is not None and row[name] >= 0}
            yield row | {name: classes[name].int2str(number) for name, number in known.items()}
    except Exception as error:  # errors of Arrow and of the package itself
        why = f"it cannot be read ({type(error).__name__}: {error})"
        raise damaged(path, why, "a whole file", step=formats.AGAIN) from error


def several(path: Path, text: str, label: str, separator: str | None) -> Iterator[tuple[Row, str, list[str]]]:
    """Text and labels of each record; the labels are a list, or one cell with `separator` between them."""
    for line, place, entry in objects(path, {text: SCALARS, label: (*SCALARS, list)}):
        row, value = Row((), path, line, place), entry[label]
        if isinstance(value, str) and is_list(value):
            raise row.wrong(f"{label} is a list written as a text, {value[:40]!r}", "labels", AS_LISTS)
        if not isinstance(value, list):
            value = cell(value).split(separator) if value not in (None, "") else []
        labels = [cell(one).strip() if isinstance(one, SCALARS) else "" for one in value]
        if "" in labels:
            raise row.wrong(f"{label} has a label without a name", "a name for each label")
        yield row, cell(entry[text]), labels


def cell(value: str | float | bool | None) -> str:
    """A JSON value as the cell of a table: "4" for 4.0, "true" for true, "" for null."""
    if isinstance(value, float):
        return str(int(value) if value.is_integer() else value)
    return "" if value is None else clean(value) if isinstance(value, str) else str(value).lower()


def filled(rows: Iterator[Row], texts: slice) -> Iterator[Row]:
    """The rows whose cells `texts` are all non-blank; the others are counted."""
    for row in rows:
        if all(row.cells[texts]):
            yield row
        else:
            count(f"rows of {row.path.name} left out: a blank text")


def sources(files: Files, *read: Any) -> dict[str, Any]:
    """Map each split to its source, in the form that `tasks.data.dataset.make` accepts; `read`: options that affect the records."""
    stamps = {split: [RECIPE, [sha256_of(path) for path in paths], *read] for split, paths in files.items()}
    if (whole := whole_of(files)) == "train":
        stamps["train"] = stamps["dev"] = [*stamps["train"], "without dev"]
    return dict.fromkeys(SPLITS, stamps[WHOLE]) if whole == WHOLE else stamps


def whole_of(files: Files) -> str | None:
    """The key of the file that `split` splits: WHOLE, or train without dev; None if there is a file for each split."""
    return WHOLE if WHOLE in files else "train" if "train" in files and "dev" not in files else None


def split(
    files: Files,
    read: Mapping[str, Callable[[], Sequence[Any]]],
    text: Callable[[Any], str],
    what: str,
    sources: dict[str, Any],
    root: Path,
    progress: Progress,
) -> tuple[dict[str, Callable[[], Sequence[Any]]], list[str]]:
    """Split the records of one file, keeping near-duplicates together; only equal texts if nearly all texts are alike.

    In a folder without dev, train is split: the tenth that would be dev and test becomes dev. Texts that differ only in case,
    digits or punctuation count as equal. The split is stored below `root`. If not all pairs could be compared, `sources`
    gets a mark of it.

    Args:
        read: split, or WHOLE, -> the function that reads its records.
        text: the text of a record, of which there are several in a file; `what` names them.

    Returns the functions that read each split, and sentences for the footer, which warn of the second case. Raises
    DataError if there are too few texts for three splits.
    """
    if (whole := whole_of(files)) is None:
        return dict(read), []
    records = read[whole]()
    texts = list(map(text, records))
    known: dict[str, int] = {}
    owner = np.array([known.setdefault(normalized(one), len(known)) for one in texts], dtype=np.int64)
    del known  # it takes as much memory as the texts
    order, starts = np.argsort(owner, kind="stable").tolist(), [0, *np.cumsum(np.bincount(owner)).tolist()]
    once = [texts[order[start]] for start in starts[:-1]]
    key = fingerprint(sources["train"], ENOUGH)
    path = files[whole][0]
    kept = root / "own" / path.name / f"split-{key[:16]}.json"
    parts = cached_parts(kept, key, progress, repeat((), len(once)), once, [once])
    if parts.crowded:
        sources |= {s: [*source, "not all pairs compared"] for s, source in sources.items() if s in SPLITS}
    refuse_empty(path, f"its {len(once):,} different texts", parts.of(once))
    about = "about " if parts.crowded else ""
    note = "nearly all texts are similar, so the split is at random, only equal texts together"
    note = note if parts.alike else parts.note(what)
    if (near := parts.alike or len(parts.left_out)) > WARNED * len(once):
        fate = "so that scores on dev and test are too good" if parts.alike else "and were left out"
        note += f". WARNING: {about}{near:,} of {len(once):,} different texts share half of their words with one in another "
        note += f"split, {fate}. To avoid this, split the file yourself: data.path=FOLDER with a file each for train, "
        note += "dev and test"
    groups = parts.of(range(len(once)))
    chosen = {s: [i for n in own for i in order[starts[n] : starts[n + 1]]] for s, own in groups.items()}
    if whole != WHOLE:
        note = f"dev is a tenth of train: {note}"
        chosen = {"train": chosen["train"], "dev": chosen["dev"] + chosen["test"]}
    made = {s: partial(subset, records, rows) for s, rows in chosen.items()}
    return {split: one for split, one in read.items() if split != WHOLE} | made, [note]


def setting(**options: Any) -> str:
    """Overrides such as data.label=stars, quoted for a shell."""
    return " ".join(shlex.quote(f"data.{key}={quoted(value)}") for key, value in options.items())


def refuse_empty(path: Path, what: str, filled: Mapping[str, bool | Sequence[Any]]) -> None:
    """Raise DataError if a split of the file at `path` is empty; `what` names its items."""
    if few := [s for s, full in filled.items() if not full]:
        step = "set data.path to a folder with a file for each split"
        said = f"{what} are too few to be split: none for {' and '.join(few)}"
        raise damaged(path, said, "some hundreds of rows", step=step)
