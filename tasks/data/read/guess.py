"""Guess what a file of your own holds (pairs of texts, or one or two texts with a class), and in which of its columns.

The guess is made from the names of the columns and from all rows of the file, or of the training file of a folder.
The user's settings are never overruled. A file that fits no kind, or several, is rejected.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from repro.errors import near
from tasks.data.errors import DataError
from tasks.data.read import formats, own
from tasks.data.read.labelled import is_list, joined
from tasks.data.read.own import setting
from tasks.data.records import clean

# Usual names of columns, in lower case.
SOURCES = {"source", "src", "input", "article", "document"}
SUMMARIES = {"summary", "headline", "title", "synopsis", "highlights"}
TARGETS = {"target", "tgt", "trg", "output", "translation", "reference"} | SUMMARIES
LABELS = {"label", "class", "category", "stars", "rating", "sentiment", "relation", "gold_label"}
TAGS = LABELS | {"labels", "tags", "topics", "categories", "genres", "classes", "emotions"}  # several labels
LANGUAGES = set("ar bg bn ca cs da de el en es et eu fa fi fr ga gl he hi hr hu hy id is it ja".split())
LANGUAGES |= set("ka kk ko lt lv mk ms nb nl no pl pt ro ru sk sl sq sr sv sw ta th tr uk ur vi zh".split())
# a file with two such columns has pairs, and a tsv file that begins with them a header
SIDES = LANGUAGES | SOURCES | TARGETS
NAMES = {"english": "en", "french": "fr", "german": "de", "spanish": "es", "italian": "it", "dutch": "nl"}
NAMES |= {"portuguese": "pt", "russian": "ru", "chinese": "zh", "japanese": "ja", "korean": "ko", "arabic": "ar"}
NAMES |= {"persian": "fa", "hindi": "hi", "turkish": "tr"}
CERTAIN = LABELS | {"text", "source", "target"} | NAMES.keys()
# or script, as in zh_CN, es_419 and sr_Latn
REGION = re.compile(r"[-_]([a-z]{2}|\d{3}|hans|hant|latn|cyrl|arab|deva)$")
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?(?:e[-+]?\d+)?", re.I)
MOST_CLASSES, LONGEST_CLASS = 100, 40
ROWS_OF_A_CLASS = 4  # a class column has at least this many rows per value, on average
NOT_TEXT = (".ids", ".idx")  # files next to the texts of a corpus; not Indonesian


@dataclass(frozen=True)
class Guess:
    """What a file holds.

    Attributes:
        kind: pairs, summaries (pairs with a column named like a summary), text or texts (one or two, with a class).
        options: the name of the data set and the options to set, as in configs/data.
        said: the guess in words.
    """

    kind: str
    options: Mapping[str, Any]
    said: str


@dataclass(frozen=True)
class Column:
    """A column with its cells that are not blank, and the number of rows of the file."""

    name: str
    cells: Sequence[str]
    rows: int
    nested: bool = False

    @cached_property
    def values(self) -> set[str]:
        return set(self.cells)

    @cached_property
    def kind(self) -> str:
        """nested (lists or objects), empty (at most one value), class, number (or an identifier), text, or word (single words, as in a dictionary)."""
        if self.nested or (self.values and all(map(is_list, self.values))):
            return "nested"
        if len(self.values) < 2:
            return "empty"
        words = median(len(cell.split()) for cell in self.cells)
        often = len(self.values) <= MOST_CLASSES and len(self.values) * ROWS_OF_A_CLASS <= self.rows
        if often and words <= 3 and max(map(len, self.values)) <= LONGEST_CLASS:
            return "class"
        if all(map(NUMBER.fullmatch, self.values)):
            return "number"
        unspaced = median(map(len, self.cells)) >= 6 and not any(map(str.isascii, self.cells))  # such as Chinese
        if words >= 2 or unspaced:
            return "text"
        return "number" if re.search(r"(?i)(^|_)(id|url)$", self.name) else "word"


def guess(path: str | None, options: Mapping[str, Any], wanted: str | None = None) -> Guess:
    """Guess what a file or folder holds.

    Args:
        path: a file, or a folder with files for train, dev and test.
        options: the options of the data set that the user set, such as `text` or `source`.
        wanted: the data set that the user named, `files` or `table`; None to guess it too.

    Raises:
        DataError: the file cannot be used, or fits several kinds; the message names the columns and what to do.
    """
    if wanted is None and options.keys() & {"source", "target", "source_lang", "target_lang"}:
        wanted = "files"
    if wanted is None and options.keys() & {"text", "label", "classes", "drop"}:
        wanted = "table"
    if path and wanted != "table" and not Path(path).is_file() and (decided := _line_files(Path(path), options)):
        return decided
    files = own.find(path, own.FILES, own.NO_DEV)
    if "test" in files and len(files) == 1:
        step = f"evaluate a trained model: python scripts/evaluate.py CELL {setting(path=path)}"
        raise DataError(f"{path} has only a test file", "training needs train and dev", step)
    file = (files.get("train") or files[own.WHOLE])[0]
    columns, headed = _columns(file, options)
    decided = _decided(file, columns, headed, options, wanted)
    used = [one for value in decided.options.values() for one in (value if isinstance(value, list) else [value])]
    unread = [c.name for c in columns if headed and c.name not in used]
    return replace(decided, said=f"{decided.said}; not read: {', '.join(unread)}") if unread else decided


def _line_files(folder: Path, settings: Mapping[str, Any]) -> Guess | None:
    """The guess for a folder with `train.en` and `train.fr`, or for `x` if there are x.en and x.fr; None without such files.

    The folder may be named instead of `x` if it has no other such files.
    """
    there: dict[str, set[str]] = {}
    sides = [*settings.values(), *SIDES]
    for file in (folder if folder.is_dir() else folder.parent).glob("*"):
        end = own.ending(file)
        if end not in NOT_TEXT and (end[1:] in sides or end.lower()[1:3] in LANGUAGES) and (end,) not in own.FILES:
            there.setdefault(own.stem(file), set()).add(end[1:])
    paired = [stem for stem, ends in there.items() if len(ends) > 1]
    stem = folder.name if not folder.is_dir() else paired[0] if len(paired) == 1 else "train"
    if stem not in paired:
        return None
    ends = sorted(there[stem])
    sides = [settings.get(side) or settings.get(f"{side}_lang") for side in ("source", "target")]
    if len(ends) > 2 and None in sides:
        step = f"name the two: data.source_lang={ends[0]} data.target_lang={ends[1]}"
        raise DataError(f"{folder} has texts in {len(ends)} languages", f"{stem}.{f', {stem}.'.join(ends)}", step)
    rest = [e for e in ends if e not in sides]
    sides = [side or rest.pop(0) for side in sides]
    options = {"name": "files"} | _sides(*map(str, sides))
    said = f"{folder.name}: pairs of texts, line by line, from {stem}.{sides[0]} to {stem}.{sides[1]}"
    return Guess("pairs", options, said)


def _columns(file: Path, settings: Mapping[str, Any]) -> tuple[list[Column], bool]:
    """The columns of a file, and whether the file names them."""
    form = own.dialect(file)
    if not form:
        records = [row for *_, row in own.objects(file, {})]
        names = list(dict.fromkeys(name for row in records for name in row))
        nested = {k for k in names if not all(isinstance(row.get(k), own.SCALARS) for row in records)}
        rows = [["" if name in nested else own.cell(row.get(name)) for name in names] for row in records]
        return [replace(c, nested=c.name in nested) for c in _made(names, rows)], True
    (_, names), *rest = ((n, list(map(clean, cells))) for n, cells in formats.cells(file, **form))
    for n, cells in rest:
        if len(cells) != len(names):
            found = f"{len(cells)} columns, but {len(names)} in the first line"
            raise formats.damaged(file, found, "the same columns in every line", line=n, step=own.STEP)
    rows, bare = [cells for _, cells in rest], own.ending(file) == ".tsv" and form["delimiter"] == "\t"
    columns = _made(names, rows)
    if _headed(columns, bare, settings):
        return [c for c in columns if c.name], True
    if not bare:
        raise _headless(file, columns)
    return _made([f"column {i}" for i in range(1, len(names) + 1)], [names, *rows]), False


def _made(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
    return [Column(name, [row[i] for row in rows if row[i]], len(rows)) for i, name in enumerate(names)]


def _headed(columns: Sequence[Column], bare: bool, settings: Mapping[str, Any]) -> bool:
    """Whether the first line of a file holds column names, not a record; if not `bare`, it has to hold names."""
    names = [c.name for c in columns]
    set_by_user = [value for key, value in settings.items() if key not in ("limits", "drop")]
    asked = {one for value in set_by_user for one in (value if isinstance(value, list) else [value])}
    known = {REGION.sub("", name.lower()) for name in names}
    if asked & set(names) or known & CERTAIN or known <= SIDES:
        return True
    if any(NUMBER.fullmatch(c.name) or (c.kind == "class" and c.name in c.values) for c in columns):
        return False
    long = [len(name.split()) > 4 for name in names]
    if not bare or any(long):
        return not bare and not all(long)
    several = len(names) > 2 and all(map(str.isidentifier, names))
    return several or any(c.kind in ("class", "number") for c in columns)


def _headless(file: Path, columns: Sequence[Column]) -> DataError:
    step = "add a first line with the names of the columns, such as text and label"
    return _refused(file, "has no header line that names its columns", columns, step)


def _refused(file: Path, what: str, columns: Sequence[Column], step: str) -> DataError:
    kinds = {"empty": "one value", "number": "numbers or identifiers", "text": "texts", "word": "single words"}
    kinds["nested"] = "lists or objects"
    told = (f"{c.name} ({kinds.get(c.kind, f'{len(c.values)} different values')})" for c in columns)
    return DataError(f"{file.name} {what}", f"its columns: {', '.join(told)}", step)


def _decided(
    file: Path, columns: Sequence[Column], headed: bool, settings: Mapping[str, Any], wanted: str | None
) -> Guess:
    names = [c.name for c in columns]
    text = settings.get("text") or []
    asked = [("text", one) for one in ([text] if isinstance(text, str) else text)]
    asked += [(key, settings[key]) for key in ("label", "source", "target") if settings.get(key)]
    if asked and not headed:
        raise _headless(file, columns)
    for key, name in asked:
        if name not in names:
            said = f"has no column {name!r}{near(name, names)}"
            raise _refused(file, said, columns, f"correct data.{key}, or leave it out")
    label = None if wanted == "files" else settings.get("label") or _label(file, columns, wanted)
    tags = [c for c in columns if c.name.lower() in TAGS and label is None]
    other = {"questions about images": {"image", "question", "answer"} <= set(names)}
    other["features with labels"] = len(columns) > 2 and not any(c.kind in ("text", "word") for c in columns)
    other["several labels for each text"] = any(c.kind == "nested" or joined(c.values) for c in tags)
    for what in [what for what, there in other.items() if there and wanted is None]:
        step = "docs/start/my_data.md has the commands for such data"
        raise _refused(file, f"seems to have {what}, which cannot be guessed", columns, step)
    free = [c for c in columns if c.name != label]
    texts = [c.name for c in free if c.kind == "text"]
    if not texts or (label is None and len(columns) == 2):  # in this case, single words are texts too
        texts = [c.name for c in free if c.kind == "word" or (c.kind in ("text", "class") and label is None)]
    sides = wanted is None and len(texts) == 2 and {name.lower() for name in texts} <= SIDES
    if label is None or sides:
        return _pairs(file, columns, texts, headed, settings)
    if not headed:
        raise _headless(file, columns)
    return _table(file, columns, [name for key, name in asked if key == "text"] or texts, label)


def _label(file: Path, columns: Sequence[Column], wanted: str | None) -> str | None:
    """The column of the class, or None if there is none. Raises DataError if several columns could be it."""
    could = [c.name for c in columns if c.kind == "class"]
    named = [name for name in could if name.lower() in LABELS]
    found = named if len(named) == 1 else could
    sides = wanted is None and {c.name.lower() for c in columns if c.kind == "text"} <= SIDES
    if len(found) > 1 and not sides:
        step = f"name it: {' or '.join(setting(label=name) for name in found[:9])}"
        raise _refused(file, f"has {len(found)} columns that could be the class", columns, step)
    if not found and wanted == "table":
        raise _refused(file, "has no column that is clearly a class", columns, "name it: data.label=COLUMN")
    return found[0] if len(found) == 1 else None


def _table(file: Path, columns: Sequence[Column], texts: Sequence[str], label: str) -> Guess:
    if not 1 <= len(texts) <= 2:
        step = f"name one or two: {setting(text=texts[:2], label=label)}" if texts else "add a column of texts"
        raise _refused(file, f"has {len(texts) or 'no'} columns of texts besides the class {label}", columns, step)
    values = sorted(next(c for c in columns if c.name == label).values)
    classes = ", ".join(values[:5]) + (", ..." if values[5:] else "")
    options = {"name": "table", "text": list(texts), "label": label}
    what = "a text" if len(texts) == 1 else "two texts"
    said = f"{file.name}: {columns[0].rows:,} rows; {what} ({' and '.join(texts)}) with a class ({label}: {classes})"
    return Guess("text" if len(texts) == 1 else "texts", options, said)


def _pairs(
    file: Path, columns: Sequence[Column], texts: Sequence[str], headed: bool, settings: Mapping[str, Any]
) -> Guess:
    names, sides = [c.name for c in columns], []
    for key in ("source", "target"):
        lang = settings.get(f"{key}_lang")
        sides.append(settings.get(key) or (lang if lang in names else None))
    rest, free = [name for name in texts if name not in sides], sides.count(None)
    if len(rest) != free > 0:
        step = "name them: data.source=COLUMN data.target=COLUMN" if headed else "keep two columns"
        said = f"has {len(texts)} columns of texts instead of two, and no {'class' if headed else 'header line'}"
        raise _refused(file, said, columns, step)
    if free == 2 and rest[0].lower() in TARGETS and rest[1].lower() not in TARGETS:
        rest.reverse()
    source, target = (side or rest.pop(0) for side in sides)
    rows = f"{file.name}: {columns[0].rows:,} rows; pairs of texts"
    if not headed:
        if len(columns) > 2:
            raise _headless(file, columns)
        first = " / ".join(c.cells[0][:30] for c in columns)
        said = f"{rows}, from the first column to the second; no header line: the first pair is {first}"
        return Guess("pairs", {"name": "files"}, said)
    kind = "summaries" if target.lower() in SUMMARIES else "pairs"
    options = {"name": "files"} | _sides(source, target)
    return Guess(kind, options, f"{rows}, from {source} to {target}")


def _sides(source: str, target: str) -> dict[str, str]:
    """The options for two columns or endings; language codes and names are also used as languages."""
    codes = [NAMES.get(side.lower(), side) for side in (source, target)]
    known = {REGION.sub("", code.lower()) for code in codes} <= LANGUAGES and len(set(codes)) == 2
    return {"source": source, "target": target} | (dict(zip(("source_lang", "target_lang"), codes)) if known else {})
