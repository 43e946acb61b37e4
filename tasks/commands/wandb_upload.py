"""Send finished cells to wandb as runs: cells from offline nodes, reused cells, and cells trained without wandb."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from repro import cell as cells
from repro.cell import Cell, Results
from repro.errors import StoreError
from repro.files import read_json
from repro.identity import asked_id, family
from repro.options import plain, read
from repro.plan import origin
from repro.store import Entry, Store, outputs_folder
from tasks.commands import compare
from tasks.loggers import about
from tasks.loggers.wandb import RECEIPT, SENT, Logger, Options, evaluations, mode, sync

OPTION = "logger.wandb."


def main(typed: Mapping[str, str]) -> int:
    """Send the cells that match filters as in scripts/compare.py; `typed` may also have options `logger.wandb.KEY`.

    Returns exit status 1 if no cell matches, a cell is damaged, or wandb fails. Raises ValueError if a filter or option
    is unknown.
    """
    filters = {k: v for k, v in typed.items() if not k.startswith(OPTION)}
    try:
        own = {k.removeprefix(OPTION): yaml.safe_load(v) for k, v in typed.items() if k.startswith(OPTION)}
    except yaml.YAMLError as error:
        raise ValueError(f"{OPTION}KEY=VALUE cannot be read: {error}") from error
    chosen = plain(read(Options, own, OPTION.rstrip(".")))
    outputs = filters.get("paths.outputs") or outputs_folder()
    found, lost = compare.select(Store(outputs), filters)
    failed = bool(lost or not found)
    asked = origins(found, filters)
    for n, (folder, asker) in enumerate(asked.items(), 1):
        name = "/".join(folder.parts[-3:])
        try:
            print(f"[{n}/{len(asked)}] {name}: {send(folder, outputs, chosen, asker)}", flush=True)
        except StoreError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
        except Exception as error:  # any error from wandb; it would occur for the next cell, too
            why = f"{type(error).__name__}: {error}"
            print(f"error: {name} and the cells after it are not sent: {why}", file=sys.stderr)
            print("run the same command again to continue there", file=sys.stderr)
            return 1
    return int(failed)


def origins(records: Sequence[Results], filters: Mapping[str, str]) -> dict[Path, dict[str, str]]:
    """Folder -> origin (`Cell.origin`) in the experiment or sweep that the filters name.

    An empty dict means that the cell keeps its first origin.
    """
    places: dict[str, dict[str, str]] = {}
    if name := filters.get("experiment"):
        for one, w in compare.slots_of(name, filters.get("profile")):
            places.setdefault(asked_id(w.config, family(w.module)), origin(one, w))
    of_sweep = {"sweep": filters["sweep"]} if "sweep" in filters else {}
    return {r.folder: places.get(r.asked_id() or "", of_sweep) for r in records}


def send(folder: Path, outputs: str, chosen: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    """Make a wandb run for a finished cell, or complete the existing run; returns what was done with it.

    Args:
        outputs: folder in which offline runs are written, unless WANDB_DIR is set.
        chosen: options of the wandb logger.
        settings: the origin for this run; see `origins`.

    Raises:
        StoreError: the cell is unfinished or damaged.
        wandb.Error: the server cannot be reached, or rejects the run.
    """
    cell = cells.finished(folder)
    asker = cell.origin if settings.items() <= cell.origin.items() else settings
    cell = replace(cell, origin=asker, config={**cell.config, "paths": {**cell.config["paths"], "outputs": outputs}})
    found = stored(cell, folder)
    offline = (os.environ.get("WANDB_MODE") or mode(chosen["mode"])) == "offline"
    logger = Logger(cell, {**chosen, "mode": "offline" if offline else "online"})  # an upload has no other way
    if offline:  # with a second run, `wandb sync` would send the cell twice
        root = Path(os.environ.get("WANDB_DIR") or outputs)
        for receipt in root.glob(f"wandb/offline-run-*-{cell.training_id}/{RECEIPT}"):
            if (read_json(receipt) or {}).get(SENT) == evaluations(found):
                return f"here already (offline); send it with: {sync(receipt.parent)}"
    logger.start()
    if logger.run.summary.get(SENT) == evaluations(found):
        logger.run.finish()
        return "there already"
    logger.curve(about.rows(found))
    logger.finish(found, "done")
    if logger.run.offline:
        written = Path(logger.run.dir).parent
        return f"written to {written} (offline); send it with: {sync(written)}"
    return "sent"


def stored(cell: Cell, folder: Path) -> Results:
    """A finished training with its evaluations. Raises `Damaged`.

    If a test set was evaluated in several ways, only one evaluation is used: preferably the one with the settings of
    the training.
    """
    entry, chosen = Entry(folder), {}
    scored = [(level, read) for level in entry.evaluations() if (read := level.read())]
    for level, read in sorted(scored, key=lambda one: one[1].get("scoring") != cell.scoring):
        chosen.setdefault(read["test"], (level, read))
    return Results.of(entry, entry.read() or {}, chosen, cell.module, cell.config)
