"""The arguments of a fused attention call in the form that C++ reads, and the part kept for the gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .memory import dense, places

ALPHAS = (1.05, 4.0)  # of forward and backward; below, nothing is sparse and powers are too steep for float32
_POINTER = ctypes.c_void_p


class Shape(ctypes.Structure):
    """The same fields as Shape in ``src/attention_support.h``, and in ``held`` the tensors that they point to."""

    held: list[Tensor]

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("heads", "groups", "n", "m", "d", "e")],
        ("scale", ctypes.c_double),
        ("causal", ctypes.c_bool),
        ("lengths", _POINTER),
        ("spans", _POINTER),
        ("spans_of_heads", ctypes.c_bool),
        ("pinned", ctypes.c_bool),
        ("alpha", ctypes.c_double),
        ("alphas", _POINTER),
        *[
            (name, kind)
            for of in ("bias", "kept")
            for name, kind in ((of, _POINTER), (of + "_at", _POINTER), (of + "_row", ctypes.c_int64))
        ],
        ("dropout", ctypes.c_double),
        ("seed", ctypes.c_int64),
        ("lam", ctypes.c_double),
    ]


def joined(sizes: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and steps of the dimensions, of which those that are one in memory are joined, and those of one entry left out."""
    runs: list[tuple[int, int]] = []
    for size, step in zip(sizes, steps):
        if size != 1 and runs and runs[-1][1] == size * step:
            runs[-1] = runs[-1][0] * size, step
        elif size != 1:
            runs.append((size, step))
    return runs


def layout(x: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, int, int]:
    """The memory layout of ``x``, broadcastable to ``[*lead, n, m]``.

    Returns the offset of each head's first number, int64 with one value for each index of ``lead``, and the steps to the next
    query and to the next key; 0 for dimensions that are broadcast.
    """
    x = x.reshape(*[1] * (len(lead) + 2 - x.ndim), *x.shape)
    steps = [step if size > 1 else 0 for size, step in zip(x.shape, x.stride(), strict=True)]
    at = None
    for size, step in joined(lead, steps):  # on a GPU, each costs launches
        own = torch.arange(0, size * step, step, device=x.device) if step and size else None
        if at is None:
            at = torch.zeros(size, dtype=torch.int64, device=x.device) if own is None else own
        else:
            at = at.unsqueeze(-1).expand(*at.shape, size) if own is None else at.unsqueeze(-1) + own
    at = torch.zeros(1, dtype=torch.int64, device=x.device) if at is None else at.reshape(-1)
    return at, steps[-2], steps[-1]


def _by_key(x: Tensor, m: int, dtype: torch.dtype) -> Tensor:
    """``x [..., m or 1]`` with a query's keys adjacent in memory."""
    x = x.detach().to(dtype).resolve_neg()
    x = x if x.ndim > 1 else x.unsqueeze(0)
    return x if x.shape[-1] == m and x.stride(-1) == 1 else x.expand(*x.shape[:-1], m).contiguous()


def shape_of(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: float, scale: float, causal: bool = False, lengths: Tensor | None = None,
    spans: Tensor | None = None, alphas: Tensor | None = None, pinned: bool = False, bias: Tensor | None = None,
    mask: Tensor | None = None, lead: tuple[int, ...] | None = None, dropout: float = 0.0, seed: int = 0, lam: float | None = None,
) -> Shape:  # fmt: skip
    """The arguments of a call, as `operator` gives them and ``attention`` describes them; they are not checked again."""
    (heads, n, d), (groups, m, e) = q.shape, v.shape
    each = spans is not None and spans.shape[0] > 1
    numbers = {"dropout": dropout, "seed": seed, "lam": lam or 0.0}
    shape = Shape(heads, groups, n, m, d, e, scale, causal, None, None, each, pinned, alpha, **numbers)
    alphas, held = None if alphas is None else alphas.detach().to(torch.float64), []
    for name, x in (("lengths", lengths), ("spans", spans), ("alphas", alphas)):
        if x is not None:
            held.append(dense(x))
            setattr(shape, name, *places(held[-1]))
    for name, x, dtype in (("bias", bias, torch.float32), ("kept", mask, torch.bool)):
        if x is None:
            continue
        x = _by_key(x, m, dtype)
        at, row, _ = layout(x, (heads,) if lead is None else lead)
        setattr(shape, name, *places(x))
        setattr(shape, f"{name}_at", at.data_ptr())
        setattr(shape, f"{name}_row", row)
        held += [x, at]
    shape.held = held
    return shape


class Gradients(NamedTuple):
    """dq ``[H, n, d]``, dk ``[G, m, d]``, dv ``[G, m, e]``; dalphas ``[H]``; dbias in the bias' shape; those of forms on a GPU."""

    q: Tensor
    k: Tensor
    v: Tensor
    alphas: Tensor | None = None
    bias: Tensor | None = None
    scales: Tensor | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
