r"""Oscarmax: :math:`p = \arg\min_{p \in \Delta} \frac12\|p - x/\gamma\|^2 + \lambda \sum_{i<j} \max(|p_i|, |p_j|)`.

Niculae & Blondel 2017, sec. 3.3: clusters of equal weight wherever they stand. ``mode="exact"`` solves this problem: sort
the scores, subtract :math:`\lambda(d - i)` from the i-th largest, isotonic regression, sparsemax. ``mode="paper"`` is the
printed Prop. 2 (and the authors' code): the OSCAR prox on |x|, then sparsemax. It is only right while the prox stays
positive; with N(0,1) scores, n = 10, lam = .01 half of the rows differ, by up to .05, and with N(0, .1^2) scores, n = 30,
nearly all, by up to .18. Cost O(n log n).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.reference.structured import group_mean, isotonic_decreasing
from ..registry import Mapping, Param, register, set_module
from ._call import last, per_row, rows
from ._groups import oscarmax_of_tensor
from .softmax import scaled
from .sparsemax import project_last

LAM = Param(
    "lam",
    0.01,
    low=0.0,
    closed_low=True,
    meaning="weight of the pairwise maxima; 0 is sparsemax",
    grid=(0.001, 0.01, 0.1),
)
GAMMA = Param("gamma", 1.0, low=0.0, meaning="strength of the whole regulariser", grid=(1.0,))
MODE = Param(
    "mode",
    "exact",
    choices=("exact", "paper"),
    tensor=False,
    meaning="paper: the printed composition, wrong for scores that are not clearly positive",
)


@register(
    "oscarmax",
    params=(LAM, GAMMA, MODE),
    paper="Niculae & Blondel 2017, sec. 3.3 and Prop. 2",
    oracle="joint problem on the simplex (cvxpy sum_largest)",
    summary="clusters of equal weight anywhere",
    complete=True,
)
def oscarmax(
    scores: Tensor,
    dim: int = -1,
    lam: float | Tensor = 0.01,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    mode: str = "exact",
) -> Tensor:
    """Oscarmax along ``dim``.

    Args:
        scores: any shape; -inf counts as masked, and only kept positions count in the penalty.
        lam: >= 0, a number or a tensor over the rows.
        gamma: > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
        mode: "exact" solves the stated problem; "paper" repeats the printed composition.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: lam, gamma or mode out of range.
    """
    if mode == "exact" and not isinstance(lam, Tensor) and not isinstance(gamma, Tensor):
        lam, gamma = LAM.check(lam), GAMMA.check(gamma)
        if lam == 0.0:
            return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
        return rows("oscarmax", scores, dim, mask, {"lam": lam, "gamma": gamma})
    MODE.check(mode)
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    x = scaled(x, scores, dim, gamma)
    weight = per_row(lam if isinstance(lam, Tensor) else x.new_tensor(LAM.check(lam)), scores, dim, "lam")
    return restore(oscarmax_of_tensor(x, weight) if mode == "exact" else _printed(x, weight))


def _printed(x: Tensor, lam: Tensor) -> Tensor:
    """``P_simplex(P_OSC(x))``, rows ``x [..., n]`` with -inf at excluded positions, ``lam [..., 1]``."""
    keep = x.detach() != -torch.inf
    return project_last(prox_oscar(x, lam, keep), keep)


def prox_oscar(x: Tensor, lam: Tensor, keep: Tensor) -> Tensor:
    """``argmin_{y in R^d} 1/2 ||y - x||^2 + lam sum_{i<j} max(|y_i|, |y_j|)`` over the kept positions of each row.

    Sort |x| in decreasing order, subtract ``lam (d - i)``, isotonic regression, clip at 0, undo the sorting, restore the
    signs (Zhong & Kwok 2012). The structure is found without gradient; the value is differentiable in x and lam.
    """
    x0 = x.masked_fill(~keep, 0.0)
    sign = torch.sign(x0.detach())
    size = (x0 * sign).masked_fill(~keep, -torch.inf)
    ordered, place = size.sort(dim=-1, descending=True, stable=True)
    kept = keep.gather(-1, place)
    count = keep.sum(-1, keepdim=True)
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device)
    lowered = ordered.masked_fill(~kept, 0.0) - lam * (count - rank)
    with torch.no_grad():
        floor = torch.where(kept, lowered, 0.0).amin(-1, keepdim=True) - 1.0
        plain = torch.where(kept, lowered, floor - rank)
        n = x.shape[-1]
        groups = isotonic_decreasing(plain.reshape(-1, n))[1].view(x.shape)
    pooled = group_mean(lowered, groups).clamp(min=0.0)
    return torch.empty_like(pooled).scatter(-1, place, pooled) * sign


class Oscarmax(Mapping):
    """Module twin of :func:`oscarmax`."""

    mapping_name = "oscarmax"

    def __init__(self, lam: Any = 0.01, gamma: Any = 1.0, mode: str = "exact"):
        super().__init__(lam=lam, gamma=gamma, mode=mode)


set_module("oscarmax", Oscarmax)
