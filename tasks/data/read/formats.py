"""Reading untrusted files: the only module that turns their bytes into text, lines, JSON records and table rows.

Text is UTF-8, or UTF-16 or UTF-32 with a byte order mark (BOM), and plain, gzip, bzip2, xz or zstd as detected from the content. Only
"\\n" and "\\r\\n" end a line: U+2028, U+2029, NEL, VT, FF and a lone "\\r" are treated as white space inside a line.
Unreadable content raises a `DataError` that names the file, the line or the byte (from 0), and the
expected format. Nothing is replaced or truncated.

A text that is too long is not an error: `tasks.data.dataset` leaves out its record and counts it. The limits are
defined here.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import stat
import sys
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import IO, Any

from repro.errors import short
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.read.splits import HAN, SOUTHEAST

LONGEST_TEXT = 1_000_000  # characters of a text or line
# letters without a space, in scripts that have them: tokenisers take quadratic time in this length
LONGEST_WORD = 1_000
TOO_LONG = f"a text of more than {LONGEST_TEXT:,} characters or a word of more than {LONGEST_WORD:,}"
STEP, STANDARD_INPUT = "correct the line", Path("standard input")
AGAIN = "correct the file, or fetch it again; or correct what names it (data.path, data.mirror, encode.vectors)"


def _zstd(path: Path, mode: str) -> Any:
    from pyarrow import CompressedInputStream

    return CompressedInputStream(str(path), "zstd")


Fields = Mapping[str, type | tuple[type, ...]]  # fields of a JSON object: name -> type or types
_PACKED = {b"\x1f\x8b": ("gzip", gzip.open), b"BZh": ("bzip2", bz2.open)}
_PACKED |= {b"\xfd7zXZ\x00": ("xz", lzma.open), b"(\xb5/\xfd": ("zstd", _zstd)}
# Longest first, because the UTF-32-LE mark starts with the UTF-16-LE mark.
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
_MARKS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_LONG_WORD = re.compile(rf"[^\s{HAN}{SOUTHEAST}]{{{LONGEST_WORD + 1}}}")
_CELL = re.compile(r'"(?:[^"]|"")*"')
_counts: ContextVar[Counter[str] | None] = ContextVar("counts", default=None)


def damaged(
    path: Path, what: str, expected: str, *, line: int | None = 0, byte: int = -1, step: str = AGAIN
) -> DataError:
    """The error for a file with unexpected content: file and position, what was found, what was expected."""
    place = (f", line {line:,}" if line else "") + (f", byte {byte:,}" if byte >= 0 else "")
    return DataError(f"{path.name}{place}: {what}", f"{path}: expected {expected}", step)


def fields_of(text: str, number: int, names: Sequence[str]) -> str | tuple[str, ...]:
    """The fields of a line of standard input, separated by tabs; the text itself if there is one. Raises DataError."""
    parts = text.split("\t")
    if len(names) > 1 and len(parts) != len(names):
        found, expected = f"{len(parts)} field(s): {text[:60]!r}", f"{' TAB '.join(names)}: one tab between them"
        raise damaged(STANDARD_INPUT, found, expected, line=number, step=STEP)
    return text if len(names) == 1 else tuple(parts)


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Context in which readers count notable events, as message -> count."""
    counts: Counter[str] = Counter()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


def count(what: str, n: int = 1) -> None:
    """Add `n` to the count of `what` if a `counting` context is active."""
    if n and (counts := _counts.get()) is not None:
        counts[what] += n


def too_long(text: str) -> bool:
    """Whether a text, or one of its words, exceeds the limits."""
    return len(text) > LONGEST_WORD and (len(text) > LONGEST_TEXT or _LONG_WORD.search(text) is not None)


@contextmanager
def opened(path: Path, unpack: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to read its bytes; with `unpack`, they are decompressed and converted from UTF-16 or UTF-32 to UTF-8.

    Raises DataUnavailable if the file is missing, and DataError if it cannot be read.
    """
    how, kind = open, ""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise damaged(path, f"it is a {'folder' if path.is_dir() else 'device or pipe'}", "a file")
        with open(path, "rb") as head:
            first = head.read(6)
        kind, how = next((found for magic, found in _PACKED.items() if unpack and first.startswith(magic)), ("", open))
        with how(path, "rb") as stream:
            if not kind and not (unpack and first.startswith(tuple(_MARKS))):
                yield stream
                return
            raw = stream.read()  # damage to compressed data is detected at their end
            mark = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), "")
            kind = mark or kind
            yield io.BytesIO(raw.decode(mark).encode() if mark else raw)
    except FileNotFoundError as error:
        raise DataUnavailable(f"{path.name} is missing", str(path), AGAIN) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        why = f"its {kind} data are damaged or cut short" if kind else "it cannot be read"
        raise damaged(path, f"{why} ({getattr(error, 'strerror', None) or error})", "a whole file") from error


def decode(raw: bytes, path: Path, *, line: int = 1, byte: int = 0, encoding: str = "utf-8") -> str:
    """Decode bytes to text without a BOM; `line` and `byte` are the position of `raw` in the file."""
    if byte == 0 and raw.startswith(codecs.BOM_UTF8):
        raw, byte = raw[3:], 3
    try:
        text = raw.decode(encoding)
        at, problem = raw.find(b"\0"), "NUL, which no text has"
    except UnicodeDecodeError as error:
        at, problem = error.start, f"0x{raw[error.start]:02X} is not UTF-8"
    if at < 0:
        return text
    line += raw.count(b"\n", 0, at)
    raise damaged(path, problem, "UTF-8 text", line=line, byte=byte + at, step="save it again, as UTF-8")


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """All text of a file."""
    with opened(path) as stream:
        return decode(stream.read(), path, encoding=encoding)


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file without their line ends, numbered from 1. Raises DataError if all lines are blank."""
    blank, number = True, 0
    with opened(path) as stream:
        for number, text in lines_of(stream, path):
            blank = blank and not text.strip()
            yield number, text
    if blank:
        problem = f"all {number:,} lines are blank" if number else "it is empty"
        raise damaged(path, problem, "at least one line of text")


def lines_of(stream: Iterable[bytes], path: Path) -> Iterator[tuple[int, str]]:
    """Like `numbered`, for an open file, which may be blank."""
    byte, number, text = 0, 0, ""
    for number, raw in enumerate(stream, 1):
        text = decode(raw, path, line=number, byte=byte)
        byte += len(raw)
        text = text.removesuffix("\n").removesuffix("\r")
        yield number, text
    if number == 1 and "\r" in text:
        step = "save it again, as UTF-8 with the line ends of Unix or Windows"
        raise damaged(path, "its lines end in CR alone", "lines that end in LF", line=1, step=step)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file without their line ends."""
    return [text for _, text in numbered(path)]


def parse_json(text: str, path: Path, line: int = 1, step: str = AGAIN) -> Any:
    """Parse JSON text that starts at `line` of a file; DataError for invalid JSON, with `step` as the next one."""
    only = None if "\n" in text else line
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also thousands of digits, too many brackets
        told, at = str(error), only
        if isinstance(error, json.JSONDecodeError):
            told, at = f"{error.msg}, column {error.colno:,}", line + error.lineno - 1
        raise damaged(path, f"not valid JSON ({told})", "JSON", line=at, step=step) from error


def check_fields(entry: Any, fields: Fields, path: Path, where: str = "", line: int | None = None) -> dict:
    """Check that a JSON value is an object with these fields and types, and return it."""
    wanted = f"an object with {', '.join(fields)}" if fields else "an object"
    if not isinstance(entry, dict):
        raise damaged(path, f"{where}{short(entry)} is not an object", wanted, line=line)
    if missing := [name for name in fields if name not in entry]:
        raise damaged(path, f"{where}has no {', '.join(missing)}", wanted, line=line)
    for name, kind in fields.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(entry[name], kind) or (isinstance(entry[name], bool) and bool not in kinds):
            expected = " or ".join(k.__name__ for k in kinds).replace("NoneType", "null")
            raise damaged(path, f"{where}{name} is {short(entry[name])}", expected, line=line)
    return entry


def json_lines(path: Path, fields: Fields) -> Iterator[tuple[int, dict]]:
    """The JSON objects of a file with one object per line, and their line numbers."""
    for number, text in numbered(path):
        entry = parse_json(text, path, number, f"write each record as one line, as in .jsonl; or {AGAIN}")
        yield number, check_fields(entry, fields, path, line=number)


def dialect(path: Path, delimiter: str) -> dict[str, Any]:
    """The options of the csv module that fit the first 50 rows of a table best: the usual `delimiter`, or , ; tab | instead.

    Cells between tabs are in quotes if all that contain quotes are, and some contain doubled ones. Raises DataError if all column
    names are in quotes without this sign.
    """
    lines = [f"{text}\n" for _, text in islice(numbered(path), 50)]
    best, most = delimiter, 1
    for one in dict.fromkeys([delimiter, *",;\t|"]):
        quoting = csv.QUOTE_NONE if one == delimiter == "\t" else csv.QUOTE_MINIMAL
        sizes: list[int] = []
        with suppress(csv.Error):
            sizes += [len(row) for row in csv.reader(lines, delimiter=one, quoting=quoting) if row]
        if sizes and sizes[0] > most and sizes.count(sizes[0]) >= 0.9 * len(sizes):
            best, most = one, sizes[0]
            if one == "\t":  # which few texts contain
                break
    quoted = True
    if best == delimiter == "\t":
        found = [cell for _, line in numbered(path) if '"' in line for cell in line.split("\t") if '"' in cell]
        quoted = any('""' in cell[1:-1] for cell in found) and all(map(_CELL.fullmatch, found))
        if not quoted and all(map(_CELL.fullmatch, lines[0].rstrip("\n").split("\t"))):
            step = "save it as .csv, where cells may be in quotes"
            raise damaged(path, "its cells are in quotes", "cells without quotes between tabs", line=1, step=step)
    return {"delimiter": best, "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE}


def table(path: Path, columns: tuple[str, ...], **dialect: Any) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with a header line, as column -> cell, each with the number of its last line.

    Args:
        columns: the columns that are read, which the header and every row must have (if empty, all columns of the
            header).
        dialect: options of the csv module.
    """
    rows = cells(path, **dialect)
    line, head = next(rows)
    expected = f"columns {', '.join(columns)}" if columns else "a table"
    if missing := [name for name in columns if name not in head]:
        held = f"the header line has no column {', '.join(missing)}; it has {', '.join(head)[:200]}"
        raise damaged(path, held, expected, line=line)
    if twice := [name for name, times in Counter(head).items() if times > 1 and name]:
        said = f"the header line has the column {', '.join(twice)[:200]} twice"
        raise damaged(path, said, "different columns", line=line)
    needed, last = max(map(head.index, columns), default=len(head) - 1) + 1, line
    for last, row in rows:
        if not needed <= len(row) <= len(head):
            raise damaged(path, f"{len(row)} cells", f"{len(head)} cells, as in the header line", line=last)
        yield last, dict(zip(head, row))
    if last == line:
        raise damaged(path, "only a header line", f"rows of {expected}")


def cells(path: Path, **dialect: Any) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row of a table, the header line included, each with the number of its last line."""
    csv.field_size_limit(sys.maxsize)  # texts that are too long are left out and counted, as of other formats
    reader = csv.reader((f"{text}\n" for _, text in numbered(path)), strict=True, **dialect)
    last, recent = 0, deque[list[str]](maxlen=100)
    try:
        for row in reader:
            first, last = last + 1, reader.line_num
            if len(row) < 2 and not "".join(row).strip():
                continue  # blank lines are skipped
            if last > first and (n := _swallowed(row, recent, dialect)):
                said = f"a cell holds {n:,} lines that look like rows: a quote is not closed"
                raise damaged(path, said, "rows of a table", line=first, step=_unquote(first, last))
            recent.append(row)
            yield last, row
    except csv.Error as error:
        line, problem, step = max(reader.line_num, 1), f"not a row of a table ({error})", AGAIN
        if line - last > 1:
            step, line = _unquote(last + 1, last + 1 if "end of data" in str(error) else line), last + 1
            problem = f"a quote is not closed ({error})"
        raise damaged(path, problem, "rows of a table", line=line, step=step) from error


def _swallowed(cells: Sequence[str], rows: Iterable[Sequence[str]], dialect: Mapping[str, Any]) -> int:
    """How many lines within a cell look like rows, if a quote that is not closed may have joined them; else 0.

    Such a line has as many cells as the rows before, with a class of theirs; without classes, nearly all of at least five lines.
    """
    lines = [line for cell in cells for line in cell.split("\n")[1:] if line]
    own = [row for row in csv.reader(lines, **dialect) if len(row) == len(cells) and all(row)]
    if not own:
        return 0
    columns = [Counter(column) for column in zip(*(row for row in rows if len(row) == len(cells)))]
    classes = [i for i, column in enumerate(columns) if 4 * len(column) <= column.total()]
    if classes:
        return sum(all(row[i] in columns[i] for i in classes) for row in own)
    return len(own) if len(lines) > 5 and len(own) >= 0.9 * (len(lines) - 1) else 0  # the last one may end the cell


def _unquote(first: int, last: int) -> str:
    """What to do about a quote that is not closed, which opens in the line `first`."""
    lines = " and ".join(f"{line:,}" for line in dict.fromkeys((first, last)))
    return f"double or remove the quotes of line {lines}; if it is one text of several lines, save the rows as .jsonl"
