"""Real text as one long sequence of bytes: package descriptions, each followed by its synopsis."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tasks.data import DataError, NullProgress, open_data


def texts(root: str | Path, name: str = "debian_descriptions") -> tuple[Tensor, Tensor, str]:
    """Train and dev bytes, uint8 ``[T]`` each, and their provenance.

    Each record becomes its source, a line break, its reference, and two line breaks.

    Raises:
        DataError: the data set is unavailable; it is not replaced by generated text.
    """
    data = open_data({"name": name, "fallback": None}, root)
    splits = data.read(NullProgress())
    parts = [_joined(splits[split]) for split in ("train", "dev")]
    if min(map(len, parts)) < 2:
        raise DataError(f"{name} has no train or dev text", str(root), "python scripts/data.py verify " + name)
    return parts[0], parts[1], data.provenance


def _joined(pairs) -> Tensor:  # type: ignore[no-untyped-def]
    text = "".join(f"{pair.source}\n{pair.references[0]}\n\n" for pair in pairs)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def window(text: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each ``[1, length]``, starting at position ``start``."""
    piece = text[start : start + length + 1].long().unsqueeze(0)
    return piece[:, :-1], piece[:, 1:]
