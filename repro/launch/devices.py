"""Assign GPUs to the workers on one machine: one GPU per worker, or as many as a training has processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from repro.files import StoreError


def count() -> int:
    """The number of GPUs that torch sees; no GPU is initialised."""
    import torch

    return torch.cuda.device_count()


def places(
    runtime: Mapping[str, Any], processes: int = 1, count: Callable[[], int] = count
) -> tuple[list[str | None], str | None]:
    """The workers' CUDA_VISIBLE_DEVICES (None means unchanged), and a message if there are fewer than requested.

    Args:
        runtime: the options `workers`, `device`, `devices` (all, none, or numbers of visible GPUs) and
            `workers_per_device`.
        processes: the number of GPUs that a cell needs.

    Raises:
        StoreError: a requested GPU does not exist.
    """
    workers, asked = runtime["workers"], runtime.get("devices", "all")
    if asked == "none":
        return [""] * workers, None
    visible: list[str] = []
    if asked != "all" or runtime["device"] != "cpu":
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = [str(n) for n in range(count())] if named is None else [n for n in named.split(",") if n]
    if asked != "all" and (absent := [n for n in asked if n >= len(visible)]):
        raise StoreError(
            f"runtime.devices={asked} is invalid: this machine shows {len(visible)} GPU(s), so there is no {absent[0]}; "
            f"allowed: all, none" + (f", numbers up to {len(visible) - 1}" if visible else "")
        )
    if runtime["device"] == "cpu" or not visible:
        return [None] * workers, None
    chosen = visible if asked == "all" else [visible[n] for n in asked]
    sets = [",".join(chosen[i : i + processes]) for i in range(0, len(chosen) - processes + 1, processes)]
    sets = sets or [",".join(chosen)]  # there are too few GPUs; the training reports the error
    most = len(sets) * runtime.get("workers_per_device", 1)
    found: list[str | None] = [sets[i % len(sets)] for i in range(min(workers, most))]
    if workers <= most:
        return found, None
    each = f"one for each of {len(sets)} GPU(s){f' x {processes}' if processes > 1 else ''}"
    return (
        found,
        f"{most} worker(s), not runtime.workers={workers}: {each}; runtime.workers_per_device=2 lets two share one",
    )
