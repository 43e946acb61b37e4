"""Checkpoints that a kill never leaves half written; a training resumes from the newest whole one.

A checkpoint is complete in itself: it holds the state of the training and the weights of the best epoch so far. The one before it is
kept in case the last one is damaged. torch stores a CRC-32 of every tensor and never checks it; here every file is checked.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol

import torch

from repro.files import archive_damage

LAST, PREVIOUS = "last.pt", "previous.pt"
State = dict[str, Any]  # see loop.Training


class Noting(Protocol):
    def note(self, text: str) -> None: ...


def read(path: Path) -> State:
    """A whole checkpoint. Raises ValueError: it is damaged, or of an older version. OSError: there is none."""
    if why := archive_damage(path):
        raise ValueError(why)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if "best" not in state:
        raise ValueError("an older version wrote it")
    return state


def newest(folder: Path, monitor: Noting) -> str | None:
    """The name of the newest whole checkpoint, None for a fresh start.

    A damaged file is renamed, never deleted; files of processes that were killed while they saved are removed.
    """
    for left in folder.glob("saving.*"):
        left.unlink(missing_ok=True)
    for name in (LAST, PREVIOUS):
        try:
            read(folder / name)
            return name
        except FileNotFoundError:
            continue
        except Exception as error:
            aside = (folder / name).with_suffix(".unreadable")
            (folder / name).replace(aside)
            reason = f"{type(error).__name__}: {error}"
            monitor.note(f"checkpoint {name} cannot be read ({reason}); kept as {aside.name}, trying an older one")
    return None


def save(state: State, folder: Path) -> None:
    """Rename a checkpoint into place as the last, the one before as the previous."""
    temporary = folder / f"saving.{os.getpid()}.pt"
    try:
        torch.save(state, temporary)
        with contextlib.suppress(FileNotFoundError):
            (folder / LAST).replace(folder / PREVIOUS)
        temporary.replace(folder / LAST)
    finally:
        temporary.unlink(missing_ok=True)
