"""Gradients for mappings that tie positions into groups, with lam as a tensor.

Such a mapping is linear in scores and lam as long as its support and its groups do not change. So we solve it once
without gradient; read the support, the groups and their order from the solution; and recompute the solution with torch
operations on the scores and lam. Derivatives of any order are then those of the mapping.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.reference.graph import in_order
from ..kernels.reference.structured import group_mean
from .apply import on_last


def tied(op: str, x: Tensor, lam: Tensor, key: Tensor, pull: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The mapping for rows ``x [..., n]`` (-inf = masked) with ``lam [..., 1]``, differentiable in both.

    Args:
        key: what orders the positions, ``[..., n]``, masked ones last; runs of equal weight in this order are groups.
        pull: ``f(p, kept)``, per unit of lam, what the penalty adds to the scores; all ``[..., n]``, in this order.
    """
    with torch.no_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(False):
        p = on_last(op, x.detach(), {"gamma": 1.0}, lam=lam.detach())
    keep = x.detach() != -torch.inf
    place = in_order(key)[1]
    p, kept, scores = (t.gather(-1, place) for t in (p, keep, x.masked_fill(~keep, 0.0)))
    starts = torch.ones_like(kept)  # a position that is not kept forms its own group
    starts[..., 1:] = (p[..., 1:] != p[..., :-1]) | ~kept[..., 1:]
    values = group_mean(scores + lam * pull(p, kept), starts.cumsum(-1) - 1)
    support = (p > 0) & kept
    inside = torch.where(support, values, 0.0)
    size = support.sum(-1, keepdim=True).clamp(min=1)  # values - tau on the support, with a sum of 1
    shifted = torch.where(support, inside - (inside.sum(-1, keepdim=True) - 1.0) / size, 0.0)
    out = torch.where(torch.isnan(p), p, shifted).to(p.dtype)  # a NaN row has no support, so copy its NaN
    return torch.empty_like(out).scatter(-1, place, out)
