"""Documents as vectors with labels: the reader of ARFF files, and the preprocessing common to all such data sets.

Features have mean 0 and variance 1 on train. As in Laha et al., constant features and examples without a label are left
out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.dataset import DataSet, Manifest, make
from tasks.data.read.formats import damaged, numbered
from tasks.data.records import Labelled

Arrays = Mapping[str, tuple[np.ndarray, np.ndarray]]  # split -> features [n, d], labels [n, K]
LARGEST = 1e150  # largest feature value, so that the variance of a column does not overflow
CORRECT = "correct the file, or the options data.* that say how it is read"
NUMBER = f"a number between -{LARGEST:g} and {LARGEST:g}"


def labelled_set(
    manifest: Manifest, provenance: str, splits: Arrays, names: tuple[str, ...], sources: Mapping[str, Any]
) -> DataSet:
    """Create a data set from arrays.

    Args:
        sources: as for `tasks.data.dataset.make`. Since test is standardised with the statistics of train, its source
            includes that of train.
    """
    kept = {s: (x[y.any(1)], y[y.any(1)]) for s, (x, y) in splits.items()}
    dropped = {s: len(splits[s][1]) - len(y) for s, (_, y) in kept.items()}
    left_out = f"Examples without a label left out: {', '.join(f'{n} {s}' for s, n in dropped.items())}."
    notes = [left_out] if any(dropped.values()) else []
    notes += [manifest["note"]] if manifest.get("note") else []
    records = standardised(kept)
    found = {s: len(y) for s, (_, y) in kept.items()}
    about = {"labels": list(names)}
    more = {"sources": sources, "counts": found, "notes": notes, "about": about}
    return make(manifest, "features", lambda progress: records, provenance, **more)


def finite(cell: str) -> float:
    """The value of a feature. Raises ValueError unless it is a number with an absolute value of at most LARGEST."""
    value = float(cell)
    if not abs(value) <= LARGEST:
        raise ValueError(cell)
    return value


def feature(cell: str, path: Path, line: int, what: str = "", step: str = CORRECT) -> float:
    """The value of a feature in a file. Raises DataError unless `finite` accepts it."""
    try:
        return finite(cell)
    except ValueError as error:
        raise damaged(path, f"{what}{cell[:40]!r}", NUMBER, line=line, step=step, value=cell) from error


def sparse(words: Sequence[str], path: Path, line: int, step: str = CORRECT) -> dict[int, float]:
    """Features by their numbers, from words such as 3:0.5. Raises DataError if a word is not one, or a number comes twice."""
    row: dict[int, float] = {}
    for one in words:
        try:
            index, value = int(one.partition(":")[0]), finite(one.partition(":")[2])
        except ValueError:
            index = -1
        if not 0 <= index < 10_000_000:
            expected = f"labels with commas, then NUMBER:VALUE, a value being {NUMBER}"
            raise damaged(path, f"{one[:40]!r}", expected, line=line, step=step, value=one)
        if index in row:
            raise damaged(path, f"feature {index} twice", "each feature once", line=line, step=step, value=index)
        row[index] = value
    return row


def standardised(splits: Arrays) -> dict[str, Labelled]:
    """Scale features to mean 0 and variance 1 on train, and remove those that are constant there."""
    train = splits["train"][0]
    mean, scale = train.mean(0), train.std(0)
    varies = scale > 1e-12 * np.abs(mean).clip(1)
    return {s: Labelled((x[:, varies] - mean[varies]) / scale[varies], y) for s, (x, y) in splits.items()}


def read_arff(path: Path, labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Features `[n, d]` and labels `[n, K]` of a dense ARFF file.

    Nominal features become indicators, except two-valued 0/1 features, which become numbers. Raises DataError if the
    format is different, a label is not a 0/1 attribute, values are missing, or there is no row.
    """
    lines = ((n, row) for n, line in numbered(path) if (row := line.strip()) and not row.startswith("%"))
    kinds = _attributes(lines, path)  # name -> values, or None if numeric
    if wrong := [name for name in labels if set(kinds.get(name) or ()) != {"0", "1"}]:
        raise damaged(path, f"it lacks labels: {', '.join(wrong)}", "an attribute {0,1} for each label")
    if len(kinds) == len(labels):
        raise damaged(path, "it has labels only", "features too")
    columns: list[list[float]] = [[] for _ in kinds]
    for number, row in lines:
        cells = _cells(row)
        if row.startswith("{") or len(cells) != len(kinds):
            found = "a sparse row" if row.startswith("{") else f"{len(cells)} values"
            raise damaged(path, found, f"{len(kinds)} values, one for each attribute", line=number)
        for column, cell, (name, values) in zip(columns, cells, kinds.items()):
            if cell == "?":
                raise damaged(path, f"missing values: {name} is ?", "a value", line=number, step="impute them first")
            try:
                column.append(finite(cell) if values is None else float(values.index(cell)))
            except ValueError as error:
                expected = NUMBER if values is None else f"one of {', '.join(values)}"
                raise damaged(path, f"{name} is {cell[:40]!r}", expected, line=number, value=cell) from error
    if not columns[0]:
        raise damaged(path, "there is no row after @data", "rows of values")
    parts, y = [], []
    for (name, values), column in zip(kinds.items(), map(np.array, columns)):
        if values is not None and set(values) == {"0", "1"}:
            (y if name in labels else parts).append(column == values.index("1"))
        else:
            parts.extend([column] if values is None else [column == i for i in range(len(values))])
    x = np.stack([part.astype(float) for part in parts], 1)
    order = [name for name in kinds if name in labels]
    return x, np.stack([y[order.index(name)] for name in labels], 1)


def _cells(row: str) -> list[str]:
    """The values of a row, with commas between them; those in quotes may have commas too."""
    return [plain(cell[1]) for cell in _CELL.finditer(f"{row},")]


_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_CELL = re.compile(rf"\s*({_QUOTED}|[^,]*?)\s*,")
_ATTRIBUTE = re.compile(rf"""@attribute\s+({_QUOTED}|[^\s'"]\S*)\s+(.+)""", re.I)


def _attributes(lines: Iterator[tuple[int, str]], path: Path) -> dict[str, list[str] | None]:
    """The attributes before @data: name -> values, or None if numeric."""
    kinds: dict[str, list[str] | None] = {}
    for number, row in lines:
        word = row.split()[0].lower()
        if word == "@data" and kinds:
            return kinds
        if word == "@relation":
            continue
        found = _ATTRIBUTE.fullmatch(row)
        if found is None:
            raise damaged(path, f"{row[:40]!r}", "@attribute NAME TYPE, then @data", line=number)
        name, kind = plain(found[1]), found[2].strip()
        if name in kinds:
            raise damaged(path, f"a second attribute {name}", "different names", line=number)
        if kind.startswith("{") and kind.endswith("}"):
            kinds[name] = _cells(kind[1:-1])
        elif kind.lower() in ("numeric", "real", "integer"):
            kinds[name] = None
        else:
            expected = "numeric, real, integer or {values}"
            raise damaged(path, f"an attribute of type {kind[:40]!r}", expected, line=number)
    raise damaged(path, "there is no @data", "@attribute lines, then @data and one row in each line")


def plain(name: str) -> str:
    """A name without ARFF's quotes and escapes."""
    return name.strip().strip("'\"").replace("\\'", "'").replace('\\"', '"')
