"""Mappings that tie positions into groups, with a tensor lam: the value as a differentiable expression of its structure.

Such a mapping is linear in scores and lam as long as its support and its groups do not change. Solve once without gradient,
read the support, the groups and their order from the solution, and recompute the solution by torch operations on ``x`` and
``lam``: derivatives of any order are then those of the mapping.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .apply import on_last


def solved(op: str, x: Tensor, lam: Tensor) -> Tensor:
    """The solution of rows ``x [..., n]`` with ``lam [..., 1]``, without gradient."""
    with torch.no_grad():
        return on_last(op, x.detach(), {"gamma": 1.0}, lam=lam.detach())


def group_numbers(p: Tensor, kept: Tensor) -> Tensor:
    """The number of each position's group in ``p [..., n]``: runs of equal weight; a position that is not kept is its own."""
    starts = torch.ones_like(kept)
    starts[..., 1:] = (p[..., 1:] != p[..., :-1]) | ~kept[..., 1:]
    return starts.cumsum(-1) - 1


def on_simplex(values: Tensor, kept: Tensor, p: Tensor, place: Tensor) -> Tensor:
    """``values - tau`` on the support of ``p``, tau making the sum 1; scattered to ``place``."""
    support = (p > 0) & kept
    inside = torch.where(support, values, 0.0)
    size = support.sum(-1, keepdim=True).clamp(min=1)
    shifted = torch.where(support, inside - (inside.sum(-1, keepdim=True) - 1.0) / size, 0.0)
    # A NaN row has no support: its NaN is kept.
    out = torch.where(torch.isnan(p), p, shifted).to(p.dtype)
    return torch.empty_like(out).scatter(-1, place, out)
