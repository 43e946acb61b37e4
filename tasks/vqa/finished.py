"""Finished cells of an experiment, found by the overrides they were run with."""

from __future__ import annotations

from collections.abc import Sequence

from sparse_attention.repro import cell as cells
from sparse_attention.repro import plan as plans
from sparse_attention.repro.store import Store
from tasks import compose
from tasks.data.errors import DataUnavailable
from tasks.data.progress import Progress
from tasks.vqa.figures import Panel, read_panel


def panels(name: str, overrides: Sequence[str], seed: int | None = None) -> tuple[list[Panel], str]:
    """One panel a row of the experiment's first column, and the outputs folder.

    Args:
        overrides: of the run; profile=NAME as for scripts/reproduce.py.
        seed: None for the experiment's first.
    Raises:
        DataUnavailable: a cell is not finished.
    """
    profile = ([o.split("=", 1)[1] for o in overrides if o.startswith("profile=")] or ["demo"])[-1]
    rest = [o for o in overrides if not o.startswith("profile=")]
    experiment = compose.experiment(name, profile)
    experiment["seeds"] = [experiment["seeds"][0] if seed is None else seed]
    progress, roots = Progress(), set()

    def prepare(config):
        roots.add(config["paths"]["outputs"])
        return cells.prepare(config, progress)

    with compose.composer() as composed:
        plan = plans.make(experiment, composed, prepare, rest)
    store, found = Store(next(iter(roots))), []
    for slot in plan.slots:
        if slot.column:
            continue
        label = experiment["rows"][slot.row]["label"]
        entry = slot.cell.entry(store)
        if entry.metrics() is None:
            raise DataUnavailable(
                f"the row {label!r} is not finished",
                str(entry.folder),
                f"python scripts/reproduce.py {name} profile={profile}",
            )
        found.append(read_panel(label, entry, slot.cell.config))
    return found, next(iter(roots))
