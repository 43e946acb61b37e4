"""Train a random twentieth of the recorded cells again and compare them with their records."""

from __future__ import annotations

import datetime
import math
import random
import tempfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro.identity import family
from repro.plan import Wanted
from repro.store import Store, StoreError, archive
from tasks.commands import recorded, reproduce
from tasks.data import Progress

SHARE = 0.05
TIMES_TOLERANCE = 2.0  # machines differ by up to 1.4 ROUGE points with the same seed


def differences(results: Path, draw: str | None, say: Callable[[str], Any], of: str = "*_demo") -> list[str]:
    """Train a random sample of recorded cells in a temporary folder and compare their scores with the records.

    Args:
        draw: seed of the sample; None means today's date.
        say: called with lines of progress.
        of: pattern for the files of records to sample from, without `.jsonl`.

    Returns:
        one sentence for each score that differs.

    Raises:
        StoreError: a cell could not be run.
        ValueError: no file of records matches `of`.
    """
    drawn = random.Random(draw or datetime.datetime.now(datetime.UTC).date().isoformat())
    tables = (p for p in recorded.files(results) if not p.stem.startswith("sweep_"))
    paths = [p for p in tables if fnmatchcase(p.stem, of)]
    if not paths:
        raise ValueError(
            f"of={of} is no table of {results / recorded.FOLDER}; name one without .jsonl, or a pattern as *_demo"
        )
    known = [one for path in paths for one in _recorded(path)]
    chosen = drawn.sample(known, max(1, math.ceil(SHARE * len(known)))) if known else []
    found = []
    with tempfile.TemporaryDirectory() as work:
        for number, (w, record) in enumerate(chosen, 1):
            name = f"{record['task']}/{record['mapping']}, seed {record['seed']}"
            say(f"{number} of {len(chosen)}, of {len(known)} cells: {name}")
            found += [f"{name}: {one}" for one in _differences(w, record, Store(work), say)]
    return found


def report(results: Path, draw: str | None, of: str) -> int:
    """Print `differences`. Returns the exit status: 0, or 1 if there are any."""
    found = differences(results, draw, print, of)
    print("".join(f"DIFFERS {one}\n" for one in found), end="")
    return int(bool(found))


def _recorded(path: Path) -> list[tuple[Wanted, dict[str, Any]]]:
    asked, found = archive.read(path)
    _, wanted, _ = reproduce.slots(asked["experiment"], [f"profile={asked['profile']}", *asked["arguments"]])
    by_key = {archive.key(w.config, family(w.module)): w for w in wanted}
    return [(by_key[record["key"]], record) for record in found if record["key"] in by_key]


def _differences(w: Wanted, record: dict[str, Any], store: Store, say: Callable[[str], Any]) -> list[str]:
    cell = cells.prepare(w.config, w.module, w.tests, Progress(), ())
    outcome = cells.run(cell, store)
    made = cell.found(store) if outcome.state in ("done", "skipped") else None
    if made is None:
        raise StoreError(f"{record['training']} could not be trained again: {outcome.reason}")
    before = {k: v for test in record["tests"].values() for k, v in test["scored"]["metrics"].items()}
    told, found = [], []
    for full, value in before.items():
        metric = cell.family.METRICS.get(full.rpartition("/")[2])
        if metric is None or metric.tolerance is None:
            continue
        told.append(f"{full} {value:.{metric.decimals}f} -> {made.metrics[full]:.{metric.decimals}f}")
        if not abs(made.metrics[full] - value) <= TIMES_TOLERANCE * metric.tolerance:
            found.append(told[-1])
    other = (
        ""
        if made.facts.get("sha256") == record["trained"]["facts"].get("sha256")
        else "; the training data differ from those recorded"
    )
    say(f"  {', '.join(told)}{other}")
    return [one + other for one in found]
