"""Which sequences take the kernels of ``short_kernels``: those whose keys fit into one block.

They take up to `MOST` keys, or fewer where ``python -m sparse_attention.kernels.triton --measure`` has found those of blocks faster.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from . import attention_arguments as args

MOST = 128  # queries and keys
_KEYS = (32, 64, 128)  # of a block: few sizes, since each is compiled
_LARGEST = {torch.float32: 64 * 64, torch.float16: 128 * 128, torch.bfloat16: 128 * 128}  # keys times channels


def block(q: Tensor, n: int, m: int, d: int, e: int) -> tuple[int, int] | None:
    """The numbers of queries and keys of a block; None if the kernels do not take n queries and m keys with d and e channels."""
    most = min(MOST, measured(q.get_device())) if q.is_cuda else MOST
    if not (0 < m <= most and 0 < n <= most and _fits(m, d, e, q.dtype)):
        return None
    keys = 32 if m <= 32 else 64 if m <= 64 else 128  # see `_KEYS`
    return 16 if keys > 64 and q.dtype == torch.float32 else 32, keys


@functools.lru_cache(4096)
def _fits(m: int, d: int, e: int, dtype: torch.dtype) -> bool:
    """Whether the registers hold a block."""
    return max(d, e) <= 128 and next(x for x in _KEYS if m <= x) * args.whole(d, e) <= _LARGEST[dtype]


def record(device: int | None = None) -> Path:
    """Where the number of `measured` is kept: in Triton's cache."""
    from triton import knobs

    return Path(knobs.cache.dir) / f"sparse_attention_short_{torch.cuda.get_device_name(device)}"


@functools.cache
def measured(device: int) -> int:
    """The number of keys up to which the kernels were the faster ones on a device; the widest block if that was not measured."""
    with suppress(ImportError, AttributeError, OSError, ValueError):
        return int(record(device).read_text())
    return _KEYS[-1]
