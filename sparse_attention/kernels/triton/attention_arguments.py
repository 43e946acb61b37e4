"""What the modules that start attention kernels share: what a forward keeps, and the forms as arguments of a kernel."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..native.attention_shape import layout

TENSORS = 8  # number of tensors in `Saved`
FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys


class Saved(NamedTuple):
    """Data for the backward: `TENSORS` tensors, then numbers.

    They are what the forward kernel wrote, and the forms, which decide which keys a query sees, and their scores.
    """

    state: Tensor  # float32, see `attention_blocks.parts_of`; empty before the forward
    lengths: Tensor | None
    spans: Tensor | None
    bias: Tensor | None  # -inf where the mask hides a key; or uint8, the mask alone
    powers: Tensor | None  # float32 [H], 1 / (alpha - 1) if each head has its own
    scales: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None
    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    block: tuple[int, int]
    sizes: tuple[int, int, int, int]  # heads, queries, keys, channels of values
    short: bool = False  # computed by ``short_kernels``


@functools.lru_cache(4096)
def sizes(a: torch.Size, b: torch.Size, c: torch.Size) -> tuple[int, int, int, int, int, int]:
    """Heads and groups of q, k and v of these shapes, the numbers of queries and keys, and the channels of keys and values."""
    return a[:-2].numel(), b[:-2].numel(), a[-2], c[-2], a[-1], c[-1]


def together(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
    """k and v, and how many rows their groups are apart in memory; only memory in another order is copied."""
    if k.is_contiguous() and v.is_contiguous() and not (k.is_neg() or v.is_neg()):
        return k, v, k.shape[-2]
    k, v = (x.detach().resolve_neg().reshape(-1, *x.shape[-2:]) for x in (k, v))
    room = k.stride(0) // k.shape[2]
    d, e = k.shape[2], v.shape[2]
    if k.stride() == (room * d, d, 1) and v.stride() == (room * e, e, 1):
        return k, v, room
    return k.contiguous(), v.contiguous(), k.shape[1]


@functools.lru_cache(64)
def no_lengths(device: torch.device) -> Tensor:
    """Stands for lengths that are not given; it is not read. It has no memory, which could be that of a CUDA graph."""
    return torch.empty(0, dtype=torch.int64, device=device)


def bits(saved: Saved) -> int:
    """FORMS: 1 with scales, 2 with slopes, 4 with sinks."""
    return (saved.scales is not None) + 2 * (saved.slopes is not None) + 4 * (saved.sinks is not None)


def visible(q: Tensor, saved: Saved) -> tuple[tuple[Tensor, ...], tuple[float, ...]]:
    """The tensors of the forms (q for those that are not given), and the numbers: steps, the factor of the scores, and r.

    The factor is (alpha - 1) scale; where each head has its own r, it divides the factor.
    """
    alpha, scale = saved.alpha, saved.scale
    forms: Any = saved[1:TENSORS]
    lengths, spans, bias, powers, scales, slopes, sinks = forms
    # an argument, not a constant, so that one kernel is compiled for causal attention, padding, both and neither
    sees = (1 if saved.causal else 0) + (0 if lengths is None else 2)
    per_head = 0 if spans is None or len(spans) == 1 else 2 * q.shape[-2]
    factors = (scale * (alpha - 1), 1 / (alpha - 1)) if powers is None else (scale, 0.0)
    if lengths is spans is bias is powers is scales is slopes is sinks is None:
        return (no_lengths(q.device), *(q,) * 7), (sees, 0, 0, 0, *factors)
    at, row, key = (q, 0, 0) if bias is None else layout(bias, saved.lead)
    tensors: list[Any] = [q if x is None else x for x in forms]
    tensors[0] = no_lengths(q.device) if lengths is None else lengths
    return (*tensors[:3], at, *tensors[3:]), (sees, per_head, row, key, *factors)


def whole(d: int, e: int) -> int:
    """The channels of all blocks of a kernel: one power of two.

    On an H200 (Triton 3.6), kernels in float32 whose blocks differed, by 16 and 32 channels or 32 and 16 more, gave wrong values.
    A likely cause: Triton 3.6 and 3.7 fail there with some kernels of several products (triton-lang/triton, 10486 and 11366).
    """
    return max(16, 1 << (max(d, e) - 1).bit_length())
