"""Experiments from their names to printed tables: plan everything, run what is missing, print each table when it is complete."""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sparse_attention.repro import cell as cells
from sparse_attention.repro import plan as plans
from sparse_attention.repro import pool, report, table
from sparse_attention.repro.display import Display
from sparse_attention.repro.protocol import Prepared
from sparse_attention.repro.store import Store, StoreError
from tasks import compose
from tasks.data.errors import DataError
from tasks.data.progress import Progress
from tasks.loggers import make_loggers

# What can be wrong before anything runs.
ERRORS = (compose.ConfigError, plans.PlanError, DataError, StoreError, ValueError)
OWN = ("profile", "seeds", "add")  # arguments of this command; everything else is Hydra's


def experiments() -> dict[str, str]:
    """Name -> title of every experiment."""
    files = sorted((compose.CONFIGS / "experiment").glob("*.yaml"))
    return {path.stem: OmegaConf.load(path)["title"] for path in files}


@dataclass(frozen=True)
class Planned:
    """Plans of the experiments with all their cells, and the options that the cells share."""

    plans: list[plans.Plan]
    profile: str
    runtime: dict[str, Any]
    outputs: str


def plan(names: Sequence[str], overrides: Sequence[str]) -> Planned:
    """The cells of experiments under `overrides`: this command's own (OWN) and Hydra's. Prepares every data set.

    Raises:
        ValueError: wrong names or configurations. DataError: data that cannot be had.
    """
    own = {key: [o.split("=", 1)[1] for o in overrides if o.startswith(f"{key}=")] for key in OWN}
    rest = [o for o in overrides if o.split("=", 1)[0] not in OWN]
    if options := [o for o in rest if o.startswith("-")]:
        raise compose.ConfigError(f"{options[0]} is not for this command; scripts/train.py takes Hydra's own options")
    profile = (own["profile"] or ["demo"])[-1]
    loaded = [compose.experiment(name, profile) for name in names]
    for experiment in loaded:
        _adapt(experiment, own["seeds"], own["add"])
    made, runtime, root = _plan(loaded, rest)
    return Planned(made, profile, runtime, root)


def main(names: Sequence[str], overrides: Sequence[str]) -> int:
    """Exit status: 0 when every table is complete, 1 when a cell failed, 2 for errors in the configuration."""
    progress = Progress()
    try:
        planned = plan(names, overrides)
    except ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    made, profile, runtime, root = planned.plans, planned.profile, planned.runtime, planned.outputs
    store = Store(root)
    needed = list({cell_id: cell for plan in made for cell_id, cell in plan.cells.items()}.values())
    missing = [cell for cell in needed if cell.entry(store).metrics() is None]
    missing.sort(key=_work, reverse=True)  # the longest first: no worker waits long for the last one
    reused = len(needed) - len(missing)
    progress.say(
        f"{len(needed)} cells: {reused} finished before, {len(missing)} to run on {runtime['workers']} worker(s)"
    )
    display = Display(len(missing), runtime["workers"])
    tables: dict[int, table.Table] = {}
    failed: dict[str, str] = {}  # cell id -> error with traceback
    reasons: dict[str, str] = {}
    written: list[Path] = []

    def print_complete() -> None:
        for number, plan in enumerate(made):
            done = all(c.entry(store).metrics() is not None or i in failed for i, c in plan.cells.items())
            if number not in tables and done:
                tables[number] = built = table.build(plan, store, _published(plan), failed)
                written.extend(table.write(built, Path(root) / "tables" / f"{names[number]}_{profile}"))
                display.say("\n" + table.to_text(built) + "\n")

    with display:
        print_complete()
        for event in pool.run(missing, store, runtime["workers"], runtime["threads"], make_loggers, compose.yaml_of):
            display.show(event)
            if event.outcome is not None:
                if event.outcome.state in ("failed", "busy"):
                    failed[event.outcome.cell_id] = event.outcome.error or event.outcome.state
                    reasons[event.outcome.cell_id] = event.outcome.reason
                print_complete()
    for cell_id, reason in reasons.items():
        print(f"cell {cell_id} failed: {reason} (traceback: its status.json, and the report)", file=sys.stderr)
    html = Path(root) / "report" / f"{'+'.join(names)}_{profile}.html"
    report.write([tables[n] for n in range(len(made))], made, store, html, failed)
    print(f"tables: {', '.join(str(p.with_suffix('')) for p in written[::4])} (.txt .md .csv .tex)")
    print(f"report: {html}")
    print(f"{len(missing) - len(failed)} cells run, {reused} reused, {len(failed)} failed")
    return 1 if failed else 0


def _work(cell: cells.Cell) -> float:
    """Training examples read in all: what a cell takes, roughly."""
    return (cell.prepared.facts.get("pairs") or {}).get("train", 0) * cell.config["train"]["max_epochs"]


def _adapt(experiment: dict[str, Any], seeds: Sequence[str], added: Sequence[str]) -> None:
    """`seeds=1,2,3` and `add=NAME,key=value` of the command line: more runs, more rows."""
    if seeds:
        try:
            experiment["seeds"] = [int(s) for s in seeds[-1].split(",")]
        except ValueError:
            raise compose.ConfigError(f"seeds={seeds[-1]} must be whole numbers, as in seeds=1,2,3") from None
    for row in added:
        name, *parameters = row.split(",")
        experiment["rows"].append(compose.own_row(name, parameters))


def _plan(loaded: Sequence[dict[str, Any]], overrides: Sequence[str]):
    """Plans, runtime options and output folder. Data sets are prepared first, several at a time: each costs up to a minute."""
    configs: list[dict[str, Any]] = []
    with compose.composer() as composed:
        for experiment in loaded:  # every configuration is checked before any data is touched
            plans.make(experiment, composed, lambda config: configs.append(config), overrides)
        if not configs:
            raise compose.ConfigError("the experiment has no rows or columns")
        runtime, root = configs[0]["runtime"], configs[0]["paths"]["outputs"]
        prepared = _prepare_all({_data_key(c): c for c in configs}, runtime["workers"])

        def prepare_cell(config: dict[str, Any]) -> cells.Cell:
            found = prepared[_data_key(config)]
            if isinstance(found, Exception):
                raise found
            return cells.Cell(config, found, cells.identity(config, found.sha256))

        made = [plans.make(e, composed, prepare_cell, overrides, unavailable=DataError) for e in loaded]
    if not any(plan.slots for plan in made):
        reasons = "; ".join(
            f"{p.experiment['columns'][c]['label']}: {why}" for p in made for c, why in p.unavailable.items()
        )
        raise compose.ConfigError(f"no column can be run: {reasons}")
    return made, runtime, root


def _data_key(config: dict[str, Any]) -> str:
    return json.dumps([config["task"], config["paths"]["data"]], sort_keys=True, default=str)


def _prepare_all(wanted: dict[str, dict[str, Any]], workers: int) -> dict[str, Prepared | Exception]:
    """Prepare each data set once, in processes of its own; a data set that cannot be had gives its `DataError`."""
    if len(wanted) == 1 or workers == 1:
        return {key: _prepare(config) for key, config in wanted.items()}
    # forked from here: nothing runs beside this thread yet, and the loaders need none of what the cells preload
    context = mp.get_context("fork" if "fork" in mp.get_all_start_methods() else None)
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        futures = {key: executor.submit(_prepare, config) for key, config in wanted.items()}
        return {key: future.result() for key, future in futures.items()}


def _prepare(config: dict[str, Any]) -> Prepared | Exception:
    try:
        cells.load_plugins(config.get("plugins") or [])
        return cells.task_of(config).prepare(config, Progress())
    except DataError as error:
        return error


def _published(plan: plans.Plan) -> list[dict[str, Any]]:
    name = plan.experiment.get("published")
    return compose.published(name) if name else []
