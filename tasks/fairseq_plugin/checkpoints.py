"""Checkpoints that a kill never leaves half written, and the newest one from which training may go on.

torch keeps a CRC-32 of every tensor in the file and never looks at it again: here every file is checked before it is used.
Training may go on from a checkpoint when the weights of its best epoch can still be had: from best.pt, from the checkpoint
itself, or because that epoch comes again. Otherwise it goes back further, at last to the beginning.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq.trainer import Trainer

from repro.files import archive_damage

LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"
State = dict[str, Any]


class Noting(Protocol):
    def note(self, text: str) -> None: ...


def read(path: Path) -> State:
    """A whole checkpoint. Raises ValueError when its content is not what was written, OSError when there is none."""
    if why := archive_damage(path):
        raise ValueError(why)
    return torch.load(path, map_location="cpu", weights_only=True)


def best(folder: Path, epoch: float) -> State:
    """best.pt, which must be whole and of that epoch. Raises RuntimeError."""
    try:
        state = read(folder / BEST)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{folder / BEST} is damaged ({error}); run the same command again: it goes back") from error
    if (found := state["extra_state"]["history"][-1]["epoch"]) != epoch:
        raise RuntimeError(f"{folder / BEST} is of epoch {found:.0f}, not {epoch:.0f}; run the same command again")
    return state


def resume(
    trainer: Trainer, folder: Path, value: Callable[[Mapping[str, float]], float], monitor: Noting
) -> tuple[State, Any]:
    """The extra state and the train iterator of the newest checkpoint that may be used, or of a fresh start.

    Args:
        value: of a row of the history: the larger, the better.
    """
    chosen = [choose(folder, value, monitor) if trainer.should_save_checkpoint_on_current_rank else None]
    if trainer.data_parallel_world_size > 1:  # one process decides for all
        torch.distributed.broadcast_object_list(chosen)
    # epoch=1 as in an uninterrupted run: fairseq composes the batches from (seed, epoch in which the iterator is made)
    batches = trainer.get_train_iterator(epoch=1, load_dataset=True)
    if chosen[0] is None:
        return {}, batches
    state = trainer.load_checkpoint(str(folder / chosen[0]))
    batches.load_state_dict(state["train_iterator"])
    monitor.note(f"resuming from epoch {state['train_iterator']['epoch']}, update {trainer.get_num_updates()}")
    return state, batches


def choose(folder: Path, value: Callable[[Mapping[str, float]], float], monitor: Noting) -> str | None:
    """The name of the newest checkpoint to go on from, None for a fresh start.

    What is damaged is put aside, never deleted; what processes left that were killed while they saved is removed.
    """
    for left in (*folder.glob("saving.*"), *folder.glob("best.*.pt"), *folder.glob("crash.pt")):
        left.unlink(missing_ok=True)
    files = {name: (folder / name).stat().st_ino for name in (LAST, PREVIOUS, BEST) if (folder / name).exists()}
    whole: dict[str, State] = {}
    for name in files:
        try:
            whole[name] = read(folder / name)["extra_state"]
        except Exception as error:
            aside = (folder / name).with_suffix(".unreadable")
            (folder / name).replace(aside)
            reason = f"{type(error).__name__}: {error}"
            monitor.note(f"checkpoint {name} cannot be read ({reason}); kept as {aside.name}, trying an older one")
    kept = whole[BEST]["history"][-1]["epoch"] if BEST in whole else 0.0
    if LAST not in whole and BEST in files and files[BEST] == files.get(LAST):
        kept = float("inf")  # the last epoch was the best one, and comes again
    for name in (LAST, PREVIOUS):
        if name not in whole:
            continue
        history, at_end = whole[name]["history"], whole[name]["train_iterator"]["iterations_in_epoch"] == 0
        wanted = max(history, key=value)["epoch"] if history else 0.0
        ended = history[-1]["epoch"] if history else 0.0
        if wanted in (0.0, kept) or kept > ended:
            return name
        if at_end and wanted == ended:
            _link(folder / name, folder / BEST)
            return name
        monitor.note(f"checkpoint {name} is of no use: the weights of epoch {wanted:.0f}, the best before it, are lost")
    return None


def save(trainer: Trainer, batches: Any, history: list[dict[str, float]], folder: Path, best: bool = False) -> None:
    """Rename a checkpoint into place as the last, the one before as the previous; `best` links it as the best too."""
    trainer.consolidate_optimizer()
    if not trainer.should_save_checkpoint_on_current_rank:
        return
    temporary = folder / f"saving.{os.getpid()}.pt"
    try:
        trainer.save_checkpoint(str(temporary), {"train_iterator": batches.state_dict(), "history": list(history)})
        if best:
            _link(temporary, folder / BEST)
        with contextlib.suppress(FileNotFoundError):
            (folder / LAST).replace(folder / PREVIOUS)
        temporary.replace(folder / LAST)
    finally:
        for left in folder.glob(f"{temporary.name}*"):
            left.unlink(missing_ok=True)


def _link(path: Path, place: Path) -> None:
    """`place` becomes a second name of `path`, at once."""
    link = place.with_name(f"best.{os.getpid()}.pt")
    link.unlink(missing_ok=True)
    os.link(path, link)
    link.replace(place)
