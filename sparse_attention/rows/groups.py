"""Gradients for mappings that tie positions into groups, with lam as a tensor.

Such a mapping is linear in scores and lam as long as its support and its groups do not change. So we solve it once
without gradient; read the support, the groups and their order from the solution; and recompute the solution with torch
operations on ``x`` and ``lam``. Derivatives of any order are then those of the mapping.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .apply import on_last


def solved(op: str, x: Tensor, lam: Tensor) -> Tensor:
    """The solution for rows ``x [..., n]`` with ``lam [..., 1]``, without gradient."""
    with torch.no_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(False):
        return on_last(op, x.detach(), {"gamma": 1.0}, lam=lam.detach())


def group_numbers(p: Tensor, kept: Tensor) -> Tensor:
    """The group number of each position in ``p [..., n]``.

    A group is a run of equal weights; a position that is not kept forms its own group.
    """
    starts = torch.ones_like(kept)
    starts[..., 1:] = (p[..., 1:] != p[..., :-1]) | ~kept[..., 1:]
    return starts.cumsum(-1) - 1


def on_simplex(values: Tensor, kept: Tensor, p: Tensor, place: Tensor) -> Tensor:
    """``values - tau`` on the support of ``p``, with tau chosen so that the sum is 1; scattered to ``place``."""
    support = (p > 0) & kept
    inside = torch.where(support, values, 0.0)
    size = support.sum(-1, keepdim=True).clamp(min=1)
    shifted = torch.where(support, inside - (inside.sum(-1, keepdim=True) - 1.0) / size, 0.0)
    # A NaN row has no support, so copy its NaN.
    out = torch.where(torch.isnan(p), p, shifted).to(p.dtype)
    return torch.empty_like(out).scatter(-1, place, out)
