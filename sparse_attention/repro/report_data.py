"""What a report shows, read from the store: selected cells, curves, samples, cells and their provenance.

Everything here is plain data for the template; nothing is drawn. A piece that is missing raises `Missing` with a sentence
for the reader, and `part` turns that (and any surprise) into a note, so that one broken file costs one figure.
"""

from __future__ import annotations

import csv
import importlib.util
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparse_attention.repro.plan import Plan, Slot
from sparse_attention.repro.store import Entry, Store, read_json
from sparse_attention.repro.table import Block, Row, Table, Value

SAMPLES = 8
LONGEST_TEXT = 700  # characters of a source or reference shown
LOWER_IS_BETTER = ("loss", "ppl", "perplexity", "ter", "wer", "cer", "aer", "error", "mse", "mae", "jsd")


class Missing(Exception):
    """A piece of the report that cannot be shown; the message says why and what would bring it."""


@dataclass
class Part:
    """A piece of the report, or the note that stands in its place."""

    content: Any = None
    note: str = ""


def part(make: Callable[..., Any], *arguments: Any) -> Part:
    """Call `make`; a failure becomes a note, because a report with a gap is worth more than no report."""
    try:
        return Part(make(*arguments))
    except Missing as missing:
        return Part(note=str(missing))
    except Exception as error:
        logging.getLogger(__name__).warning("%s: a part of the report is left out", make.__name__, exc_info=True)
        return Part(note=f"This part could not be made ({type(error).__name__}: {error}).")


@dataclass
class Line:
    """A row of the experiment in one column, with the cells selected for it (one per seed; empty: none finished)."""

    label: str
    detail: str
    style: int  # index into the palette
    slots: list[Slot] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


def styles(tables: Sequence[Table]) -> dict[str, int]:
    """Row label -> palette index, the same wherever the label appears."""
    labels = [row.label for t in tables for block in t.blocks for row in block.rows if not row.baseline]
    return {label: i for i, label in enumerate(dict.fromkeys(labels))}


def lines_of(block: Block, column: int, plan: Plan, store: Store, palette: Mapping[str, int]) -> list[Line]:
    """The rows of a block with their selected cells."""
    found = []
    for r, row in enumerate(row for row in block.rows if not row.baseline):
        slots = [slot for slot in plan.at(r, column) if slot.cell.cell_id in row.cells]
        found.append(Line(row.label, row.detail, palette[row.label], slots, [s.cell.entry(store) for s in slots]))
    return found


# ---- the table --------------------------------------------------------------------------------------------------------


def direction(spec: Mapping[str, Any]) -> int:
    """1: higher is better, -1: lower is better, 0: neither (what attention looks like is not a score)."""
    if "mode" in spec:
        return -1 if spec["mode"] == "min" else 1
    name = spec["metric"].rpartition("/")[2]
    if name.startswith("attention_") or name.endswith(("_share", "_support", "_zeros")):
        return 0
    return -1 if name in LOWER_IS_BETTER or name.endswith(("_loss", "_error")) else 1


def best_of(values: Sequence[float | None], sign: int, decimals: int) -> set[int]:
    """Positions of the best values; ties as printed share the mark. Empty with fewer than two values or sign 0."""
    known = [sign * round(v, decimals) for v in values if v is not None]
    if sign == 0 or len(known) < 2:
        return set()
    return {i for i, v in enumerate(values) if v is not None and sign * round(v, decimals) == max(known)}


@dataclass
class TableView:
    """A block ready to be printed: which places are best, and every row's verdict."""

    block: Block
    rows: list[Row]
    baselines: list[Row]
    best: set[tuple[int, int]]  # (row, ours column)
    best_published: set[tuple[int, int]]  # (row, published column)
    verdicts: list[list[str]]
    against: list[str]  # per published column the metric of ours that it is held against


def table_view(block: Block, column: Mapping[str, Any]) -> TableView:
    rows = [row for row in block.rows if not row.baseline]
    best: set[tuple[int, int]] = set()
    for c, spec in enumerate(column.get("show", ())):
        values: list[Value] = [row.values[c] for row in rows]
        means = [v.summary.mean if v.summary else None for v in values]
        best |= {(r, c) for r in best_of(means, direction(spec), int(spec.get("decimals", 2)))}
    best_published = set()
    labels = [label for _, group in block.published for label in group]
    for c, label in enumerate(labels):
        printed = [None if (theirs := row.theirs[c]) is None else theirs.value for row in rows]
        best_published |= {(r, c) for r in best_of(printed, direction({"metric": label.lower()}), 4)}
    verdicts = [list(dict.fromkeys(v for v in row.verdicts if v)) for row in rows]
    against = [metric for group in column.get("published", ()) for metric in group["against"]]
    return TableView(block, rows, [row for row in block.rows if row.baseline], best, best_published, verdicts, against)


# ---- curves and attention ---------------------------------------------------------------------------------------------


def read_curves(entry: Entry) -> dict[str, list[float]]:
    """`curves.csv` by columns; what is not a number is NaN. Empty when the file is absent."""
    try:
        with entry.path("curves.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return {}
    return {key: [_number(row.get(key)) for row in rows] for key in rows[0] if key} if rows else {}


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def split_of(column: Mapping[str, Any]) -> str:
    """The test set a column shows, e.g. `test` or `duc2004`."""
    return next((s["metric"].partition("/")[0] for s in column.get("show", ())), "test")


def scores(line: Line, *names: str) -> list[float]:
    """One value per selected cell: the first of the named metrics that it has."""
    found = []
    for entry in line.entries:
        metrics = (entry.metrics() or {}).get("metrics", {})
        value = next((metrics[n] for n in names if isinstance(metrics.get(n), (int, float))), None)
        if value is not None and math.isfinite(value):
            found.append(float(value))
    return found


# ---- samples ----------------------------------------------------------------------------------------------------------


@dataclass
class Output:
    label: str
    style: int
    words: list[tuple[str, bool]]  # word, whether a reference has it too
    score: str
    available: bool = True


@dataclass
class Sample:
    index: int
    source: str
    references: list[str]
    outputs: list[Output]


def predictions_of(lines: Sequence[Line], split: str) -> list[dict[int, dict[str, Any]] | None]:
    """Per line the records of its first selected cell by example index; None where there are none or they cannot be read."""
    found: list[dict[int, dict[str, Any]] | None] = []
    for line in lines:
        try:
            records = line.entries[0].predictions() if line.entries else []
        except Exception as error:  # a damaged file costs this row its samples, not the report
            logging.getLogger(__name__).warning("%s: %s", line.entries[0].path("predictions.jsonl.gz"), error)
            records = []
        by_index = {int(r["index"]): r for r in records if "index" in r and r.get("set", split) == split}
        found.append(by_index or None)
    return found


def samples(
    lines: Sequence[Line], records: Sequence[dict[int, dict[str, Any]] | None], shown: Sequence[Mapping[str, Any]]
) -> list[Sample]:
    """Examples evenly spaced through the test set (never picked by hand), with every row's output."""
    available = [r for r in records if r]
    if not available:
        raise Missing("No predictions are stored for this column.")
    common = sorted(set.intersection(*(set(r) for r in available))) or sorted(available[0])
    step = len(common) / min(SAMPLES, len(common))
    chosen = [common[int(step * (i + 0.5))] for i in range(min(SAMPLES, len(common)))]
    names = [spec["metric"].rpartition("/")[2] for spec in shown]
    found = []
    for index in chosen:
        first = next(r[index] for r in available if index in r)
        references = [str(r) for r in first.get("references", ())]
        known = {_folded(word) for r in references for word in r.split()} - {""}
        outputs = []
        for line, by_index in zip(lines, records):
            record = (by_index or {}).get(index)
            if record is None:
                outputs.append(Output(line.label, line.style, [], "", available=False))
                continue
            text = str(record.get("output", record.get("prediction", "")))
            words = [(word, _folded(word) in known) for word in text.split()]
            outputs.append(Output(line.label, line.style, words, _sentence_score(record, names)))
        found.append(Sample(index, clip(str(first.get("source", ""))), [clip(r) for r in references], outputs))
    return found


def _folded(word: str) -> str:
    return re.sub(r"[^\w]+", "", word.casefold())


def _sentence_score(record: Mapping[str, Any], names: Sequence[str]) -> str:
    scores = {k: v for k, v in (record.get("sentence") or {}).items() if isinstance(v, (int, float))}
    name = next((n for n in [*names, *scores] if n in scores), None)
    return "" if name is None else f"{name} {scores[name]:.1f}"


def clip(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


# ---- cells and provenance ---------------------------------------------------------------------------------------------


@dataclass
class CellView:
    cell_id: str
    state: str
    row: str
    column: str
    seed: int
    parameters: str
    selected: bool
    epoch: str
    seconds: float | None
    speed: float | None
    folder: str
    error: str
    trace: str


def cell_views(plan: Plan, table: Table, store: Store, failed: Mapping[str, str], beside: Path) -> list[CellView]:
    """One line per slot of the plan; `beside` is the report's folder, links are relative to it."""
    views = []
    rows, columns = plan.experiment["rows"], plan.experiment["columns"]
    for slot in plan.slots:
        entry, config = slot.cell.entry(store), slot.cell.config
        stored = entry.metrics() or {}
        metrics, status = stored.get("metrics", {}), entry.status()
        chosen = [row for row in table.blocks[slot.column].rows if not row.baseline]
        state = "failed" if slot.cell.cell_id in failed and not stored else status["state"]
        broken = state in ("failed", "lost")
        told = failed.get(slot.cell.cell_id, "").strip()
        epoch = metrics.get("best_epoch")
        epochs = (config.get("train") or {}).get("max_epochs")
        views.append(
            CellView(
                slot.cell.cell_id, state, rows[slot.row]["label"], columns[slot.column]["label"], slot.seed,
                ", ".join(f"{k}={v}" for k, v in config["mapping"].items() if k != "name"),
                slot.row < len(chosen) and slot.cell.cell_id in chosen[slot.row].cells,
                "" if epoch is None else f"{epoch:.0f} of {epochs}",
                stored.get("seconds"), metrics.get("train/tokens_per_second"),
                quote(os.path.relpath(entry.folder, beside).replace(os.sep, "/")),
                (status.get("error") or told.partition("\n")[0]) if broken else "",
                (status.get("traceback") or told.partition("\n")[2]) if broken else "",
            )
        )  # fmt: skip
    return views


def provenance(plans: Sequence[Plan], store: Store) -> list[tuple[str, list[tuple[str, int]]]]:
    """(what, [(value, number of cells)]) over all cells: several values mean that the cells were not made alike."""
    seen: dict[str, Counter[str]] = {}

    def count(what: str, value: Any) -> None:
        if value not in (None, "", {}):
            seen.setdefault(what, Counter())[str(value)] += 1

    cells = {cell_id: cell for plan in plans for cell_id, cell in plan.cells.items()}
    started: list[str] = []
    seconds = 0.0
    for cell in cells.values():
        record = read_json(cell.entry(store).path("provenance.json"))
        if record is None:
            continue
        code, machine = record.get("code") or {}, record.get("machine") or {}
        count(
            "code", code.get("commit") and code["commit"] + (" with uncommitted changes" if code.get("dirty") else "")
        )
        count("python", record.get("python"))
        count("packages", ", ".join(f"{k} {v}" for k, v in (record.get("packages") or {}).items()))
        count(
            "machine",
            ", ".join(
                str(v) for v in (machine.get("system"), machine.get("cpu"), f"{machine.get('cores')} cores") if v
            ),
        )
        count("gpu", machine.get("gpu"))
        runtime = cell.config.get("runtime") or {}
        count("ran on", ", ".join(f"{k} {runtime[k]}" for k in ("device", "precision", "threads") if k in runtime))
        count("data", f"sha256 {record.get('data_sha256')}")
        count("command", record.get("command"))
        started.append(str(record.get("started", "")))
        seconds += float(record.get("seconds") or 0.0)
    if not started:
        raise Missing("No finished cell has left a provenance record.")
    found = [(what, values.most_common()) for what, values in seen.items()]
    found.append(("started", [(f"{min(started)} to {max(started)}", len(started))]))
    return [*found, ("time of all cells", [(f"{seconds / 60:.1f} minutes", len(started))])]


def deviations(plan: Plan, table: Table) -> list[str]:
    """Where the experiment deviates from the paper: its own footers that say so, and the section of its tasks' READMEs."""
    found = [footer for footer in table.footers if re.search(r"\bdeviations\b", footer, re.I)]
    for entry in dict.fromkeys(slot.cell.config["task"]["entry"] for slot in plan.slots):
        found += _readme_deviations(entry)
    return found


def _readme_deviations(entry: str) -> list[str]:
    """The list under a heading with `deviations` in the README beside a task's module."""
    try:
        spec = importlib.util.find_spec(entry)
    except (ImportError, ValueError):
        return []
    readme = Path(spec.origin).parent / "README.md" if spec and spec.origin else None
    if readme is None or not readme.is_file():
        return []
    section = re.search(
        r"^#+ [^\n]*deviations[^\n]*\n(.*?)(?=^#|\Z)", readme.read_text(encoding="utf-8"), re.M | re.S | re.I
    )
    items = re.split(r"^[-*] +", section[1], flags=re.M)[1:] if section else []
    return [" ".join(item.split()) for item in items]
