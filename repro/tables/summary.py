"""The reproducibility summary of an experiment: scope, results, what was easy, what was hard, deviations, cost.

The headings are those of the ML Reproducibility Challenge. Every sentence states a fact about the table or its cells.
"Easy" covers cells that finished at the first attempt, rows that converged and numbers that were reproduced. "Hard"
covers cells that failed, were restarted or are missing, rows that have not converged, and numbers that differ or cannot
be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from repro.files import read_json
from repro.identity import Cell, Found
from repro.plan import Plan
from repro.store import Store
from repro.tables.blocks import Block, Table, rank_agreement
from repro.tables.convergence import LEARNING, UNKNOWN
from repro.tables.verdict import APART, FREE, MISSED, OPEN, REPRODUCED


@dataclass(frozen=True)
class _Done:
    """A finished cell with its column, the number of attempts at its training, and the machine it ran on."""

    cell: Cell
    found: Found
    column: str
    attempts: int
    machine: str


def summary(plan: Plan, store: Store, built: Table, troubles: Sequence[str] = ()) -> str:
    """The summary as Markdown.

    Args:
        built: the table of the plan.
        troubles: one message for each cell that failed or was moved aside as damaged.
    """
    one = plan.experiment
    done = list(_finished(plan, store))
    cells = len(plan.cells)
    parts = [
        ("Scope", [*_scope(plan, {one.cell.cell_id for one in done})]),
        (
            "What was reproduced",
            [*built.findings, *built.tested, *(line for block in built.blocks for line in _reproduced(block))],
        ),
        ("What was easy", _easy(built, done, cells)),
        ("What was hard", [*_hard(built, done, cells), *troubles] or ["Nothing failed, was restarted or is missing."]),
        ("Deviations", list(built.deviations) or ["None."]),
        ("Cost", _cost(done)),
    ]
    lines = [f"# Reproducibility summary: {one.title}", "", f"*{built.subtitle}*"]
    for heading, told in parts:
        lines += ["", f"## {heading}", "", *(f"- {text}" for text in told)]
    return "\n".join(lines) + "\n"


def _finished(plan: Plan, store: Store) -> Iterable[_Done]:
    labels = {s.cell.cell_id: plan.experiment.columns[s.column].label for s in reversed(plan.slots)}
    for named, cell in plan.cells.items():
        found = cell.found(store)
        if found is not None:
            told = read_json(found.folder / "provenance.json") or {}
            yield _Done(cell, found, labels[named], int(told.get("attempt") or 1), _machine(told.get("machine") or {}))


def _machine(told: dict[str, Any]) -> str:
    return ", ".join(
        str(x) for x in (told.get("gpu") or told.get("cpu"), f"{told.get('cores')} cores") if x and "None" not in str(x)
    )


def _scope(plan: Plan, finished: set[str]) -> Iterable[str]:
    one, cells = plan.experiment, len(plan.cells)
    seeds = sorted({slot.seed for slot in plan.slots})
    yield (
        f"{one.title}, profile {one.profile}: {len(one.rows)} rows, {len(one.columns)} columns, seeds "
        f"{', '.join(map(str, seeds)) or '-'}; {cells} cells."
    )
    yield f"Rows: {', '.join(row.label for row in one.rows)}."
    for number, column in enumerate(one.columns):
        slot = next((s for s in plan.slots if s.column == number and s.cell.cell_id in finished), None)
        if number in plan.unavailable:
            told = f"not run: {plan.unavailable[number]}"
        elif slot is None:  # only a finished cell's record says which data it had
            told = "data not known: no cell is finished"
        else:
            short = "; ".join(slot.cell.prepared.shortfalls)
            told = f"not the full data of the paper: {short}" if short else "the data of the paper"
        yield f"{column.label}: {told}."
    if by_hand := [o for o in plan.overrides if o.split("=")[0].split(".")[0] not in FREE]:
        yield f"Set by hand: {', '.join(by_hand)}."


def _reproduced(block: Block) -> Iterable[str]:
    if block.unavailable:
        return
    words = Counter(v.word for row in block.rows for v in row.verdicts if v is not None)
    ours = [row for row in block.rows if row.found]
    if words:
        counted = ", ".join(f"{n} {w}" for w, n in words.most_common())
        yield f"{block.label}: of {sum(words.values())} printed numbers {counted}."
    else:
        yield f"{block.label}: {len(ours)} rows have a number; the paper has none for them."
    for column, header in enumerate(block.columns):
        fair = [row for row in ours if (v := row.verdicts[column]) is not None and v.comparable]
        told = [f"{row.label} {text}" for row in fair if (text := row.difference(column, block.against))]
        if told:
            yield f"{block.label}: ours minus {header}: {'; '.join(told)}."
        if agreement := rank_agreement(block, column):
            yield f"{block.label}: order of {agreement[1]} rows beside {header}: Kendall's tau {agreement[0]:.2f}."
    yield from (f"{block.label}: {text}" for text in block.findings)


def _easy(built: Table, done: Sequence[_Done], cells: int) -> list[str]:
    first = sum(one.attempts == 1 for one in done)
    rest = [row for block in built.blocks for row in block.rows if row.found and not row.baseline]
    found = [f"{first} of {cells} cells were finished at the first attempt."]
    if rest:
        found.append(f"{sum(row.convergence.converged for row in rest)} of {len(rest)} rows have converged.")
    if same := sum(v.word == REPRODUCED for row in rest for v in row.verdicts if v):
        found.append(f"{same} printed numbers are reproduced.")
    if done:
        found.append(f"Half of the cells took {median_low(one.found.seconds for one in done):,.0f} s or less each.")
    return found


def _hard(built: Table, done: Sequence[_Done], cells: int) -> list[str]:
    found = []
    if cells > len(done):
        found.append(f"{cells - len(done)} of {cells} cells are missing.")
    if again := [one for one in done if one.attempts > 1]:
        total = sum(one.attempts - 1 for one in again)
        found.append(
            f"{len(again)} cells were restarted, {total} times in all: {', '.join(sorted({o.cell.label for o in again}))}."
        )
    for block in built.blocks:
        if block.unavailable:
            found.append(f"{block.label}: its data are unavailable ({block.unavailable}).")
        for state, told in ((LEARNING, "still learning when the training ended"), (UNKNOWN, UNKNOWN)):
            if rows := [row.label for row in block.rows if row.found and row.convergence.state == state]:
                found.append(f"{block.label}: {told}: {', '.join(rows)}.")
        given = [(row.label, v) for row in block.rows for v in row.verdicts if v]
        if off := [label for label, v in given if v.word == MISSED]:
            found.append(f"{block.label}: outside the tolerance: {', '.join(dict.fromkeys(off))}.")
        for word, told in ((OPEN, "inconclusive, because"), (APART, "not comparable, because")):
            if reasons := dict.fromkeys(why for _, v in given if v.word == word for why in v.why):
                found.append(f"{block.label}: {told}: {'; '.join(reasons)}.")
    return found


def _cost(done: Sequence[_Done]) -> list[str]:
    if not done:
        return ["No cell is finished."]
    hours: Counter[str] = Counter()
    for one in done:
        hours[one.column] += one.found.seconds / 3600  # type: ignore[assignment]
    total = sum(hours.values())
    machines = Counter(one.machine for one in done if one.machine)
    lines = [
        f"{len(done)} cells took {total:.2f} hours in all for training and evaluation, without data preparation and installation."
    ]
    lines += [f"{label}: {spent:.2f} hours." for label, spent in hours.items()]
    if machines:
        lines.append("Run on: " + "; ".join(f"{name} ({n} cells)" for name, n in machines.most_common()) + ".")
    slowest = max(done, key=lambda one: one.found.seconds)
    lines.append(f"The longest cell: {slowest.cell.label}, seed {slowest.cell.seed}, {slowest.found.seconds:,.0f} s.")
    return lines
