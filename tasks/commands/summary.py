"""Write the reproducibility summary of an experiment from the store or from records. Reads no data and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.cell import read_config
from repro.files import StoreError, write_atomic
from repro.identity import family
from repro.plan import Wanted
from repro.store import ASIDE, Entry, Store, archive
from repro.tables.summary import summary
from tasks.commands import recorded, reproduce


def summarize(name: str, overrides: Sequence[str], results: Path | None = None) -> tuple[str, Path]:
    """Write the summary of an experiment's table to <outputs>/report/<name>_<profile>_summary.md.

    Args:
        overrides: as for scripts/reproduce.py.
        results: folder whose records are used; None means that the cells are read from the store.

    Returns:
        the summary and the file.

    Raises:
        ValueError: a name or configuration is invalid.
        StoreError: cells are damaged, or a file has no records.
    """
    slots = reproduce.slots(name, overrides)
    one, wanted, _ = slots
    outputs = Path(wanted[0].config["paths"]["outputs"])
    if results is None:
        found, _ = archive.collect(wanted, Store(outputs))
        troubles = list(_troubles(wanted, Store(outputs)))
    else:
        _, found = archive.read(recorded.file_of(name, one.profile, results))
        troubles = []
    with recorded.restored(slots, found) as (plan, store):
        text = summary(plan, store, reproduce.table(plan, store), troubles)
    path = outputs / "report" / f"{name}_{one.profile}_summary.md"
    write_atomic(path, text.encode())
    return text, path


def _troubles(wanted: Sequence[Wanted], store: Store) -> Iterator[str]:
    """One sentence for each cell of the slots that failed or that was moved aside because it was damaged."""
    names = {archive.key(w.config, family(w.module)): w for w in wanted}
    for path in sorted((store.root / "cells").glob("*/*/*/config.yaml")):
        try:
            told = read_config(path.parent)
            w = names.get(archive.key(told, family(told["module"])))
        except (StoreError, KeyError, ValueError):
            continue
        if w is None:
            continue
        label = f"{told['task']['name']}/{told['mapping']['name']}, seed {told['seed']}"
        if ASIDE in path.parent.name:
            yield f"{label}: a finished cell was found damaged and made anew."
        elif (status := Entry(path.parent).status())["state"] in ("failed", "lost"):
            yield f"{label}: {status['state']}: {str(status.get('error', 'its process ended')).splitlines()[0]}"
