"""From an experiment (rows x columns x grids x seeds) to the cells it needs.

An experiment is a plain dict, read from `configs/experiment/*.yaml`:

    title, paper, table          what it repeats
    published                    name of the file with the printed numbers
    rows:     - {label, published, overrides: [...], grid: {key: [values]}}
    columns:  - {label, overrides: [...], show: [...], select: {metric, mode}, published: [...]}
    seeds: [1, 2, 3]

`overrides` are Hydra overrides. A row with a grid becomes one cell per grid point and column; `select` keeps, per
column, the point with the best mean dev metric over the seeds, as the papers did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparse_attention.repro.cell import Cell

Compose = Callable[[Sequence[str]], Mapping[str, Any]]
Prepare = Callable[[Mapping[str, Any]], Cell | None]  # None: only look at the configurations


class PlanError(ValueError):
    """Everything that is wrong with an experiment, collected."""


@dataclass(frozen=True)
class Slot:
    """A place in the table that a cell fills: one row, column, grid point and seed."""

    row: int
    column: int
    point: tuple[tuple[str, Any], ...]
    seed: int
    cell: Cell


@dataclass
class Plan:
    """An experiment with its cells; cells that several slots share appear once."""

    experiment: Mapping[str, Any]
    slots: list[Slot] = field(default_factory=list)
    unavailable: dict[int, str] = field(default_factory=dict)  # column -> why it has no cells

    @property
    def cells(self) -> dict[str, Cell]:
        return {slot.cell.cell_id: slot.cell for slot in self.slots}

    def at(self, row: int, column: int) -> list[Slot]:
        return [s for s in self.slots if s.row == row and s.column == column]


def points(grid: Mapping[str, Sequence[Any]] | None) -> list[tuple[tuple[str, Any], ...]]:
    """The grid's points as tuples of (key, value); one empty point without a grid."""
    if not grid:
        return [()]
    keys = list(grid)
    return [tuple(zip(keys, values)) for values in itertools.product(*(grid[k] for k in keys))]


def requests(experiment: Mapping[str, Any], overrides: Sequence[str] = ()):
    """Yield (row, column, point, seed, Hydra overrides) for every slot. User overrides come last and win."""
    for (c, column), (r, row) in itertools.product(enumerate(experiment["columns"]), enumerate(experiment["rows"])):
        grid = (row.get("grids") or {}).get(column.get("grid"), row.get("grid"))
        for point, seed in itertools.product(points(grid), experiment["seeds"]):
            assigned = [f"{key}={_text(value)}" for key, value in point]
            yield r, c, point, seed, [*column["overrides"], *row["overrides"], *assigned, f"seed={seed}", *overrides]


def make(
    experiment: Mapping[str, Any], compose: Compose, prepare: Prepare, overrides: Sequence[str] = (),
    unavailable: type[Exception] | tuple[type[Exception], ...] = (),
) -> Plan:  # fmt: skip
    """Resolve every slot of `experiment`; configuration errors are collected and raised together as `PlanError`.

    Args:
        compose: Hydra overrides -> resolved configuration.
        prepare: configuration -> cell (acquires the data), or None for a plan without cells.
        unavailable: exceptions of `prepare` that mean "this column's data cannot be had": the column is left out
            and says why.
    """
    plan = Plan(experiment)
    problems: dict[str, list[str]] = {}  # what is wrong -> the rows it concerns
    for row, column, point, _, wanted in requests(experiment, overrides):
        if column in plan.unavailable:
            continue
        try:
            config = compose(wanted)
        except Exception as error:
            problems.setdefault(str(error), []).append(experiment["rows"][row]["label"])
            continue
        try:
            cell = prepare(config)
        except unavailable as error:
            plan.unavailable[column] = str(error)
            plan.slots = [s for s in plan.slots if s.column != column]
            continue
        # an override on the command line can make points and seeds equal: that is one run, not several
        if cell is not None and all(s.cell.cell_id != cell.cell_id for s in plan.at(row, column)):
            plan.slots.append(Slot(row, column, point, cell.seed, cell))
    if problems:
        listed = "\n  ".join(f"{', '.join(dict.fromkeys(rows))}: {error}" for error, rows in problems.items())
        count = sum(map(len, problems.values()))
        raise PlanError(
            f"{count} configuration(s) of {experiment.get('title', 'the experiment')} cannot be used:\n  {listed}"
        )
    return plan


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
