r"""Fusedmax: :math:`p = \arg\min_{p \in \Delta} \frac12\|p - x/\gamma\|^2 + \lambda \sum_i |p_{i+1} - p_i|`.

Niculae & Blondel 2017, sec. 3.2: neighbouring positions get the same weight. It is the total variation prox followed by
sparsemax (Prop. 1; the composition is exact). lam = 0 is sparsemax, lam -> infinity uniform. With G averaging inside
the groups the Jacobian is :math:`J_\Delta G / \gamma`. Cost O(n). Masked positions are *removed*: the two sides of a
hole are neighbours.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, per_row, rows
from ._groups import fusedmax_of_tensor
from .softmax import scaled

LAM = Param(
    "lam",
    0.1,
    low=0.0,
    closed_low=True,
    meaning="weight of the total variation; 0 is sparsemax",
    grid=(0.01, 0.1, 0.5, 1.0),
)
GAMMA = Param("gamma", 1.0, low=0.0, meaning="strength of the whole regulariser", grid=(1.0,))


@register(
    "fusedmax",
    params=(LAM, GAMMA),
    paper="Niculae & Blondel 2017, sec. 3.2 and Prop. 1",
    oracle="joint quadratic programme (cvxpy, DAQP)",
    summary="equal weight on contiguous segments",
    complete=True,
)
def fusedmax(
    scores: Tensor, dim: int = -1, lam: float | Tensor = 0.1, gamma: float | Tensor = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Fusedmax along ``dim``.

    Args:
        scores: any shape; -inf counts as masked.
        lam: >= 0, a number or a tensor over the rows.
        gamma: > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep; masked positions are removed before neighbours are taken.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: lam or gamma out of range.
    """
    if not isinstance(lam, Tensor) and not isinstance(gamma, Tensor):
        lam, gamma = LAM.check(lam), GAMMA.check(gamma)
        if lam == 0.0:
            return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
        return rows("fusedmax", scores, dim, mask, {"lam": lam, "gamma": gamma})
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    weight = per_row(lam if isinstance(lam, Tensor) else x.new_tensor(LAM.check(lam)), scores, dim, "lam")
    return restore(fusedmax_of_tensor(scaled(x, scores, dim, gamma), weight))


class Fusedmax(Mapping):
    """Module twin of :func:`fusedmax`."""

    mapping_name = "fusedmax"

    def __init__(self, lam: Any = 0.1, gamma: Any = 1.0):
        super().__init__(lam=lam, gamma=gamma)


set_module("fusedmax", Fusedmax)
