"""Maintenance of the store: check all files, and remove leftovers of killed processes.

Finished cells are never deleted, nor are cells that were moved aside as damaged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from repro.files import StoreError, archive_damage
from repro.store import ASIDE, Entry, Evaluation, Level, Store

# names of files that unfinished work leaves behind
PARTS = re.compile(r"\.(.+)\.([0-9a-f]{8}|\d+)|saving\..+|best\.\d+\.pt|crash\.pt")


@dataclass(frozen=True)
class Seen:
    """The finding for a folder or file of the store: its path below the root, its state, and its problem, if any."""

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
        with contextlib.suppress(StoreError), entry.locked():
            for path in sorted(entry.folder.rglob("*")):
                if PARTS.fullmatch(path.name) and path.is_file():
                    path.unlink()
                    removed.append(str(path.relative_to(store.root)))
    return removed
