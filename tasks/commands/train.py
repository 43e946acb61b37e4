"""Run one cell as a Hydra job, for `scripts/train.py` without -m and for jobs of Hydra's own sweepers and launchers."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from repro import cell as cells
from repro import launch
from repro.launch import display
from repro.results import records
from repro.store import Store, StoreError, outputs_folder
from tasks.commands import compare, sweep
from tasks.config import compose, overrides, pages
from tasks.config.options import values_in
from tasks.data import DataError, Progress
from tasks.loggers import make_loggers

JOBS = "SPARSE_ATTENTION_JOBS"  # variable: folder where each job of a sweep, in any process, leaves a file at its end


def run(config: DictConfig) -> float | None:
    """Run the cell and return its dev score for Hydra's sweepers; None if there is none, which tells optuna that it failed."""
    import torch

    try:
        typed = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        compose.follow(config, typed)
        values = compose.checked(config, typed)
        launch.ready(values["launcher"], values["runtime"])
        torch.set_num_threads(values["runtime"]["threads"])
        cell = cells.prepare(values, compose.module_of(values), progress=Progress())
        store = Store(values["paths"]["outputs"])
    except ValueError as error:
        return _ended(f"error: {error}", wrong=True)
    except (DataError, StoreError) as error:
        return _ended(f"error: {error}")
    for note in dict.fromkeys(n for of in (cell.prepared, *cell.tests) for n in of.facts.get("notes", ())):
        print(f"note: {note}", file=sys.stderr)
    try:
        with display.Display({cell.cell_id: 1.0}) as shown:
            outcome = launch.one(cell, store, shown.show, make_loggers)
    except StoreError as error:  # the launcher cannot run the cell
        return _ended(f"error: {error}")
    if outcome.state == "queued":  # launcher.wait=false
        return None
    found = cell.found(store)
    place = f"{cell.task}/{cell.mapping}/{cell.training_id}"
    told = {"cell": place, "setting": cell.parameters, "seed": cell.seed, "root": str(store.root)}
    if found is None:
        if outcome.state != "failed":
            return _ended(outcome.reason or outcome.state, told)
        if values["runtime"]["verbose"]:  # the reason was printed when it happened
            print((outcome.error or "").partition("\n")[2], file=sys.stderr)
        return _ended("failed", told, said=True)
    print(f"{display.name(cell)}: {cell.prepared.facts.get('provenance', '')}")
    for key, value in sorted(found.metrics.items()):
        print(f"  {key:32s} {value:{'.3g' if 0 < abs(value) < 0.001 else '.4f'}}")
    print(f"cell {cell.training_id} {outcome.state}: {cell.entry(store).folder}")
    _ended("", told)
    score = float(found.metrics.get(f"dev/{values['train']['best_metric']}", math.nan))
    return None if math.isnan(score) else score


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


def _ended(reason: str, told: dict[str, Any] | None = None, said: bool = False, wrong: bool = False) -> float | None:
    """Return None; print why this job failed, unless `said` (already printed); write a file for the process that started the job.

    `wrong`: the configuration is invalid.
    """
    if reason and not said:
        print(reason, file=sys.stderr)
    handle, _ = tempfile.mkstemp(".json", dir=os.environ[JOBS])
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({**(told or {}), "state": "wrong" if wrong else "failed" if reason else "done"}, file)
    return None


def main(arguments: Sequence[str]) -> int:
    """`scripts/train.py`: run one cell, one of our sweeps, or Hydra jobs.

    Returns:
        exit status: 0, 1 if a cell failed, 2 if the configuration of a cell is invalid, 130 after Ctrl-C in a sweep.

    Raises:
        ConfigError: the command line is invalid, or names no task.
        PlanError, DataError, StoreError, OSError: as `reproduce.main`.
    """
    if {"-h", "--help"} & set(arguments):
        print(pages.parameters(arguments), end="\n\n")
    try:
        ours = sweep.ours(arguments)
        if not any(re.match(r"\+*(task|experiment)=|-(?!m$|-multirun$)", a) for a in arguments):
            _ask_for_task(arguments)
        return sweep.main(arguments) if ours else _hydra(arguments)
    except overrides.HYDRA as error:
        raise compose.ConfigError(overrides.sentence(error)) from error


def _ask_for_task(arguments: Sequence[str]) -> None:
    """Print the plan of a command line that names no task, with the default task of main.yaml; raise ConfigError."""
    task = f"task={next(one['task'] for one in values_in('main')['defaults'] if 'task' in one)}"
    if sweep.ours([task, *arguments, "--plan"]):
        sweep.main([task, *arguments, "--plan"])
    raise compose.ConfigError(
        f"nothing was run, because no task is named; add {task} for this plan, or another: {', '.join(overrides.names_in('task'))}"
    )


def _hydra(arguments: Sequence[str]) -> int:
    """Run Hydra's command line. Returns the exit status, 1 if a job failed.

    A sweep of Hydra also gets a folder and a table.
    """
    import hydra

    own = next((a.partition("=")[2] for a in arguments if a.startswith("sweep=")), "")
    if own:
        sweep.check_name(own)
    rest = [a for a in arguments if not a.startswith("sweep=")]
    sweeping = {"-m", "--multirun"} & set(rest)
    chosen = any(a.startswith("hydra.sweep.dir=") for a in rest)
    if sweeping and not any(a.lstrip("+").startswith("hydra/sweeper=") for a in rest):  # its points can be listed
        resolved = sweep.resolve(
            sweep.read([a for a in rest if not a.startswith(("-", "hydra", "+hydra"))]), every=True
        )
        sweep.tell(resolved)
        sweep.refuse_wrong(resolved)
    if sweeping and not chosen:
        given = (a.partition("=")[2] for a in rest if a.startswith("paths.outputs="))
        root = Path(next(given, outputs_folder()))
        folder = root / "sweeps" / own if own else sweep.new_folder(root / "sweeps", "hydra")
        rest.append(f"hydra.sweep.dir={folder}")
    sys.argv[1:] = map(overrides.spelled, rest)
    if any(a.lstrip("+") == "hydra/sweeper=optuna" for a in rest):
        from optuna.study import Study

        # told of a failed last point of a grid, optuna stops a loop that Hydra does not run
        Study.stop = lambda self: None
    with tempfile.TemporaryDirectory() as jobs:
        os.environ[JOBS] = jobs
        try:
            with _help_made_late():
                hydra.main(version_base="1.3", config_path=str(overrides.CONFIGS), config_name="main")(run)()
        except ValueError as error:
            if "No trials are completed yet" not in str(error):  # optuna's best of trials that all failed
                raise
        ended = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(jobs).glob("*.json"))]
    if sweeping and not chosen:
        if ended:
            _conclude(folder, rest, ended)
        elif not any(folder.iterdir()):
            folder.rmdir()  # --help, --cfg
    return max(({"failed": 1, "wrong": 2}.get(one["state"], 0) for one in ended), default=0)


def _conclude(folder: Path, arguments: Sequence[str], ended: Sequence[dict[str, Any]]) -> None:
    known = {one["cell"]: {k: v for k, v in one.items() if k != "root"} for one in ended if "cell" in one}
    compare.write_manifest(folder, sorted(arguments), list(known.values()))
    roots = {one["root"] for one in ended if "root" in one}
    ids = {key.rpartition("/")[2] for key in known}
    found = [r for root in sorted(roots) for r in records.read(Store(root), ids=ids).records]
    sweep.print_comparison(found, folder, f"Sweep {folder.name}", [])
