"""Finished cells of an experiment, found by the overrides they were run with."""

from __future__ import annotations

from collections.abc import Sequence

from sparse_attention.repro.store import Store
from tasks import reproduce
from tasks.data.errors import DataUnavailable
from tasks.vqa.figures import Panel, read_panel


def panels(name: str, overrides: Sequence[str], seed: int | None = None) -> tuple[list[Panel], str]:
    """One panel a row of the experiment's first column, and the outputs folder.

    Args:
        overrides: of the run, as for scripts/reproduce.py.
        seed: None for the first of the run.
    Raises:
        ValueError: overrides that do not compose. DataUnavailable: a cell is not finished.
    """
    planned = reproduce.plan([name], overrides if seed is None else [*overrides, f"seeds={seed}"])
    plan, store, found = planned.plans[0], Store(planned.outputs), []
    for slot in plan.slots:
        if slot.column or slot.cell.seed != plan.slots[0].cell.seed:
            continue
        label = plan.experiment["rows"][slot.row]["label"]
        entry = slot.cell.entry(store)
        if entry.metrics() is None:
            raise DataUnavailable(
                f"the row {label!r} is not finished", str(entry.folder), f"python scripts/reproduce.py {' '.join([name, *overrides])}"
            )  # fmt: skip
        found.append(read_panel(label, entry, slot.cell.config))
    return found, planned.outputs
