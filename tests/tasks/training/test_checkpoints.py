"""Which checkpoint a training resumes from, and that no flipped bit gets past the check."""

from __future__ import annotations

import random

import pytest
import torch

from tasks.training import checkpoints


def checkpoint(path, *accuracies: float):
    """As training writes it after these epochs."""
    history = [{"epoch": float(i), "dev/accuracy": a} for i, a in enumerate(accuracies, 1)]
    torch.save({"model": {"w": torch.randn(50)}, "best": None, "history": history}, path)


def flip(path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at // 8] ^= 1 << at % 8
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
        assert torch.equal(found["model"]["w"], whole["model"]["w"]) and found["history"] == whole["history"]
    assert seen > 200


@pytest.mark.parametrize(
    "files, damaged, chosen",
    [
        ("last previous", "", "last.pt"),
        ("last previous", "last", "previous.pt"),
        ("last previous", "last previous", None),
        ("last", "", "last.pt"),
        ("previous", "", "previous.pt"),
        ("", "", None),
    ],
)
def test_the_newest_whole_one_is_chosen(tmp_path, files, damaged, chosen):
    for name in files.split():
        checkpoint(tmp_path / f"{name}.pt", 1, 2)
    for name in damaged.split():
        flip(tmp_path / f"{name}.pt", 8 * 1000)
    (tmp_path / "saving.99999.pt").write_bytes(b"left by a writer that was killed")
    notes = []
    assert checkpoints.newest(tmp_path, notes.append) == chosen
    for name in damaged.split():
        assert (tmp_path / f"{name}.unreadable").exists() and any(f"{name}.pt cannot be read" in n for n in notes)
    assert not list(tmp_path.glob("saving.*"))


def test_one_of_an_older_version_is_put_aside(tmp_path):
    torch.save({"model": {}, "extra_state": {"history": []}}, tmp_path / "last.pt")
    notes = []
    assert checkpoints.newest(tmp_path, notes.append) is None and "an older version wrote it" in notes[0]
