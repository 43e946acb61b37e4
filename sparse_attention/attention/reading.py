"""Matrix products of attention, in which a weight of exactly 0 removes its value, even if the value is NaN or infinite.

A masked key therefore never has an effect, and a NaN reaches only the queries that give its key a nonzero weight; the
same holds in the gradients of keys and values. The fused kernels never read anything outside the support. The functions
here compute a product as usual and, if the result is not finite, compute it again without the zeros. That check reads
values, so it runs only on a CPU, outside torch.compile, torch.func and forward mode. In all other cases, keys that no
query sees are set to zero (`blank`), and other zero weights follow IEEE rules (0 * inf = NaN).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..rows.masked import readable
from ..rows.shape import batched


def times(a: Tensor, b: Tensor) -> Tensor:
    """``a [..., H, n, x] @ b [..., G, x, y] -> [..., H, n, y]``; head h is multiplied with group h // (H // G)."""
    if a.ndim == 2 or a.shape[-3] == b.shape[-3]:
        return a @ b
    return (_joined(a, b.shape[-3]) @ b).reshape(*a.shape[:-1], b.shape[-1])


def read(a: Tensor, b: Tensor) -> Tensor:
    """`times`, except that a zero in ``a`` removes the entry of ``b`` that it multiplies."""
    if not _visible(a, b):
        return times(a, b)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return _Read.apply(a, b)
    return _without_zeros(a, b)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """The scores ``q k^T``: ``q [..., H, n, d]`` and ``k [..., G, m, d]`` give ``[..., H, n, m]``.

    A score whose gradient is 0 has no effect on the gradients of q and k, even if q or k contains NaN.
    """
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad) and _visible(q, k):
        return _Scores.apply(q, k)
    return times(q, k.transpose(-1, -2))


def gathered(a: Tensor, b: Tensor, groups: int) -> Tensor:
    """``a [..., H, n, m]^T @ b [..., H, n, y]``, summed over the heads of each group: ``[..., G, m, y]``.

    As in `read`, a zero in ``a`` removes the entry of ``b``.
    """
    if a.ndim > 2 and a.shape[-3] != groups:
        a, b = _joined(a, groups), _joined(b, groups)
    return read(a.transpose(-1, -2), b)


def slopes(g: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The gradient of `read` in ``a``, given ``g [..., H, n, y]``; 0 where a zero removed a non-finite value."""
    found = times(g, b.transpose(-1, -2))
    if not _visible(g, b) or (finite(g) and finite(b)):
        return found
    return found.masked_fill((a == 0) & ~found.isfinite(), 0.0)


def weighed(x: Tensor, p: Tensor) -> Tensor:
    """Returns the weights ``p``, and keeps the gradient of a score in ``x`` finite where its weight is 0."""
    if x.requires_grad and torch.is_grad_enabled() and _visible(x, p):
        held = p.detach()  # if p kept its graph, the hook would keep itself alive
        x.register_hook(lambda g: g if batched(g) or finite(g) else g.masked_fill((held == 0) & ~g.isfinite(), 0.0))
    return p


def finite(x: Tensor) -> bool:
    """True if the sum of the values is finite (one pass). If a sum of finite values overflows, this only costs time."""
    return math.isfinite(x.detach().sum().item())


def blank(x: Tensor, keep: Tensor | None) -> Tensor:
    """Keys or values ``[..., G, m, .]``, set to zero where ``keep [..., H, n, m]`` hides them from every query.

    Only tensors whose values must not be read are changed; others are returned unchanged.
    """
    if keep is None or _visible(x, x) or keep.ndim < 2:
        return x
    seen = keep.any(-2)  # [..., H or 1, m]
    if x.ndim > 2 and seen.ndim > 1 and seen.shape[-2] not in (1, x.shape[-3]):
        seen = seen.unflatten(-2, (x.shape[-3], -1)).any(-2)
    return x.masked_fill(~seen.unsqueeze(-1), 0.0)


def _visible(a: Tensor, b: Tensor) -> bool:
    return readable(a) and readable(b) and not (batched(a) or batched(b))


def _joined(a: Tensor, groups: int) -> Tensor:
    """Reshape ``[..., H, n, x]`` to ``[..., G, H / G * n, x]``."""
    # not unflatten, which batched gradients do not support
    return a.reshape(*a.shape[:-3], groups, a.shape[-3] // max(groups, 1) * a.shape[-2], a.shape[-1])


def _without_zeros(a: Tensor, b: Tensor) -> Tensor:
    out = times(a, b)
    if finite(out):
        return out

    def meet(weights: Tensor, values: Tensor) -> Tensor:
        return times(weights.to(a.dtype), values.to(a.dtype)) > 0

    high, low = b == torch.inf, b == -torch.inf
    up, down = meet(a > 0, high) | meet(a < 0, low), meet(a > 0, low) | meet(a < 0, high)
    spoilt = meet(a != 0, b.isnan()) | (up & down)
    out = times(a, b.nan_to_num(0.0, 0.0, 0.0))
    return out.masked_fill(up, torch.inf).masked_fill(down, -torch.inf).masked_fill(spoilt, torch.nan)


class _Read(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _without_zeros(a, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        da = slopes(g, a, b) if ctx.needs_input_grad[0] else None
        return da, gathered(a, g, b.shape[-3] if b.ndim > 2 else 1) if ctx.needs_input_grad[1] else None


class _Scores(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        return times(q, k.transpose(-1, -2))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        q, k = ctx.saved_tensors
        dq = read(g, k) if ctx.needs_input_grad[0] else None
        return dq, gathered(g, q, k.shape[-3] if k.ndim > 2 else 1) if ctx.needs_input_grad[1] else None
