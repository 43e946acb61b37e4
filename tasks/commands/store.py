"""`scripts/store.py`: list, verify, clean, measure, export and import the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from repro.store import Store, maintenance, outputs_folder


def main(what: str, names: Sequence[str], outputs: str) -> int:
    """Run one of the commands on the store.

    Args:
        what: list, verify, clean, du, export or import.
        names: for export, the archive and then the cells to export; for import, the archive.
        outputs: folder of the store; an empty string means the default.

    Returns:
        exit status: 0, or 1 if a cell is damaged or was refused.

    Raises:
        ValueError: there is no store, or there are too few or too many names.
        StoreError: the archive cannot be read or written.
    """
    store = Store(outputs or outputs_folder())
    archive = what in ("export", "import")
    if archive and not names:
        raise ValueError(f"{what} needs FILE.tar")
    if extra := names[1:] if what == "import" else () if archive else names:
        raise ValueError(f"{what} does not take {extra[0]!r}")
    if what != "import" and not store.root.is_dir():
        raise ValueError(f"there is no store {store.root}; set paths.outputs=FOLDER")
    if what == "du":
        for content, (folders, size) in maintenance.sizes(store).items():
            print(f"{size / 2**20:10.1f} MiB  {folders:5d} folders  {content}")
        return 0
    if what == "clean":
        removed = maintenance.clean(store)
        print("\n".join([*removed, f"{len(removed)} leftovers removed"]))
        return 0
    if what == "export":
        seen = maintenance.export(store, Path(names[0]), names[1:])
    elif what == "import":
        seen = maintenance.take_in(store, Path(names[0]))
    else:
        seen = maintenance.verify(store)
    states: Counter[str] = Counter()
    for one in seen:
        states[one.state] += 1
        if what != "verify" or one.why:
            print(f"{one.state:10s} {one.place}" + (f": {one.why}" if one.why else ""))
    print(", ".join(f"{count} {state}" for state, count in states.items()) or "the store is empty")
    return int(bool({"damaged", "refused"} & states.keys()))
