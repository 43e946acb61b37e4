"""Attention over short rows on a CPU: the composition in a few torch calls for all heads, without an autograd graph.

The arguments are those of the fused kernels (`kernels.native.attention`); softmax works, too. Both functions return
None if a result is not finite; then `composition.attend`, where a weight of 0 removes its value, computes it again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.native import attention as native
from ..kernels.native.attention_shape import Gradients
from .composition import kernel_of, visible
from .forms import Inputs, Numbers
from .reading import finite


class Saved(NamedTuple):
    """What `gradients` needs: the weights p ``[G, H / G n, m]``, what the mapping's kernel saved, the factors of dropout."""

    kernel: Any
    params: dict[str, float]
    p: Tensor
    rest: tuple[Tensor, ...]
    factors: Tensor | None
    scale: float


class _Softmax:
    """`torch.softmax` in the form of a kernel for rows."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return torch.softmax(x, -1), ()

    @staticmethod
    def backward(g: Tensor, p: Tensor, saved: Any) -> Tensor:
        return torch._softmax_backward_data(g, p, -1, p.dtype)


def forward(
    q: Tensor, k: Tensor, v: Tensor, inputs: Inputs, numbers: Numbers, save: bool
) -> tuple[Tensor, Saved | None] | None:
    """The output ``[H, n, e]`` of q ``[H, n, d]``, k ``[G, m, d]`` and v ``[G, m, e]``, and what `gradients` needs."""
    q, k, v = (x.detach() for x in (q, k, v))
    (heads, n, d), (groups, m, _) = q.shape, k.shape
    lead, alpha, scale, causal, pinned, dropout, seed, lam, _ = numbers
    added, kept = None, visible(n, m, inputs.lengths, causal, None, inputs.spans, pinned)
    if kept is not None and heads == groups:  # saves a pass
        added, kept = torch.zeros(kept.shape).masked_fill_(~kept, -torch.inf), None
    x = _product(q.view(groups, -1, d), k.mT, scale, added)  # [G, H / G n, m]
    for keep, shape in ((kept, (heads,)), (inputs.mask, lead)):
        if keep is not None:
            x.view(*shape, n, m).masked_fill_(~keep, -torch.inf)
    rows = x.view(-1, m)
    kernel, params = (_Softmax, {}) if alpha == 1.0 else kernel_of(alpha, lam, rows)
    p, rest = kernel.forward(rows, **params)
    p = p.view(x.shape)
    factors = native.dropout_factors((heads, n, m), dropout, seed).view(x.shape) if dropout else None
    out = torch.bmm(p if factors is None else p * factors, v).view(heads, n, -1)
    if not finite(out):
        return None
    return out, Saved(kernel, params, p, rest, factors, scale) if save else None


def gradients(g: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, bias: None = None) -> Gradients | None:
    """The gradients for those of the output, ``g [H, n, e]``."""
    kernel, params, p, rest, factors, scale = saved
    g, rows = g.view(len(v), -1, g.shape[-1]), p.view(-1, p.shape[-1])  # [G, H / G n, .]
    dp = torch.bmm(g, v.mT)
    dp = dp if factors is None else dp.mul_(factors)
    dx = kernel.backward(dp.view(rows.shape), rows, rest, **params).view(p.shape)
    dv = torch.bmm((p if factors is None else p * factors).mT, g)
    dq, dk = _product(dx, k, scale).view(q.shape), _product(dx.mT, q.view(len(k), -1, q.shape[-1]), scale)
    return Gradients(dq, dk, dv, None, None) if all(map(finite, (dq, dk, dv))) else None


def _product(a: Tensor, b: Tensor, scale: float, added: Tensor | None = None) -> Tensor:
    if added is None:
        return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=scale)
    return torch.baddbmm(added, a, b, alpha=scale)
