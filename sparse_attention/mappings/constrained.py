r"""Constrained softmax and sparsemax: attention with an upper bound u (the fertility) on every position.

Martins & Kreutzer 2017; Malaviya, Ferreira & Martins 2018; Peters, Niculae & Martins 2018.

* softmax: :math:`\arg\min_{p \in \Delta, p \le u} KL(p \,\|\, \mathrm{softmax}(z)) = \min(u, e^z/Z)`. Positions are
  capped in decreasing order of :math:`e^z/u`; the others share the remaining mass.
* sparsemax: :math:`\arg\min_{p \in \Delta, p \le u} \|p - z\|^2 = \mathrm{clip}(z - \tau, 0, u)`.

The problem is feasible if the bounds of the kept positions sum to at least 1. If rounding leaves the sum less than 1e-4
short (as when the fertility is used up exactly), the row returns its bounds. Any other infeasible row raises an error
that names it.

Forward and backward: softmax is in this file; for sparsemax, the reference is in ``kernels/reference/constrained.py``,
the fast kernel in ``kernels/native/src/constrained.h``, and the gradients are in ``rows/bounded.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.reference.graph import in_order
from ..registry import Param, register
from ..rows import operators
from ..rows.bounded import bounded_rows
from ..rows.bounded import checked as with_bounds
from ..rows.shape import along, expanded, foreign, transformed

BOUNDS = Param(
    "bounds",
    low=0.0,
    closed_low=True,
    meaning="upper bound of every position, a tensor that broadcasts to the scores; fixed or given per call",
)
_PAPER = "Malaviya et al. 2018; Peters et al. 2018"


def _bounded(
    body: Callable[[Tensor, Tensor], Tensor], scores: Tensor, bounds: Tensor | float, dim: int, mask: Tensor | None
) -> Tensor:
    """Apply ``body(x, u)`` along ``dim``; the scores x and bounds u are ``[..., n]`` and have the same dtype."""

    def both(x: Tensor) -> Tensor:
        # Create the tensor on the device: copying a number to it would force a synchronisation.
        given = bounds.to(x.device, x.dtype) if isinstance(bounds, Tensor) else x.new_full((), bounds)
        u = expanded(given, scores, "bounds")
        return body(x, u.reshape(1) if scores.ndim == 0 else u.movedim(dim, -1))

    return along(both, scores, dim, mask)


@register(
    "constrained_softmax",
    kind="constrained",
    inputs=("bounds",),
    params=(BOUNDS,),
    paper="Martins & Kreutzer 2017; Peters et al. 2018",
    oracle="relative entropy programme (cvxpy)",
)
def constrained_softmax(scores: Tensor, bounds: Tensor | float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Softmax with upper bounds.

    Differentiable in scores and bounds.

    Args:
        scores: any shape; -inf counts as masked.
        bounds: >= 0, broadcastable to scores; they must sum to at least 1 over the kept positions of every row.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: bounds do not broadcast to the scores, are negative or NaN, or sum to less than 1 in a row.
            (On a GPU, invalid values make their row NaN instead. So do invalid values in constrained_softmax inside
            torch.compile or a transform.)
    """
    return _bounded(_capped_softmax, scores, bounds, dim, mask)


@register(
    "constrained_sparsemax",
    kind="constrained",
    inputs=("bounds",),
    params=(BOUNDS,),
    paper=_PAPER,
    oracle="quadratic programme (cvxpy, DAQP)",
)
def constrained_sparsemax(scores: Tensor, bounds: Tensor | float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Sparsemax with upper bounds.

    Arguments, result, gradients and errors are those of :func:`constrained_softmax`.
    """
    return _bounded(_sparsemax, scores, bounds, dim, mask)


def _sparsemax(x: Tensor, u: Tensor) -> Tensor:
    if not transformed() and (foreign(x) or foreign(u)):
        return operators.bounded_rows(x.contiguous(), u.contiguous())
    return bounded_rows(x, u)


def _capped_softmax(x: Tensor, u: Tensor) -> Tensor:
    keep = x.detach() != -torch.inf
    top = x.detach().amax(-1, keepdim=True)
    dead, bad = top == -torch.inf, ~(top < torch.inf)
    if transformed() or foreign(x) or foreign(u):
        held = torch.where(keep, u.detach(), 0.0)
        bad = bad | ~((held >= 0).all(-1, keepdim=True) & (held.sum(-1, keepdim=True) >= 1 - 1e-4) | dead)
    else:
        x = with_bounds(x, u)
        bad = bad | x.detach().isnan().any(-1, keepdim=True)
    z = x.masked_fill(~keep | dead | bad, 0.0)
    u = u.masked_fill(~keep, 0.0)
    with torch.no_grad():
        capped = _capped(z.masked_fill(~keep, -torch.inf).masked_fill(dead | bad, 0.0), u)
    free = keep & ~capped
    left = 1.0 - torch.where(capped, u, 0.0).sum(-1, keepdim=True)
    none_free = ~free.any(-1, keepdim=True)
    rest = torch.softmax(z.masked_fill(~free & ~none_free, -torch.inf), -1)
    p = torch.where(capped, u, torch.where(free, rest * left, 0.0))
    return p.masked_fill(dead, 0.0).masked_fill(bad, torch.nan)


def _capped(z: Tensor, u: Tensor) -> Tensor:
    """Mask of the positions that are at their bound, for rows ``z, u [..., n]``.

    Positions are capped in decreasing order of ``e^z/u``, for as long as a position's share of the remaining mass would
    exceed its bound. O(n log n).
    """
    wide = torch.float64 if z.device.type != "mps" else z.dtype
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
