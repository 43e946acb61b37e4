"""Which checkpoint a training goes on from, and that no flipped bit gets past the check."""

from __future__ import annotations

import os
import random

import pytest
import torch

import tasks.fairseq_plugin  # noqa: F401  declares the checkpoint's containers safe
from tasks.fairseq_plugin import checkpoints


class Notes(list):
    note = list.append


def value(row):
    return row["dev/accuracy"]


def checkpoint(path, *accuracies: float, middle: bool = False):
    """As training writes it after these epochs, or in the middle of the next."""
    history = [{"epoch": float(i), "dev/accuracy": a} for i, a in enumerate(accuracies, 1)]
    iterator = {"epoch": len(history) + 1, "iterations_in_epoch": 7 * middle}
    torch.save({"model": {"w": torch.randn(50)}, "extra_state": {"history": history, "train_iterator": iterator}}, path)


def flip(path, at: int) -> None:
    """A damaged file of its own: `path` may be a second name of another."""
    data = bytearray(path.read_bytes())
    data[at // 8] ^= 1 << at % 8
    path.unlink()
    path.write_bytes(data)


def test_a_flipped_bit_is_seen_or_changes_nothing(tmp_path):
    path = tmp_path / "last.pt"
    checkpoint(path, 1.0, 2.0)
    whole, data = checkpoints.read(path), path.read_bytes()
    rng, seen = random.Random(1), 0
    for at in rng.sample(range(8 * len(data)), 800):
        path.write_bytes(data)
        flip(path, at)
        try:
            found = checkpoints.read(path)
        except Exception:
            seen += 1
            continue
        assert torch.equal(found["model"]["w"], whole["model"]["w"]) and found["extra_state"] == whole["extra_state"]
    assert seen > 200


# what lies in the folder: accuracies of the epochs that last, previous and best know; which are damaged; what is chosen
CASES = {
    "all whole": ({"last": (1, 2), "previous": (1,), "best": (1, 2)}, "", "last.pt"),
    "last damaged, best another epoch": ({"last": (1, 3, 2), "previous": (1, 3), "best": (1, 3)}, "last", "previous.pt"),
    "last damaged, best later": ({"last": (1, 2), "previous": (1,), "best": (1, 2)}, "last", "previous.pt"),
    "best damaged, last is the best": ({"last": (1, 2), "previous": (1,), "best": (1, 2)}, "best", "last.pt"),
    "best damaged, previous is the best": ({"last": (1, 3, 2), "previous": (1, 3), "best": (1, 3)}, "best", "previous.pt"),
    "best damaged, both after it": ({"last": (3, 1, 2), "previous": (3, 1), "best": (3,)}, "best", None),
    "best gone, both after it": ({"last": (3, 1, 2), "previous": (3, 1)}, "", None),
    "best of another epoch": ({"last": (1, 3, 2), "previous": (1, 3, 1), "best": (1,)}, "", None),
    "nothing whole": ({"last": (1, 2), "previous": (1,), "best": (1, 2)}, "last previous best", None),
    "nothing there": ({}, "", None),
    "before the first epoch's end": ({"last": ()}, "", "last.pt"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_newest_from_which_the_best_epoch_can_still_be_had(tmp_path, case):
    files, damaged, chosen = CASES[case]
    for name, accuracies in files.items():
        checkpoint(tmp_path / f"{name}.pt", *accuracies)
    for name in damaged.split():
        flip(tmp_path / f"{name}.pt", 8 * 1000)
    notes = Notes()
    assert checkpoints.choose(tmp_path, value, notes) == chosen
    for name in damaged.split():
        assert (tmp_path / f"{name}.unreadable").exists() and any(f"{name}.pt cannot be read" in n for n in notes)
    if chosen and files["last" if chosen == "last.pt" else "previous"] and case != "last damaged, best later":
        history = checkpoints.read(tmp_path / chosen)["extra_state"]["history"]
        checkpoints.best(tmp_path, max(history, key=value)["epoch"])


def test_in_the_middle_of_an_epoch_the_model_is_no_longer_the_best(tmp_path):
    checkpoint(tmp_path / "last.pt", 1, 2, middle=True)
    checkpoint(tmp_path / "previous.pt", 1, 2)
    assert checkpoints.choose(tmp_path, value, Notes()) == "previous.pt"


def test_one_damaged_file_under_two_names_comes_again(tmp_path):
    """The last epoch was the best one: last.pt and best.pt are the same file."""
    checkpoint(tmp_path / "previous.pt", 2, 1)
    checkpoint(tmp_path / "last.pt", 2, 1, 3)
    data = bytearray((tmp_path / "last.pt").read_bytes())
    data[1000] ^= 1
    (tmp_path / "last.pt").write_bytes(data)
    os.link(tmp_path / "last.pt", tmp_path / "best.pt")
    assert checkpoints.choose(tmp_path, value, Notes()) == "previous.pt"


def test_best_is_checked_when_it_is_used(tmp_path):
    checkpoint(tmp_path / "best.pt", 1, 2)
    assert checkpoints.best(tmp_path, 2.0)["model"]["w"].shape == (50,)
    with pytest.raises(RuntimeError, match="is of epoch 2, not 1"):
        checkpoints.best(tmp_path, 1.0)
    flip(tmp_path / "best.pt", 8 * 1000)
    with pytest.raises(RuntimeError, match=r"best\.pt is damaged .* run the same command again"):
        checkpoints.best(tmp_path, 2.0)
