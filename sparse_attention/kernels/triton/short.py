"""Start the kernels of ``short_kernels``, for sequences whose keys fit into one block.

They take up to `MOST` keys, or fewer where ``python -m sparse_attention.kernels.triton --measure`` has found those of blocks faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import attention_arguments as args
from . import launcher
from .attention_arguments import Saved

MOST = 128  # queries and keys
_KEYS = (32, 64, 128)  # of a block: few sizes, since each is compiled
_LARGEST = {torch.float32: 64 * 64, torch.float16: 128 * 128, torch.bfloat16: 128 * 128}  # keys times channels


def takes(q: Tensor, m: int, e: int, *learned: Tensor | None) -> bool:
    """Whether the kernels take q, m keys and values of e channels; ``learned``: the forms that they do not know."""
    n, d = q.shape[-2:]
    most = min(MOST, measured(q.get_device())) if q.is_cuda else MOST
    if not (0 < m <= most and 0 < n <= most) or any(x is not None for x in learned):
        return False
    return _fits(m, d, e, q.dtype)


@functools.lru_cache(4096)
def _fits(m: int, d: int, e: int, dtype: torch.dtype) -> bool:
    """Whether the registers hold a block; channels that are a sum of two powers of two, as 80 are, need twice as many or more."""
    both = args.channels("D", d)["D2"] + args.channels("E", e)["E2"] > 0
    size = next(x for x in _KEYS if m <= x) * max(d, e) * (1 + both)
    return max(d, e) <= 128 and size <= _LARGEST[dtype] and not (both and dtype == torch.float32)


def record(device: int | None = None) -> Path:
    """Where the number of `measured` is kept: in Triton's cache."""
    from triton import knobs

    return Path(knobs.cache.dir) / f"sparse_attention_short_{torch.cuda.get_device_name(device)}"


@functools.cache
def measured(device: int) -> int:
    """The number of keys up to which the kernels were the faster ones on a device; `MOST` if that was not measured."""
    with suppress(ImportError, AttributeError, OSError, ValueError):
        return int(record(device).read_text())
    return MOST


@functools.lru_cache(1024)
def _of(
    spans: bool, masked: bool, alpha: float | None, keys: int, d: int, e: int, dtype: torch.dtype
) -> tuple[launcher.Starter, launcher.Starter]:
    """What starts the kernels."""
    from . import attention_blocks, short_kernels

    single = dtype == torch.float32
    rule = getattr(attention_blocks, {2.0: "SPARSEMAX", 1.5: "ENTMAX15", None: "ANY"}[alpha]).value
    kinds = {"RULE": rule, "SPANS": spans, "BIAS": 2 if masked else 0, "FORMS": 0}
    sizes = {"ROWS": 16 if single and keys > 64 else 32, "KEYS": keys}
    channels = {**args.channels("D", d), **args.channels("E", e)}
    warps = {"num_warps": 8 if keys * max(d, e) > (2048 if single else 4096) else 4, "num_stages": 1}
    shared = {**kinds, **sizes, **channels, **warps}
    return launcher.starter(short_kernels.short_forward, **shared), launcher.starter(
        short_kernels.short_backward, **shared
    )


def _starters(q: Tensor, saved: Saved) -> tuple[launcher.Starter, launcher.Starter]:
    _, _, m, e = saved.sizes
    alpha = saved.alpha if saved.alpha in (1.5, 2.0) else None
    keys = next(x for x in _KEYS if m <= x)
    return _of(saved.spans is not None, saved.bias is not None, alpha, keys, q.shape[-1], e, q.dtype)


def forward(
    q: Tensor, k: Tensor, v: Tensor, room: int, saved: Saved, prepare: Callable[..., None] | None
) -> tuple[Tensor, Saved | None]:
    """`attention.forward`; ``saved`` gets the state. prepare: `attention.prepare`; None without gradients."""
    heads, n, m, e = saved.sizes
    groups = k.shape[:-2].numel()
    out = torch.empty_like(q) if e == q.shape[-1] else q.new_empty(*q.shape[:-1], e)
    saved = saved._replace(state=torch.empty(2 * heads * n, dtype=torch.float32, device=q.device))
    visible, numbers = args.visible(q, saved)
    start, _ = _starters(q, saved)
    if prepare:
        prepare(start, q, k, v, saved)
    programs = heads * -(-n // start.constants["ROWS"])
    start.go(programs, q, k, v, *visible, out, saved.state, n, m, q.shape[-1], e, heads // groups, room, *numbers)
    return out, saved if prepare else None


def gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, launch: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of `attention.gradients`."""
    heads, n, m, e = saved.sizes
    groups = k.shape[:-2].numel()
    repeat = heads // groups
    parts = repeat if groups < args.FEW else 1
    dq, (keys, values, room) = torch.empty_like(q), args.together(k, v)
    if parts == 1 and keys.is_contiguous():
        dk, dv = torch.empty_like(keys), torch.empty_like(values)
    else:
        dtype = torch.float32 if parts > 1 else k.dtype
        dk, dv = (x.new_empty(groups * parts, m, x.shape[-1], dtype=dtype) for x in (keys, values))
    visible, numbers = args.visible(q, saved)
    _, start = _starters(q, saved)
    sizes = n, m, q.shape[-1], e, repeat, room, *numbers, saved.scale, parts
    given = g, q, keys, values, *visible, saved.state, dq, dk, dv, *sizes
    if launch is not None:
        launch(start.kernel, groups * parts, *given, **start.constants)
        return dq, dk, dv
    start.go(groups * parts, *given)
    if parts > 1:
        dk, dv = (x.view(groups, parts, m, x.shape[-1]).sum(1).to(q.dtype) for x in (dk, dv))
    return dq, dk, dv
