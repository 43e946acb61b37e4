"""`scripts/train.py`: trains and evaluates one cell. For sweeps, see `tasks.commands.sweep` and `search`."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from repro import cell as cells
from repro import launch
from repro.errors import StoreError
from repro.launch import display
from repro.plugins import naming
from repro.results import estimate
from repro.store import Store, elsewhere
from tasks.commands import compare, reproduce
from tasks.commands.driver import ASSUMED, of_threads
from tasks.config import compose
from tasks.config.request import Request
from tasks.data import DataError, Progress
from tasks.loggers import make_loggers
from tasks.use.finding import of_other_code

STATUS = {"done": 0, "queued": 0, "failed": 1, "wrong": 2}  # exit status of a cell


# How the training of a cell ended: done, failed, wrong (its configuration is invalid) or queued (by a launcher that is
# not waited for); its place in the store, setting, seed and store, empty if it was not prepared; its dev score by
# `train.best_metric`.
Ended = tuple[str, dict[str, Any], float | None]


def run(config: Mapping[str, Any]) -> Ended:
    """Run one cell and print its scores; an error is printed too."""
    import torch

    try:
        reproduce.check_launcher([cells.Cell(config, compose.module_of(config))])
        torch.set_num_threads(config["runtime"]["threads"])
        cell = cells.prepare(cells.Cell(config, compose.module_of(config)), Progress())
        store = Store(config["paths"]["outputs"])
        for note in dict.fromkeys(n for of in (cell.data, *cell.tests) for n in of.facts.get("notes", ())):
            print(f"note: {note}", file=sys.stderr)
        if told := of_threads(config):
            print(told, file=sys.stderr)
        if cell.done(store) and (told := of_other_code([cell], store)):
            print(told, file=sys.stderr)
        shown = display.Display({cell.cell_id: 3600 * estimate.hours(cell.config, ASSUMED)[0]})
        outcome = launch.run_one(cell, store, shown.show, make_loggers)
    except (ValueError, DataError, StoreError) as error:  # StoreError: the launcher cannot run the cell
        print(f"error: {error}", file=sys.stderr)
        return "wrong" if isinstance(error, ValueError) else "failed", {}, None
    if outcome.state == "queued":  # launcher.wait=false
        return "queued", {}, None
    place = f"{cell.task}/{cell.mapping}/{cell.training_id}"
    told = {"cell": place, "setting": cell.parameters, "seed": cell.seed, "root": str(store.root)}
    results = cell.results(store)
    if results is None:
        if outcome.state != "failed":
            print(outcome.reason or outcome.state, file=sys.stderr)
        elif config["runtime"]["verbose"]:  # the reason was printed when it happened
            print((outcome.error or "").partition("\n")[2], file=sys.stderr)
        return "failed", told, None
    print(compare.of_one(results, f"{display.name(cell)}: {cell.data.facts.get('provenance', '')}"))
    folder = cell.entry(store).folder
    print(f"cell {cell.training_id} {outcome.state}: {folder} (all scores: metrics.json, evaluations/)")
    where = cell.training_id[:12] + elsewhere(store.root) + naming(config["plugins"])
    print(f"next: python scripts/predict.py {where} < INPUT")
    score = float(results.metrics.get(f"dev/{config['train']['best_metric']}", math.nan))
    return "done", told, None if math.isnan(score) else score


def main(request: Request, config: DictConfig) -> int:
    """Run the cell of a request, from its configuration (`compose.chosen`). Returns the exit status: 1 if it failed, 2 if it is invalid.

    Raises ConfigError if a value is invalid.
    """
    whole = compose.checked(config, request.keys.values())
    return STATUS[run(whole)[0]]
