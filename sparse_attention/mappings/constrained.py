r"""Constrained softmax and sparsemax: attention with an upper bound u (the fertility) on every position, and a lower
bound l, which is 0 unless given.

Martins & Kreutzer 2017; Malaviya, Ferreira & Martins 2018; Peters, Niculae & Martins 2018.

* softmax: :math:`\arg\min_{p \in \Delta, l \le p \le u} KL(p \,\|\, \mathrm{softmax}(z)) = \mathrm{clip}(e^z/Z, l, u)`.
  Without l, positions are capped in decreasing order of :math:`e^z/u`, and the others share the remaining mass. With l,
  the Z at which a position meets a bound are sorted, and the sum of the clipped values is bisected over them.
* sparsemax: :math:`\arg\min_{p \in \Delta, l \le p \le u} \|p - z\|^2 = \mathrm{clip}(z - \tau, l, u)`. With :math:`s = 1 -
  \sum l`, this is l plus s times the solution for scores :math:`(z - l)/s` with the bounds :math:`(u - l)/s`, from 0.
* budget: :math:`\arg\min \|\mu - z\|^2` over :math:`0 \le \mu \le 1` that sum to k, the averages of subsets of k positions.

The problem is feasible if, over the kept positions, :math:`0 \le l \le u`, l sums to at most 1 and u to at least 1. If
rounding leaves a sum less than 1e-4 off (as when the fertility is used up exactly), the row returns those bounds. Any
other infeasible row raises an error that names it.

Forward and backward: softmax is in this file; for sparsemax, the reference is in ``kernels/reference/constrained.py``,
the fast kernel in ``kernels/native/src/constrained.h``, and the gradients are in ``rows/bounded.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..describe import number_of
from ..kernels.reference.graph import in_order
from ..kernels.reference.rows import widest
from ..registry import Param, register
from ..rows.bounded import bounded_rows
from ..rows.bounded import checked as with_bounds
from ..rows.ragged import along, over_rows
from ..rows.shape import expanded, foreign, jagged, transformed

_MEANING = "upper bound of every position, a tensor that broadcasts to the scores; fixed or given per call"
BOUNDS = Param("bounds", low=0.0, closed_low=True, each=True, meaning=_MEANING)
LOWER = Param(
    "lower", low=0.0, closed_low=True, optional=True, each=True, meaning="lower bound of every position; None is 0"
)
_Bound = Tensor | float | None
_PAPER = "Malaviya et al. 2018; Peters et al. 2018"


def _bounded(
    body: Callable[..., Tensor], scores: Tensor, bounds: Any, lower: Any, dim: int, mask: Tensor | None
) -> Tensor:
    """Apply ``body(x, u)`` or ``body(x, u, low)`` along ``dim``; all are ``[..., n]`` and have the same dtype."""
    if jagged(scores):
        given = {"bounds": bounds, "lower": lower}
        return over_rows(lambda x, mask, **own: _bounded(body, x, dim=-1, mask=mask, **own), scores, dim, mask, given)

    def every(x: Tensor) -> Tensor:
        each = []
        for name, value in (("bounds", bounds), ("lower", lower)):
            if value is not None:
                # Create the tensor on the device: copying a number to it would force a synchronisation.
                one = value.to(x.device, x.dtype) if isinstance(value, Tensor) else x.new_full((), number_of(value))
                one = expanded(one, scores, name)
                each.append(one.reshape(1) if scores.ndim == 0 else one.movedim(dim, -1))
        return body(x, *each)

    return along(every, scores, dim, mask)


@register(
    "constrained_softmax",
    kind="constrained",
    inputs=("bounds",),
    params=(BOUNDS, LOWER),
    paper="Martins & Kreutzer 2017; Peters et al. 2018",
    oracle="relative entropy programme (cvxpy)",
)
def constrained_softmax(
    scores: Tensor, bounds: Tensor | float, dim: int = -1, mask: Tensor | None = None, lower: _Bound = None
) -> Tensor:
    """Softmax with upper and lower bounds.

    Differentiable in scores and both bounds.

    Args:
        scores: any shape; -inf counts as masked.
        bounds: >= 0, broadcastable to scores; they must sum to at least 1 over the kept positions of every row.
        mask: bool, broadcastable to scores, True = keep; a masked position has no bounds.
        lower: from 0 to bounds, broadcastable to scores; they must sum to at most 1 over the kept positions of every
            row.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: bounds do not broadcast to the scores, are negative or NaN, or sum to less than 1 in a row; or lower
            is above them, or sums to more than 1. (On a GPU, invalid values make their row NaN instead, and
            so they do inside torch.compile or a transform, except in constrained_sparsemax without lower.)
    """
    return _bounded(_capped_softmax, scores, bounds, lower, dim, mask)


@register(
    "constrained_sparsemax",
    kind="constrained",
    inputs=("bounds",),
    params=(BOUNDS, LOWER),
    paper=_PAPER,
    oracle="quadratic programme (cvxpy, DAQP)",
)
def constrained_sparsemax(
    scores: Tensor, bounds: Tensor | float, dim: int = -1, mask: Tensor | None = None, lower: _Bound = None
) -> Tensor:
    """Sparsemax with upper and lower bounds.

    Arguments, result, gradients and errors are those of :func:`constrained_softmax`.
    """
    return _bounded(_sparsemax, scores, bounds, lower, dim, mask)


K = Param("k", low=1, closed_low=True, whole=True, tensor=False, meaning="the sum of a row, and of how many positions")


@register(
    "sparsemap_budget",
    kind="unnormalised",
    params=(K,),
    paper="Niculae et al. 2018 (SparseMAP), of the budget factor",
    oracle="quadratic programme (DAQP); SparseMAP over all subsets of k positions",
)
def sparsemap_budget(scores: Tensor, dim: int = -1, k: int = 2, mask: Tensor | None = None) -> Tensor:
    """Exactly k of n: the average of subsets of k positions that is nearest to the scores.

    It is k times constrained_sparsemax of the scores over k, with the bound 1/k. For at most k, see `structured.Budget`.

    Args:
        scores: any shape; -inf counts as masked.
        k: >= 1; if fewer positions are kept, each of them gets 1.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores, from 0 to 1; rows sum to k.
    """
    k = K.check(k)

    def body(x: Tensor) -> Tensor:
        size = (x.detach() != -torch.inf).sum(-1, keepdim=True).clamp(1, k).to(x.dtype)
        return size * _sparsemax(x / size, (1.0 / size).expand(x.shape))

    return along(body, scores, dim, mask)


def _sparsemax(x: Tensor, u: Tensor, low: Tensor | None = None) -> Tensor:
    if low is not None:
        out = x.detach() == -torch.inf
        x = with_bounds(x, u, low)
        # Infinite numbers have no derivatives below: a bound above 1 has no effect, and masks are put back.
        low, u = low.masked_fill(out, 0.0), u.masked_fill(out, 0.0).clamp(max=1.0)
        room = u - low
        left = torch.minimum(1.0 - low.sum(-1, keepdim=True), room.sum(-1, keepdim=True)).clamp(min=0.0)
        none = left == 0
        size = left.masked_fill(none, 1.0)
        z = ((x.masked_fill(out, 0.0) - low) / size).masked_fill(out, -torch.inf)
        return low + left * _sparsemax(z, (room / size).masked_fill(none, 1.0))
    return bounded_rows(x, u)


def _capped_softmax(x: Tensor, u: Tensor, low: Tensor | None = None) -> Tensor:
    keep = x.detach() != -torch.inf
    top = x.detach().amax(-1, keepdim=True)
    dead, bad = top == -torch.inf, ~(top < torch.inf)
    if low is None and (transformed() or foreign(x) or foreign(u)):
        held = torch.where(keep, u.detach(), 0.0)
        bad = bad | ~((held >= 0).all(-1, keepdim=True) & (held.sum(-1, keepdim=True) >= 1 - 1e-4) | dead)
    else:
        x = with_bounds(x, u, low)
        bad = bad | x.detach().isnan().any(-1, keepdim=True)
    z = x.masked_fill(~keep | dead | bad, 0.0)
    u = u.masked_fill(~keep, 0.0)
    ranked = z.detach().masked_fill(~keep, -torch.inf).masked_fill(dead | bad, 0.0)
    if low is None:
        capped = _capped(ranked, u.detach())
        free, bound = keep & ~capped, torch.where(capped, u, 0.0)
        left = 1.0 - bound.sum(-1, keepdim=True)
    else:
        low = low.masked_fill(~keep, 0.0)
        capped, floored = _clipped(ranked, u.detach(), low.detach())
        free, bound = keep & ~capped & ~floored, torch.where(capped, u, torch.where(floored, low, 0.0))
        left = (1.0 - bound.sum(-1, keepdim=True)).clamp(min=0.0)
    none_free = ~free.any(-1, keepdim=True)
    rest = torch.softmax(z.masked_fill(~free & ~none_free, -torch.inf), -1)
    p = torch.where(free, rest * left, bound)
    return p.masked_fill(dead, 0.0).masked_fill(bad, torch.nan)


def _capped(z: Tensor, u: Tensor) -> Tensor:
    """Mask of the positions that are at their bound, for rows ``z, u [..., n]``.

    Positions are capped in decreasing order of ``e^z/u``, for as long as a position's share of the remaining mass would
    exceed its bound. O(n log n).
    """
    wide = widest(z)
    z, u = z.to(wide), u.to(wide)
    log_ratio = torch.where(z > -torch.inf, z - u.log(), -torch.inf)  # +inf where the bound is 0
    _, order = in_order(log_ratio)
    z_sorted, u_sorted = z.gather(-1, order), u.gather(-1, order)
    top = z.amax(-1, keepdim=True)
    mass = torch.exp(z_sorted - top)
    remaining = mass.flip(-1).cumsum(-1).flip(-1)  # the mass of this position and all later ones
    used = u_sorted.cumsum(-1) - u_sorted
    # Test each position as if all earlier ones were capped; then keep the prefix in which this is true.
    over = (mass * (1.0 - used) > u_sorted * remaining) | (u_sorted == 0) | (used >= 1.0)
    over = ((~over).cumsum(-1) == 0) & (z_sorted > -torch.inf)
    return torch.zeros_like(over).scatter(-1, order, over)


def _clipped(z: Tensor, u: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the positions at their upper and at their lower bound in ``clip(e^(z + t), low, u)``, rows ``[..., n]``.

    The sum of a row rises with t. We sort the t at which a position meets a bound and bisect for the last one at which
    the sum is below 1. By then, a position is at its upper bound if it has met it, and at its lower bound if it has not
    left it. O(n log n).
    """
    wide = widest(z)
    z, u, low = z.to(wide), u.to(wide), low.to(wide)
    out = z == -torch.inf
    leaves, meets = ((bound.log() - z).masked_fill(out, torch.inf) for bound in (low, u))
    kinks = torch.cat((leaves, meets), -1).sort(-1).values
    count = kinks.shape[-1]
    start = torch.zeros_like(kinks[..., :1], dtype=torch.int64)  # the sum is below 1 at all kinks before this one
    stop = torch.full_like(start, count)  # and at this one it is not
    for _ in range(count.bit_length() if type(count) is int else 32):
        middle = (start + stop) // 2
        t = kinks.gather(-1, middle.clamp(max=count - 1))
        total = torch.exp((z + t).masked_fill(out, -torch.inf)).maximum(low).minimum(u).sum(-1, keepdim=True)
        below = (total < 1.0) & (start < stop)
        start, stop = torch.where(below, middle + 1, start), torch.where(below, stop, middle)
    t = kinks.gather(-1, (start - 1).clamp(min=0)).masked_fill(start == 0, -torch.inf)
    return meets <= t, leaves > t
