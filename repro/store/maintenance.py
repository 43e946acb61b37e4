"""Maintenance of the store: check all files, remove leftovers of killed processes, and move cells between machines.

Finished cells are never deleted, nor are cells that were moved aside as damaged.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro import plugins
from repro.cell import finished
from repro.files import StoreError, archive_damage, explain
from repro.store import ASIDE, Entry, Evaluation, Level, Store

PARTS = re.compile(
    r"\.(.+)\.([0-9a-f]{8}|\d+)|saving\..+|best\.\d+\.pt|crash\.pt|claim\.stale\..+"
)  # names of files that unfinished work leaves behind


@dataclass(frozen=True)
class Seen:
    """The finding for a folder or file of the store.

    `place` is its path below the root, `state` says what state it is in or what was done with it, and `why` is the
    problem.
    """

    place: str
    state: str
    why: str = ""


def levels(entry: Entry) -> Iterator[Level]:
    """The folders of a training and of its evaluations."""
    yield entry
    for folder in sorted(entry.path("evaluations").glob("*")):
        if folder.is_dir() and ASIDE not in folder.name:
            yield Evaluation(folder)


def verify(store: Store) -> Iterator[Seen]:
    """Check the store; yields every training, evaluation and damaged checkpoint with its problem, if any."""
    for entry in store:
        for level in levels(entry):
            place, why = str(level.folder.relative_to(store.root)), level.damage()
            state = "damaged" if why else "done" if level.finished() else "unfinished"
            yield Seen(place, entry.state() if level is entry and state == "unfinished" else state, why or "")
        for path in () if entry.busy() else sorted(entry.path("checkpoints").glob("*.pt")):
            if (broken := archive_damage(path)) and not PARTS.fullmatch(path.name):
                yield Seen(str(path.relative_to(store.root)), "damaged", broken)
    for folder in sorted((store.root / "cells").rglob(f"*{ASIDE}*")):
        place = str(folder.relative_to(store.root))
        yield Seen(place, "aside", "moved aside as damaged; delete it if you do not need it")


def clean(store: Store) -> list[str]:
    """Remove leftovers of killed processes from cells that no process is working on; returns the removed paths."""
    removed = []
    for entry in store:
        if entry.busy():
            continue
        with contextlib.suppress(StoreError), entry.locked():  # this also removes the lock of a dead process
            for path in sorted(entry.folder.rglob("*")):
                if PARTS.fullmatch(path.name) and path.is_file():
                    path.unlink()
                    removed.append(str(path.relative_to(store.root)))
    for folder in (store.root / ".import", *(store.root / "cells").glob(".import-*")):
        if folder.is_dir():
            shutil.rmtree(folder)
            removed.append(str(folder.relative_to(store.root)))
    return removed


def sizes(store: Store) -> dict[str, tuple[int, int]]:
    """Disk use of each task/mapping, of damaged folders and of checkpoints of finished cells: (folders, bytes)."""
    found: dict[str, tuple[int, int]] = {}

    def count(what: str, folder: Path) -> None:
        n, size = found.get(what, (0, 0))
        found[what] = (n + 1, size + sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()))

    for entry in store:
        count("/".join(entry.folder.parts[-3:-1]), entry.folder)
        if entry.finished() and entry.path("checkpoints").is_dir():
            count("of these, checkpoints of finished cells", entry.path("checkpoints"))
    for folder in (store.root / "cells").rglob(f"*{ASIDE}*"):
        count("moved aside as damaged", folder)
    return found


def _unfit(level: Level) -> str | None:
    """The reason why a level cannot be exported or imported, or None if it can be."""
    return level.damage() if level.finished() else "not finished"


def export(store: Store, file: Path, fitting: Sequence[str] = ()) -> list[Seen]:
    """Check finished cells and write them to a tar file; returns what happened to every cell.

    Args:
        fitting: prefixes of `task/mapping/id` or of ids that select the cells; empty means all cells.
    """
    told = []
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    try:
        with tarfile.open(temporary, "w") as tar:
            for entry in store:
                place = "/".join(entry.folder.parts[-3:])
                if fitting and not any(place.startswith(f) or entry.folder.name.startswith(f) for f in fitting):
                    continue
                if why := _unfit(entry):
                    told.append(Seen(place, "left out", why))
                    continue
                for level in levels(entry):
                    if why := _unfit(level):
                        told.append(Seen(f"{place}/evaluations/{level.folder.name}", "left out", why))
                        continue
                    for path in map(level.path, [*level.files(), "manifest.json"]):
                        tar.add(path, f"{place}/{path.relative_to(entry.folder)}", recursive=False)
                told.append(Seen(place, "exported"))
        temporary.replace(file)
    except OSError as error:
        raise explain(error, file) from error
    finally:
        temporary.unlink(missing_ok=True)
    return told


def take_in(store: Store, file: Path) -> list[Seen]:
    """Import cells from a tar file: unpack them, check each file against its manifest, and rename them into place.

    A cell that is already finished in this store is kept and receives the evaluations that it lacks. No code from a
    cell is run. A cell of an unknown family is refused, and untrusted plugins are named in the result.
    """
    beside = store.root / "cells" / f".import-{uuid.uuid4().hex[:8]}"
    told: list[Seen] = []
    try:
        beside.mkdir(parents=True)
        with tarfile.open(file) as tar:
            tar.extractall(beside, filter="data")  # the filter refuses members with a path out of the folder
        for page in sorted(beside.glob("*/*/*/config.yaml")):
            told.extend(_put(store, Entry(page.parent)))
    except (tarfile.TarError, EOFError) as error:
        raise StoreError(f"{file} is damaged or not a tar file ({error}); export it again") from error
    except OSError as error:
        raise explain(error, beside) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return told


def _put(store: Store, theirs: Entry) -> Iterator[Seen]:
    names = theirs.folder.parts[-3:]
    place, ours = "/".join(names), store.entry(*names)
    if why := _unfit(theirs):
        yield Seen(place, "damaged", why)
        return
    for level in list(levels(theirs))[1:]:
        if why := _unfit(level):
            yield Seen(f"{place}/evaluations/{level.folder.name}", "damaged", why)
            shutil.rmtree(level.folder)
    try:
        foreign = plugins.untrusted(finished(theirs.folder).config["plugins"], theirs.folder)
    except StoreError as error:
        yield Seen(place, "refused", str(error))
        return
    ours.set_aside()
    with ours.locked():
        if not ours.finished():
            for path in theirs.folder.iterdir():
                if path.name not in ("manifest.json", "evaluations"):
                    _replace(path, ours.path(path.name))
            theirs.path("manifest.json").replace(ours.path("manifest.json"))
            told = ", ".join(f"{p} ({why})" for p, why in foreign.items())
            warning = f"its plugins are not yours and will not be run: {told}; {plugins.TRUST}" if foreign else ""
            yield Seen(place, "imported", warning)
        else:
            yield Seen(place, "was here")
        for level in list(levels(theirs))[1:]:
            here = ours.evaluation(level.folder.name)
            if not here.finished() or here.damage():
                here.clear()
                here.folder.parent.mkdir(exist_ok=True)
                level.folder.replace(here.folder)
                yield Seen(f"{place}/evaluations/{level.folder.name}", "imported")


def _replace(path: Path, place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    path.replace(place)
