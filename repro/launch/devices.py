"""Which GPUs the workers of one machine get: each its own, or as many as a training has processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from repro.files import StoreError


def count() -> int:
    """GPUs that torch may see here; opens none of them."""
    import torch

    return torch.cuda.device_count()


def places(
    runtime: Mapping[str, Any], processes: int = 1, count: Callable[[], int] = count
) -> tuple[list[str | None], str | None]:
    """CUDA_VISIBLE_DEVICES of each worker (None: left as it is), and a sentence where there are other workers than asked for.

    Args:
        runtime: `workers`, `devices` (all, none, or numbers among those that are visible), `workers_per_device`.
        processes: GPUs that a cell needs.

    Raises:
        StoreError: a device that is not there.
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
            f"runtime.devices={asked} is not possible: this machine shows {len(visible)} GPU(s), so there is no {absent[0]}; "
            f"allowed: all, none" + (f", numbers up to {len(visible) - 1}" if visible else "")
        )
    if runtime["device"] == "cpu" or not visible:
        return [None] * workers, None
    chosen = visible if asked == "all" else [visible[n] for n in asked]
    sets = [",".join(chosen[i : i + processes]) for i in range(0, len(chosen) - processes + 1, processes)]
    sets = sets or [",".join(chosen)]  # too few: the training says so
    most = len(sets) * runtime.get("workers_per_device", 1)
    found: list[str | None] = [sets[i % len(sets)] for i in range(min(workers, most))]
    said = None
    if workers > most:
        said = (
            f"{most} worker(s), not runtime.workers={workers}: one for each of {len(sets)} GPU(s)"
            + (f" x {processes}" if processes > 1 else "")
            + "; runtime.workers_per_device=2 lets two share one"
        )
    return found, said
