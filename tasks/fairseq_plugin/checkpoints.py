"""Checkpoints that a kill never leaves half written, and the newest one that can be read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq.trainer import Trainer

LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"


class Noting(Protocol):
    def note(self, text: str) -> None: ...


def clear(folder: Path) -> None:
    """Remove what processes left that were killed while they saved."""
    for left in (*folder.glob("saving.*.pt"), *folder.glob("best.*.pt")):
        left.unlink(missing_ok=True)


def resume(trainer: Trainer, folder: Path, monitor: Noting) -> tuple[dict[str, Any], Any]:
    """The extra state and the train iterator of the newest readable checkpoint, or of a fresh start.

    An unreadable checkpoint is put aside, never deleted.
    """
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            # A truncated file must not reach the trainer half-read.
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            aside = path.with_suffix(".unreadable")
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                path.replace(aside)
            reason = f"{type(error).__name__}: {error}"
            monitor.note(f"checkpoint {name} cannot be read ({reason}); kept as {aside.name}, trying an older one")
            continue
        state = trainer.load_checkpoint(str(path))
        position = state["train_iterator"]
        # epoch=1 as in an uninterrupted run: fairseq composes the batches from (seed, epoch in which the iterator is made)
        batches = trainer.get_train_iterator(epoch=1, load_dataset=True)
        batches.load_state_dict(position)
        monitor.note(f"resuming from epoch {position['epoch']}, update {trainer.get_num_updates()}")
        return state, batches
    return {}, trainer.get_train_iterator(epoch=1, load_dataset=True)


def save(trainer: Trainer, batches: Any, history: list[dict[str, float]], folder: Path, best: bool = False) -> None:
    """Rename a checkpoint into place as the last, the one before as the previous; `best` links it as the best too."""
    trainer.consolidate_optimizer()
    if not trainer.should_save_checkpoint_on_current_rank:
        return
    temporary = folder / f"saving.{os.getpid()}.pt"
    try:
        trainer.save_checkpoint(str(temporary), {"train_iterator": batches.state_dict(), "history": list(history)})
        if best:
            link = folder / f"best.{os.getpid()}.pt"
            link.unlink(missing_ok=True)
            os.link(temporary, link)
            link.replace(folder / BEST)
        if (folder / LAST).exists():
            (folder / LAST).replace(folder / PREVIOUS)
        temporary.replace(folder / LAST)
    finally:
        temporary.unlink(missing_ok=True)
