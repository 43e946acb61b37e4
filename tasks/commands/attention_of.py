"""Attention of a finished table's models on stored test examples, your own texts, forced outputs or aligned pairs."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repro.cell import Cell
from repro.plan.experiment import Column
from repro.store import Evaluation, Store
from repro.tables.compare import listed
from tasks.classification.predict import collate
from tasks.commands import reproduce
from tasks.config.request import REPRODUCE, Request
from tasks.data import DataUnavailable
from tasks.data.cache import read_meta
from tasks.data.records import Example as Texts
from tasks.data.records import Pair
from tasks.data.symbols import EOS, SPECIAL
from tasks.draw import attention
from tasks.draw.attention import Example, Panel, Row
from tasks.seq2seq import alignment
from tasks.use.model import Loaded, load_cell


@dataclass
class Finished:
    """A column of an experiment with finished cells, all with the same seed.

    Attributes:
        title: title of the experiment.
        column: the column.
        cells: (label, cell) for every row.
        store: where they are.
    """

    title: str
    column: Column
    cells: list[tuple[str, Cell]]
    store: Store

    def test(self, cell: Cell) -> Evaluation:
        """The evaluation of a cell on the test set."""
        return cell.results(self.store).evaluations["test"]

    def models(self) -> Iterator[tuple[str, Cell, Loaded]]:
        """(label, cell, loaded model) for every row."""
        for label, cell in self.cells:
            yield label, cell, load_cell(cell.entry(self.store).folder, plugins=cell.config["plugins"])


def finished(name: str, overrides: Sequence[str], column: str | None = None, points: str = "") -> Finished:
    """The cells of an experiment's column (default: the first column) with the experiment's first seed.

    Args:
        points: beginning of a row label. If given, all finished grid points of the matching rows are returned instead
            of the rows; this includes rows made by add=sparsegen_lin,lam=[0,0.5].

    Raises:
        ValueError: the column is unknown or has no cells.
        DataUnavailable: a row is not finished.
    """
    again = shlex.join(["python", "scripts/reproduce.py", name, *overrides])
    request = Request.read(overrides, REPRODUCE, [name])
    (outline,) = reproduce.outlined(request)
    one, store = outline.experiment, reproduce.store_of(outline.slots)
    keys = [c.key for c in one.columns]
    if column is not None and column not in keys:
        raise ValueError(f"column {column!r} is not in {name} with this profile; there are: {', '.join(keys)}")
    at, rows = keys.index(column) if column else 0, [row.label for row in one.rows]
    for cell in outline.slots:  # before data are fetched: rows whose mapping has no finished cell at all
        place = Path(cell.config["paths"]["outputs"], "cells", cell.task, cell.mapping)
        if not points and cell.column == at and not any(place.glob("*/manifest.json")):
            raise DataUnavailable(f"the row {rows[cell.row]!r} is not finished", str(place), f"run: {again}")
    (plan,) = reproduce.prepared([outline])
    cells: dict[str, Cell] = {}
    for slot in (s for s in plan.slots if s.column == at):
        label, done = rows[slot.row], slot.results(store) is not None
        if points:
            if not done or not label.replace("_", "-").startswith(points.replace("_", "-")):
                continue
            label = listed(dict(slot.point)) or label
        elif not done:
            raise DataUnavailable(f"the row {label!r} is not finished", str(slot.entry(store).folder), f"run: {again}")
        cells.setdefault(label, slot)
    if not cells:
        told = plan.unavailable.get(at, f"no point of {points} is finished")
        raise ValueError(f"{one.columns[at].label}: {told}")
    return Finished(one.title, one.columns[at], list(cells.items()), store)


# ---- stored test examples


def stored(trained: Finished) -> list[Row]:
    """The test records and stored attention of every row. Raises DataUnavailable if a row has no stored attention."""
    rows = []
    for label, cell in trained.cells:
        if not (arrays := (level := trained.test(cell)).attention()):
            told = f"the row {label!r} has no stored attention"
            raise DataUnavailable(told, str(level.folder), "set task.keep_attention=50")
        rows.append((label, cell.mapping, _records(trained, cell), arrays))
    return rows


def examples(trained: Finished, indices: Sequence[int], what: str) -> list[dict[str, Any]]:
    """The records of test examples. Raises ValueError if there is none with an index, or the table did not store `what` of it."""
    records = _records(trained, trained.cells[0][1])
    if missing := [i for i in indices if what not in records.get(i, {})]:
        raise ValueError(f"test examples {missing} have no stored {what}; choose other numbers")
    return [records[i] for i in indices]


def _records(trained: Finished, cell: Cell) -> dict[int, dict[str, Any]]:
    return {r["index"]: r for r in trained.test(cell).predictions() if r["set"] == "test"}


# ---- your own texts


def translated(trained: Finished, text: str) -> Example:
    """Translate your own sentence with the model of every row."""
    panels, source = [], []
    for label, cell, loaded in trained.models():
        (one,) = loaded.translate([text])
        source = one.source_tokens
        panels.append(_panel(label, cell, loaded, one.output_tokens, one.attention))
    return attention.sentence(text, source, "", panels)


def _panel(label: str, cell: Cell, loaded: Loaded, output: Sequence[str], weights: torch.Tensor) -> Panel:
    """A panel with the attention [T, S] of one row; for continuous attention also with its densities."""
    kept = {"weights": weights}
    if hasattr(loaded.model, "densities"):
        kept |= loaded.model.densities(weights)
    return Panel(label, cell.mapping, output, {name: value.numpy() for name, value in kept.items()})


def classified(trained: Finished, texts: Sequence[str]) -> Example:
    """Classify your own text or pair of texts with the model of every row; one panel with one line per row."""
    lines, source, weights = [], [], []
    for label, _, loaded in trained.models():
        (one,) = loaded.classify([tuple(texts)])
        source, lines = one.source_tokens, [*lines, f"{label}: {one.output}"]
        weights.append(one.attention[0].numpy())
    mappings = tuple(cell.mapping for _, cell in trained.cells)
    panel = Panel(" / ".join(texts[1:]), mappings, lines, {"weights": np.stack(weights)})
    return attention.sentence(" / ".join(texts), source, "", [panel])


def forced(trained: Finished, source: str, output: str) -> Example:
    """Run the model of every row on `source` while forcing it to write `output`, word by word."""
    panels, tokens = [], []
    for label, cell, loaded in trained.models():
        with loaded.as_test_set([Pair(source, (output,))], {"digits": None}) as test:
            split = test.splits["test"]
            (weights,) = alignment.forced(loaded.model, split, 1)
            tokens, said = split.source_tokens[0], [*split.target_tokens[0], SPECIAL[EOS]]
        panels.append(_panel(label, cell, loaded, said, weights))
    return attention.sentence(source, tokens, output, panels)


@torch.no_grad()
def aligned(trained: Finished, pairs: Sequence[tuple[tuple[str, str], str]]) -> list[Example]:
    """Align pairs of texts, given with their classes, with the model of every row.

    Raises ValueError if a model does not align words.
    """
    examples: list[Example] = []
    for label, _, loaded in trained.models():
        if not hasattr(loaded.model, "aligned"):
            raise ValueError(f"the row {label!r} is {loaded.config['model']['name']}, which aligns no words; use esim")
        meta = read_meta(loaded.encoding.folder)
        outputs = [prediction.output for prediction in loaded.classify([texts for texts, _ in pairs])]
        device = next(loaded.model.parameters()).device
        about = {"classes": meta["classes"], "fields": meta["fields"]}
        with loaded.as_test_set([Texts(tuple(texts), 0) for texts, _ in pairs], about) as test:
            split = test.splits["test"]
            for i, output in enumerate(outputs):
                if i == len(examples):
                    examples.append(attention.pair(*(list(field[i]) for field in split.tokens), pairs[i][1]))
                ids, lengths = collate(split, [i])
                *_, (p, _), factors = loaded.model.aligned([t.to(device) for t in ids], lengths, structures=True)
                weights, structures = np.zeros(0), np.zeros((0, p.size(1)), dtype=int)
                if factors:
                    weights, structures = (t[0].cpu().numpy() for t in (factors[0].weights, factors[0].structures))
                    order = np.argsort(-weights, kind="stable")[: (weights > 0).sum()]
                    weights, structures = weights[order], structures[order]
                attention.align(examples[i], label, output, p[0].cpu().numpy(), weights, structures)
    return examples
