"""Which kernels of attention a device takes, where that depends on what was measured there."""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import triton as rows

LONG = 2048  # from this many keys on, ``list_kernels`` may be faster
# Whether they are taken, whatever memory they need; None: if they were `measured` as faster, within the limits of `lists`
LISTED: bool | None = None
PLACES = (96, 128)  # of a list, for alpha = 2 and for others, of which more keys are in the support
_LEAST = 1.4  # alpha, below which hundreds of keys are in the support of random scores, and most lists would be full


def record(device: int | None = None) -> Path:
    """The file in Triton's cache with the numbers of `measured`; ``python -m sparse_attention.kernels.triton --measure`` writes it."""
    from triton import knobs

    return Path(knobs.cache.dir) / f"sparse_attention_short_{torch.cuda.get_device_name(device)}"


@functools.cache
def measured(device: int) -> tuple[int, bool]:
    """The number of keys up to which ``short_kernels`` were faster than blocks on a device, and whether ``list_kernels`` were.

    If not measured, the most that ``short_kernels`` take, and False.
    """
    with suppress(ImportError, AttributeError, OSError, ValueError):
        short, *listed = map(int, record(device).read_text().split())
        return short, any(listed)
    return 128, False


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of an H200, if the device is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def lists(q: Tensor, k: Tensor, v: Tensor, saved: Any, start: rows.Starter) -> tuple[Any, ...] | None:
    """The number of programs of ``list_kernels``, what starts them, memory for their lists, and what starts the rest; None if ``start`` does all.

    saved: `attention.Saved`. Lists take at most a quarter of the memory of q, k and v. If that leaves a multiprocessor without a program, they are not taken.
    """
    heads, n, m, _ = saved.sizes
    own, half = start.constants, q.dtype != torch.float32
    usual = half and (saved.powers is not None or saved.alpha >= _LEAST) and q.is_cuda
    chosen = LISTED if LISTED is not None else usual and measured(q.get_device())[1]
    if m < LONG or saved.block[1] < 32 or not chosen:
        return None
    from .list_kernels import attend_listed

    units, total, many = multiprocessors(q.device), heads * -(-n // saved.block[0]), saved.alpha != 2
    each = 2 * saved.block[0] * (PLACES[many] + 1)
    programs = min(total, 4 * units)
    if LISTED is None:
        programs = min(programs, (q.nbytes + k.nbytes + v.nbytes) // (4 * 4 * each))
    if programs < min(total, units):
        return None
    limits = {"num_warps": 4 if half else 8, "maxnreg": 128 if half and own["WIDE"] <= 64 else 255}
    listed = {x: y for x, y in own.items() if x != "MARKED"} | limits | {"PLACES": PLACES[many], "SLOWER": 1 + many}
    memory = q.new_empty(programs * each, dtype=torch.float32)
    return programs, rows.starter(attend_listed, **listed), memory, rows.starter(start.kernel, **own | {"MARKED": True})
