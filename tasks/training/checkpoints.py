"""Checkpoints that a killed process never leaves half written; training resumes from the newest intact checkpoint.

A checkpoint is self-contained: it holds the training state and the weights of the best epoch so far. The previous
checkpoint is kept in case the last one is damaged. torch stores a CRC-32 of every tensor but never checks it; here
every file is checked.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from repro.files import archive_damage

LAST, PREVIOUS = "last.pt", "previous.pt"
State = dict[str, Any]  # see loop.Training


def read(path: Path) -> State:
    """Read and check a checkpoint.

    Raises:
        ValueError: it is damaged.
        OSError: it does not exist or cannot be opened.
    """
    if why := archive_damage(path):
        raise ValueError(why)
    return torch.load(path, map_location="cpu", weights_only=True)


def newest(folder: Path, note: Callable[[str], None]) -> str | None:
    """The name of the newest intact checkpoint, or None if training starts from scratch.

    A damaged file is renamed, never deleted, and reported to `note`. Temporary files of processes that were killed
    while saving are removed.
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
            note(f"checkpoint {name} cannot be read ({reason}); kept as {aside.name}, trying an older one")
    return None


def save(state: State, folder: Path) -> None:
    """Save a checkpoint atomically as LAST; the checkpoint that was LAST becomes PREVIOUS."""
    temporary = folder / f"saving.{os.getpid()}.pt"
    try:
        with open(temporary, "wb") as file:  # a full disk is then an OSError; torch would name positions
            torch.save(state, file)
        with contextlib.suppress(FileNotFoundError):
            (folder / LAST).replace(folder / PREVIOUS)
        temporary.replace(folder / LAST)
    finally:
        temporary.unlink(missing_ok=True)
