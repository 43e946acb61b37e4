"""Documents as vectors with labels: the reader of ARFF files, the preprocessing common to all such data sets, several labels in a cell.

Features have mean 0 and variance 1 on train. As in Laha et al., constant features and examples without a label are left
out.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.dataset import DataSet, Manifest, make
from tasks.data.errors import DataError
from tasks.data.read.formats import damaged, read_text
from tasks.data.records import Labelled

Arrays = Mapping[str, tuple[np.ndarray, np.ndarray]]  # split -> features [n, d], labels [n, K]
LARGEST = 1e150  # largest feature value, so that the variance of a column does not overflow
CORRECT = "correct the file, or the options data.* that say how it is read"
_LIST = re.compile(r"""\[(?:.*[,;|'"].*)?\]|[({]\s*['"].*['"]\s*,?\s*[)}]""", re.S)
AS_LISTS = (
    "save the table as .jsonl or .parquet, where lists are lists; or write them as a|b, and set data.separator='|'"
)
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
    train = kept["train"][0]
    mean, scale = train.mean(0), train.std(0)
    varies = scale > 1e-12 * np.abs(mean).clip(1)
    records = {s: Labelled((x[:, varies] - mean[varies]) / scale[varies], y) for s, (x, y) in kept.items()}
    found = {s: len(y) for s, (_, y) in kept.items()}
    more = {"sources": sources, "counts": found, "notes": notes, "about": {"labels": list(names)}}
    return make(manifest, "features", lambda progress: records, provenance, **more)


def feature(cell: str, path: Path, line: int, what: str = "", step: str = CORRECT) -> float:
    """The value of a feature in a file. Raises DataError unless it is a number with an absolute value of at most LARGEST."""
    try:
        value = float(cell)
        if not abs(value) <= LARGEST:
            raise ValueError(cell)
        return value
    except ValueError as error:
        raise damaged(path, f"{what}{cell[:40]!r}", NUMBER, line=line, step=step) from error


def checked(x: np.ndarray, path: Path) -> np.ndarray:
    """Features of a file. Raises DataError unless all are numbers with absolute values of at most LARGEST."""
    if (wrong := x[~(np.abs(x) <= LARGEST)]).size:
        raise damaged(path, f"a value is {wrong[0]:g}", NUMBER, step=CORRECT)
    return x


def read_arff(path: Path, labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Features `[n, d]` and labels `[n, K]` of a dense ARFF file.

    Nominal features become indicators, except two-valued 0/1 features, which become numbers. Raises DataError if scipy
    cannot read the file, a label is not a 0/1 attribute, values are missing, or there is no row.
    """
    from scipy.io import arff

    try:
        rows, meta = arff.loadarff(io.StringIO(read_text(path)))
    except DataError:
        raise
    except Exception as error:  # scipy raises anything, from StopIteration to IndexError
        expected = "dense ARFF with numeric and {nominal} attributes, and as many values in each row"
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise damaged(path, f"it cannot be read ({why})", expected) from error
    kinds = {plain(name): meta[name][1] for name in meta.names()}  # name -> values, or None if numeric
    if wrong := [name for name in labels if set(kinds.get(name) or ()) != {"0", "1"}]:
        raise damaged(path, f"it lacks labels: {', '.join(wrong)}", "an attribute {0,1} for each label")
    if len(kinds) == len(labels) or not len(rows):
        problem = "there is no row after @data" if len(kinds) > len(labels) else "it has labels only"
        raise damaged(path, problem, "features and labels")
    parts, y = [], {}
    for (name, values), column in zip(kinds.items(), (rows[name] for name in meta.names())):
        found = [column] if values is None else [column == value.encode() for value in values]
        if (values is None and np.isnan(column).any()) or (values is not None and not np.any(found, 0).all()):
            raise damaged(path, f"{name} has missing values", "a value in every row", step="impute them first")
        if values is not None and set(values) == {"0", "1"}:
            found = [found[values.index("1")]]
        y[name] = found[0] if name in labels else parts.extend(found)
    return checked(np.stack([part.astype(float) for part in parts], 1), path), np.stack([y[n] for n in labels], 1)


def plain(name: str) -> str:
    """A name without ARFF's quotes and escapes."""
    return name.strip().strip("'\"").replace("\\'", "'").replace('\\"', '"')


def joined(values: Iterable[str]) -> str:
    """The separator of several labels in one cell, as in a|b, if most of the labels occur in other cells too; else ""."""
    for sign in "|;,":
        cells = [[part.strip() for part in value.split(sign)] for value in set(values)]
        times = Counter(part for parts in cells for part in set(parts))
        several = [times[part] > 1 for parts in cells if len(parts) > 1 for part in parts]
        if several and "" not in times and sum(several) >= len(several) / 2:
            return sign
    return ""


def is_list(text: str) -> bool:
    """Whether a cell holds a list as Python or pandas write it, such as ['a', 'b']."""
    return _LIST.fullmatch(text.strip()) is not None
