"""Fusedmax and oscarmax with lam given as a tensor: the value as a differentiable expression of its structure.

Both mappings are linear in scores and lam as long as the support and the groups stay the same. Solve once without
gradient, read support, groups and the order of neighbouring groups from the solution, and write the solution down
again as torch operations on ``x`` and ``lam``: its derivatives of any order are those of the mapping.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.reference.structured import group_mean
from .apply import on_last


def _solve(op: str, x: Tensor, lam: Tensor) -> Tensor:
    with torch.no_grad():
        return on_last(op, x.detach(), {"gamma": 1.0}, lam=lam.detach())


def _simplex(values: Tensor, support: Tensor, p: Tensor) -> Tensor:
    """``values - tau`` on the support, tau making the sum 1."""
    inside = torch.where(support, values, 0.0)
    size = support.sum(-1, keepdim=True).clamp(min=1)
    shifted = torch.where(support, inside - (inside.sum(-1, keepdim=True) - 1.0) / size, 0.0)
    # NaN rows have no support: hand the NaN on.
    return torch.where(torch.isnan(p), p, shifted).to(p.dtype)


def fusedmax_of_tensor(x: Tensor, lam: Tensor) -> Tensor:
    """``x [..., n]`` (-inf = excluded), ``lam [..., 1]``; differentiable in both."""
    p = _solve("fusedmax", x, lam)
    keep = x.detach() != -torch.inf
    place = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
    packed = p.gather(-1, place)
    kept = keep.gather(-1, place)
    # On the edge between neighbours k and k+1 the penalty pulls the higher group down and the lower one up by lam.
    edge = torch.where(kept[..., 1:], torch.sign(packed[..., 1:] - packed[..., :-1]), 0.0)
    pull = torch.zeros_like(packed)
    pull[..., :-1] += edge
    pull[..., 1:] -= edge
    starts = torch.ones_like(kept)
    starts[..., 1:] = (packed[..., 1:] != packed[..., :-1]) | ~kept[..., 1:]
    groups = starts.cumsum(-1) - 1
    scores = x.masked_fill(~keep, 0.0).gather(-1, place)
    values = group_mean(scores + lam * pull, groups)
    support = (packed > 0) & kept
    out = _simplex(values, support, packed)
    return torch.empty_like(out).scatter(-1, place, out)


def oscarmax_of_tensor(x: Tensor, lam: Tensor) -> Tensor:
    """``x [..., n]`` (-inf = excluded), ``lam [..., 1]``; differentiable in both."""
    p = _solve("oscarmax", x, lam)
    keep = x.detach() != -torch.inf
    ordered, place = x.masked_fill(~keep, -torch.inf).sort(dim=-1, descending=True, stable=True)
    packed, kept = p.gather(-1, place), keep.gather(-1, place)
    count = keep.sum(-1, keepdim=True)
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device)
    starts = torch.ones_like(kept)
    starts[..., 1:] = (packed[..., 1:] != packed[..., :-1]) | ~kept[..., 1:]
    groups = starts.cumsum(-1) - 1
    values = group_mean(ordered.masked_fill(~kept, 0.0) - lam * (count - rank), groups)
    out = _simplex(values, (packed > 0) & kept, packed)
    return torch.empty_like(out).scatter(-1, place, out)
