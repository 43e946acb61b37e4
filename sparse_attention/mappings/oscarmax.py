r"""Oscarmax: :math:`p = \arg\min_{p \in \Delta} \frac12\|p - x/\gamma\|^2 + \lambda \sum_{i<j} \max(|p_i|, |p_j|)`.

The penalty encourages clusters of equal weight, at any positions (Niculae & Blondel 2017, sec. 3.2). ``mode="exact"``
solves this problem for scores of any sign: sort them, subtract :math:`\lambda(d - i)` from the i-th largest, apply
isotonic regression, then sparsemax. ``mode="paper"`` follows Prop. 2 as printed (and the authors' code): the OSCAR prox
on |x|, then sparsemax. This is correct only while the prox stays positive (``docs/reference/errata/niculae_oscarmax.py``). With
N(0, 1) scores, n = 10 and lam = .01, half of the rows differ from the exact solution, by up to .05; with N(0, .1^2)
scores and n = 30, nearly all rows differ, by up to .18. ``paper`` does not compile as one graph. Cost O(n log n).

Forward and backward: the reference is in ``kernels/reference/structured.py`` (``oscarmax_forward``,
``grouped_backward``), the fast kernels are in ``kernels/native/src/oscarmax.h`` and ``kernels/triton/structured.py``;
the case of a tensor lam and ``paper``
are in this file.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.reference.graph import in_order
from ..kernels.reference.structured import group_mean, isotonic_decreasing
from ..registry import Param, register
from ..rows.apply import rows
from ..rows.ragged import along
from ..rows.shape import scaled
from .fusedmax import tied
from .sparsemax import project_last

LAM = Param("lam", low=0.0, closed_low=True, meaning="weight of the pairwise maxima; 0 is sparsemax")
GAMMA = Param("gamma", low=0.0, meaning="strength of the whole regulariser")
MODE = Param(
    "mode",
    choices=("exact", "paper"),
    tensor=False,
    meaning="paper: the printed composition, wrong for scores that are not clearly positive",
)


@register(
    "oscarmax",
    params=(LAM, GAMMA, MODE),
    paper="Niculae & Blondel 2017, sec. 3.2 and Prop. 2",
    oracle="joint problem on the simplex (cvxpy sum_largest)",
)
def oscarmax(
    scores: Tensor,
    dim: int = -1,
    lam: float | Tensor = 0.01,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    mode: str = "exact",
) -> Tensor:
    """Clusters of equal weight at any positions.

    Args:
        scores: any shape; -inf counts as masked. The penalty covers only kept positions.
        lam: >= 0, a number or a tensor over the rows.
        gamma: > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
        mode: "exact" solves the problem stated above; "paper" computes the composition printed in the paper.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: lam, gamma or mode out of range.
    """
    lam, gamma = LAM.take(lam), GAMMA.take(gamma)
    if mode != "exact":
        MODE.check(mode)
        return along(_printed, scores, dim, mask, lam=lam, gamma=gamma)
    if lam.__class__ is float and lam == 0.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
    return rows("oscarmax", scores, dim, mask, {"lam": lam, "gamma": gamma}, _of_tensor)


def _of_tensor(x: Tensor, lam: Tensor) -> Tensor:
    """Oscarmax of ``x [..., n]`` (-inf = masked) with a tensor ``lam [..., 1]``; differentiable in both."""
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device)
    return tied("oscarmax", x, lam, x, lambda p, kept: rank - kept.sum(-1, keepdim=True))


def _printed(x: Tensor, lam: float | Tensor, gamma: float | Tensor) -> Tensor:
    """``P_simplex(P_OSC(x / gamma))`` for rows ``x [..., n]`` (-inf = masked); lam, gamma: numbers or ``[..., 1]``."""
    x = scaled(x, gamma)
    keep = x.detach() != -torch.inf
    return project_last(prox_oscar(x, torch.as_tensor(lam, dtype=x.dtype, device=x.device), keep), keep)


def prox_oscar(x: Tensor, lam: Tensor, keep: Tensor) -> Tensor:
    r"""``argmin_{y in R^d} 1/2 ||y - x||^2 + lam sum_{i<j} max(|y_i|, |y_j|)`` over the kept positions of each row, 0 elsewhere.

    Sort |x| in decreasing order, subtract :math:`\lambda(d - i)` from the i-th, apply isotonic regression, clip at 0, undo
    the sorting and restore the signs (Zhong & Kwok 2012). The groups are found without gradient; the value is
    differentiable in x and lam.
    """
    x0 = x.masked_fill(~keep, 0.0)
    sign = torch.sign(x0.detach())
    size = (x0 * sign).masked_fill(~keep, -torch.inf)
    ordered, place = in_order(size)
    kept = keep.gather(-1, place)
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device)
    lowered = ordered.masked_fill(~kept, 0.0) - lam * (keep.sum(-1, keepdim=True) - rank)
    with torch.no_grad():
        floor = torch.where(kept, lowered, 0.0).amin(-1, keepdim=True) - 1.0
        plain = torch.where(kept, lowered, floor - rank)
        n = x.shape[-1]
        groups = isotonic_decreasing(plain.reshape(-1, n))[1].view(x.shape)
    pooled = group_mean(lowered, groups).clamp(min=0.0)
    return torch.empty_like(pooled).scatter(-1, place, pooled) * sign
