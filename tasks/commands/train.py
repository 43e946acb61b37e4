"""`scripts/train.py`: trains one cell or a sweep (`tasks.commands.sweep`), or hands over to Hydra (its flags, optuna)."""

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from repro import cell as cells
from repro import launch
from repro.errors import Problem, StoreError
from repro.launch import display
from repro.plugins import naming
from repro.protocol import parameters
from repro.results import estimate, records
from repro.store import Store, elsewhere, outputs_folder
from tasks.commands import compare, reproduce, sweep
from tasks.commands.driver import of_threads
from tasks.commands.rates import ASSUMED
from tasks.config import compose, overrides, pages
from tasks.config.files import names_in
from tasks.config.request import HELP, Request, parse, spelled
from tasks.data import DataError, Progress
from tasks.loggers import make_loggers
from tasks.use.finding import of_other_code

JOBS = "SPARSE_ATTENTION_JOBS"  # variable: folder where each job of a sweep, in any process, leaves a file at its end
STATUS = {"done": 0, "queued": 0, "failed": 1, "wrong": 2}  # exit status of a cell


# How the training of a cell ended: done, failed, wrong (its configuration is invalid) or queued (by a launcher that is
# not waited for); its place in the store, setting, seed and store, empty if it was not prepared; its dev score by
# `train.best_metric`.
Ended = tuple[str, dict[str, Any], float | None]


def job(config: DictConfig) -> float | None:
    """Run one cell as a job of Hydra; leaves a file at its end. Returns its dev score; None tells optuna that it failed."""
    typed = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    try:
        compose.follow(config, parse(typed))
        state, cell, score = _run(compose.checked(config, typed))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        state, cell, score = "wrong", {}, None
    handle, _ = tempfile.mkstemp(".json", dir=os.environ[JOBS])
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({**cell, "state": state}, file)
    return score


def _run(config: Mapping[str, Any]) -> Ended:
    import torch

    try:
        reproduce.check_launcher([[cells.Cell(config, compose.module_of(config))]])
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
    told = {"cell": place, "point": parameters(cell.config, cell.family)}
    told |= {"setting": cell.parameters, "seed": cell.seed, "root": str(store.root)}
    results = cell.results(store)
    if results is None:
        if outcome.state != "failed":
            print(outcome.reason or outcome.state, file=sys.stderr)
        elif config["runtime"]["verbose"]:  # the reason was printed when it happened
            print((outcome.error or "").partition("\n")[2], file=sys.stderr)
        return "failed", told, None
    print(compare.of_one(results, f"{display.name(cell)}: {cell.data.facts.get('provenance', '')}"))
    print(
        f"cell {cell.training_id} {outcome.state}: {cell.entry(store).folder} (all scores: metrics.json, evaluations/)"
    )
    where = cell.training_id[:12] + elsewhere(store.root) + naming(config["plugins"])
    print(f"next: python scripts/predict.py {where} < INPUT")
    score = float(results.metrics.get(f"dev/{config['train']['best_metric']}", math.nan))
    return "done", told, None if math.isnan(score) else score


@contextlib.contextmanager
def _help_made_late() -> Iterator[None]:
    """Context manager that lets Hydra 1.3 run on Python 3.14.

    There, argparse checks help texts when options are added, but one of Hydra's help texts is an object that is
    formatted later.
    """
    parser: Any = argparse.ArgumentParser
    check = getattr(parser, "_check_help", None)
    if check is not None:
        parser._check_help = lambda self, action: check(self, action) if isinstance(action.help, str) else None
    try:
        yield
    finally:
        if check is not None:
            parser._check_help = check


def main(request: Request) -> int:
    """Run one cell, one of our sweeps, or Hydra jobs. Returns the exit status: 1 if a cell failed, 2 if one is invalid.

    Raises ConfigError if the command line is invalid, and the errors of `reproduce.main`.
    """
    ours = not request.hydras
    if ours and request.many:
        return sweep.main(request)
    if not ours:
        return _hydra(request)
    with compose.composer() as composed:
        config = composed(request.overrides)
    return STATUS[_run(config)[0]]


def _hydra(request: Request) -> int:
    """Run Hydra's command line. Returns the exit status, 1 if a job failed.

    A sweep of Hydra also gets a folder and a table.
    """
    import hydra

    if {*HELP} & {*request.flags}:
        print(pages.parameters(request), end="\n\n")
    own = [one for one in request.keys.values() if one.key == "mapping" and not {*one.values} <= {*names_in("mapping")}]
    if own and own[0].several:
        told = f"{own[0].text} has a mapping of your own among others, which a sweep of Hydra cannot choose"
        raise compose.ConfigError(Problem(f"{told}; name one, or leave Hydra's options out", "mapping", own[0].values))
    texts = [one.text for one in overrides.as_custom(list(request.keys.values()))] if own else request.overrides
    arguments = [*["-m"] * request.many, *request.flags, *texts]
    sweeping = request.many and "hydra.sweep.dir" not in request.keys
    if sweeping:
        outputs = request.keys.get("paths.outputs")
        root = Path(outputs.value if outputs else outputs_folder()) / "sweeps"
        folder = root / request.sweep if request.sweep else sweep.new_folder(root, "hydra")
        arguments.append(f"hydra.sweep.dir={folder}")
    sys.argv[1:] = map(spelled, arguments)
    if "hydra/sweeper" in request.keys:
        from optuna.study import Study

        # if the last point of a grid fails, optuna would stop a loop of its own, which Hydra does not run
        Study.stop = lambda self: None
    with tempfile.TemporaryDirectory() as jobs:
        os.environ[JOBS] = jobs
        try:
            with _help_made_late():
                hydra.main(version_base="1.3", config_path=str(overrides.CONFIGS), config_name="main")(job)()
        except overrides.HYDRA as error:
            raise compose.ConfigError(overrides.sentence(error)) from error
        except ValueError as error:
            if "No trials are completed yet" not in str(error):  # optuna's best of trials that all failed
                raise
        ended = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(jobs).glob("*.json"))]
    if sweeping and ended:
        known = {one["cell"]: {k: v for k, v in one.items() if k != "root"} for one in ended if "cell" in one}
        compare.write_manifest(folder, sorted(request.overrides), list(known.values()))
        roots, ids = sorted({one["root"] for one in ended if "root" in one}), {key.rpartition("/")[2] for key in known}
        results = [r for root in roots for r in records.read(Store(root), lambda *path: path[2] in ids).records]
        wrong = sum(one["state"] == "wrong" for one in ended)
        notes = [f"{wrong} of {len(ended)} trials had an invalid configuration; the errors were printed."] * bool(wrong)
        sweep.print_comparison(results, folder, f"Sweep {folder.name}", notes)
    elif sweeping and not any(folder.iterdir()):
        folder.rmdir()  # --help, --cfg
    return max((STATUS[one["state"]] for one in ended), default=0)
