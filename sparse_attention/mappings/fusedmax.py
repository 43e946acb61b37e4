r"""Fusedmax: :math:`p = \arg\min_{p \in \Delta} \frac12\|p - x/\gamma\|^2 + \lambda \sum_i |p_{i+1} - p_i|`.

The penalty encourages neighbouring positions to get the same weight (Niculae & Blondel 2017, sec. 3.2). Fusedmax is the
total variation prox followed by sparsemax (Prop. 2; the composition is exact). lam = 0 gives sparsemax, and lam ->
infinity gives uniform weights. The Jacobian is :math:`J_\Delta G / \gamma`, where G averages within the groups (Prop.
3). Cost O(n). **Masked positions are removed**: the positions on both sides of a gap become neighbours. Example:
``fusedmax([1, 2.1, 1.9], lam=.1) = [0, .5, .5]``.

Forward and backward: the reference is in ``kernels/reference/structured.py`` (``fusedmax_forward``,
``grouped_backward``), the fast kernels are in ``kernels/native/src/fusedmax.h`` and ``kernels/triton/structured.py``;
the case of a tensor lam is in this file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.reference.graph import in_order
from ..kernels.reference.structured import group_mean
from ..registry import Param, register
from ..rows.apply import on_last, rows

LAM = Param("lam", low=0.0, closed_low=True, meaning="weight of the total variation; 0 is sparsemax")
GAMMA = Param("gamma", low=0.0, meaning="strength of the whole regulariser")


@register(
    "fusedmax",
    params=(LAM, GAMMA),
    paper="Niculae & Blondel 2017, sec. 3.2 and Prop. 2",
    oracle="joint quadratic programme (cvxpy, DAQP)",
)
def fusedmax(
    scores: Tensor, dim: int = -1, lam: float | Tensor = 0.1, gamma: float | Tensor = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Equal weight on contiguous segments.

    Args:
        scores: any shape; -inf counts as masked.
        lam: >= 0, a number or a tensor over the rows.
        gamma: > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep; the positions on both sides of a masked one become neighbours.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: lam or gamma out of range.
    """
    lam, gamma = LAM.take(lam), GAMMA.take(gamma)
    if lam.__class__ is float and lam == 0.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
    return rows("fusedmax", scores, dim, mask, {"lam": lam, "gamma": gamma}, _of_tensor)


def _of_tensor(x: Tensor, lam: Tensor) -> Tensor:
    """Fusedmax of ``x [..., n]`` (-inf = masked) with a tensor ``lam [..., 1]``; differentiable in both."""
    return tied("fusedmax", x, lam, (x.detach() != -torch.inf).to(torch.int32), _pull)


def _pull(p: Tensor, kept: Tensor) -> Tensor:
    # At the edge between neighbours k and k+1, the penalty pulls the higher group down by lam and the lower group up.
    edge = torch.where(kept[..., 1:], torch.sign(p[..., 1:] - p[..., :-1]), 0.0)
    return pad(edge, (0, 1)) - pad(edge, (1, 0))


def tied(op: str, x: Tensor, lam: Tensor, key: Tensor, pull: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A mapping that ties positions, for rows ``x [..., n]`` (-inf = masked) with ``lam [..., 1]``, differentiable in both.

    Such a mapping is linear in scores and lam as long as its support and its groups do not change. So we solve it once
    without gradient; read the support, the groups and their order from the solution; and recompute the solution with
    torch operations on the scores and lam. Derivatives of any order are then those of the mapping.

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
