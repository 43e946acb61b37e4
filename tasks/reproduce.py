"""Experiments from their names to printed tables: plan everything, run what is missing, print each table when it is complete."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sparse_attention.repro import cell as cells
from sparse_attention.repro import plan as plans
from sparse_attention.repro import pool, table
from sparse_attention.repro.display import Display, clock
from sparse_attention.repro.store import Store, StoreError
from tasks import compose
from tasks.data.errors import DataError
from tasks.data.progress import Progress
from tasks.loggers import make_loggers


def experiments() -> dict[str, str]:
    """Name -> title of every experiment."""
    files = sorted((compose.CONFIGS / "experiment").glob("*.yaml"))
    return {path.stem: OmegaConf.load(path)["title"] for path in files}


def main(names: Sequence[str], overrides: Sequence[str]) -> int:
    """Exit status: 0 when every table is complete, 1 when a cell failed, 2 for errors in the configuration."""
    profile = next((o.split("=", 1)[1] for o in overrides if o.startswith("profile=")), "demo")
    rest = [o for o in overrides if not o.startswith("profile=")]
    progress = Progress()
    try:
        made, runtime, root = _plan(names, profile, rest, progress)
    except (compose.ConfigError, plans.PlanError, DataError, StoreError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    store = Store(root)
    needed = list({cell_id: cell for plan in made for cell_id, cell in plan.cells.items()}.values())
    missing = [cell for cell in needed if cell.entry(store).metrics() is None]
    reused = len(needed) - len(missing)
    progress.say(f"{len(needed)} cells: {reused} finished before, {len(missing)} to run on {runtime['workers']} worker(s)")
    display = Display(len(missing), runtime["workers"])
    printed: set[int] = set()
    failed: dict[str, str] = {}
    reports: list[Path] = []

    def print_complete() -> None:
        for number, plan in enumerate(made):
            done = all(c.entry(store).metrics() is not None or i in failed for i, c in plan.cells.items())
            if number not in printed and done:
                printed.add(number)
                built = table.build(plan, store, _published(plan), failed)
                files = table.write(built, Path(root) / "tables" / f"{names[number]}_{profile}")
                reports.extend(files)
                display.say("\n" + table.to_text(built) + "\n")

    with display:
        print_complete()
        for event in pool.run(missing, store, runtime["workers"], runtime["threads"], make_loggers, compose.yaml_of):
            display.show(event)
            if event.outcome is not None:
                if event.outcome.state in ("failed", "busy"):
                    failed[event.outcome.cell_id] = event.outcome.error or event.outcome.state
                print_complete()
    for cell_id, error in failed.items():
        print(f"cell {cell_id} failed: {error}", file=sys.stderr)
    report = _report(made, store, names, profile, Path(root), failed)
    print(f"tables: {', '.join(str(p) for p in reports)}")
    print(f"report: {report}")
    print(f"{len(missing) - len(failed)} cells run, {reused} reused, {len(failed)} failed")
    return 1 if failed else 0


def _plan(names: Sequence[str], profile: str, overrides: Sequence[str], progress: Any):
    made, runtime, root = [], None, None
    with compose.composer() as composed:
        prepare = lru_cache(maxsize=None)(lambda key: cells.task_of(_CONFIGS[key]).prepare(_CONFIGS[key], progress))
        for name in names:
            experiment = compose.experiment(name, profile)

            def prepare_cell(config):
                data_key = repr((config["task"], config["paths"]["data"]))
                _CONFIGS[data_key] = config
                prepared = prepare(data_key)
                return cells.Cell(config, prepared, cells.identity(config, prepared.sha256))

            plan = plans.make(experiment, composed, prepare_cell, overrides, unavailable=DataError)
            made.append(plan)
            for slot in plan.slots:
                runtime, root = slot.cell.config["runtime"], slot.cell.config["paths"]["outputs"]
        if runtime is None:
            reasons = "; ".join(f"{p.experiment['columns'][c]['label']}: {why}" for p in made for c, why in p.unavailable.items())
            raise compose.ConfigError(f"no column can be run: {reasons or 'the experiment has no rows or columns'}")
    return made, runtime, root


_CONFIGS: dict[str, Any] = {}


def _published(plan: plans.Plan) -> list[dict[str, Any]]:
    name = plan.experiment.get("published")
    return compose.published(name) if name else []


def _report(made, store, names, profile, root: Path, failed) -> Path:
    from sparse_attention.repro import report

    built = [table.build(plan, store, _published(plan), failed) for plan in made]
    return report.write(built, made, store, root / "report" / f"{'+'.join(names)}_{profile}.html")


__all__ = ["clock", "experiments", "main"]
