r"""Sparsemax: :math:`p = \arg\min_{p \in \Delta} \|p - x/\gamma\|^2 = [x/\gamma - \tau]_+` (Martins & Astudillo 2016).

The threshold :math:`\tau` makes the sum 1; scores more than :math:`\gamma` below the maximum get exactly 0. Piecewise
linear; with support S the Jacobian is :math:`(\mathrm{Diag}(1_S) - 1_S 1_S^\top/|S|)/\gamma`. Cost O(n) in the native
kernel, O(n log n) in the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, on_last, rows
from .softmax import scaled

GAMMA = Param("gamma", 1.0, low=0.0, meaning="strength of the regulariser: larger gives more support", grid=(1.0,))
_ONE = {"gamma": 1.0}


@register(
    "sparsemax",
    params=(GAMMA,),
    paper="Martins & Astudillo 2016; Niculae & Blondel 2017, sec. 2",
    oracle="quadratic programme (cvxpy, DAQP); entmax.sparsemax",
    summary="Euclidean projection on the simplex: exact zeros",
    complete=True,
)
def sparsemax(scores: Tensor, dim: int = -1, gamma: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Euclidean projection of ``scores / gamma`` on the simplex along ``dim``.

    Args:
        scores: any shape, floating point; -inf counts as masked.
        gamma: > 0, a number or a tensor over the rows (``[H, 1]`` for scores ``[B, H, T, n]`` is one per head).
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1, fully masked rows are 0, a row with NaN is NaN.
    Raises:
        ValueError: gamma out of range, a mask that does not broadcast.
        TypeError: scores not floating point, a mask that is not boolean.
    """
    if type(gamma) is float and gamma == 1.0:
        return rows("sparsemax", scores, dim, mask, _ONE)
    if isinstance(gamma, Tensor):
        return project_scaled(scores, dim, mask, gamma)
    return rows("sparsemax", scores, dim, mask, {"gamma": GAMMA.check(gamma)})


def project_scaled(scores: Tensor, dim: int, mask: Tensor | None, gamma: Tensor) -> Tensor:
    """Sparsemax with a divisor given as a tensor over the rows; gradients for both."""
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    return restore(on_last("sparsemax", scaled(x, scores, dim, gamma), _ONE))


def project_last(z: Tensor, keep: Tensor) -> Tensor:
    """Sparsemax along the last dimension of ``z [..., n]``, which must be float32 or float64; 0 where not ``keep``."""
    return on_last("sparsemax", z.masked_fill(~keep, -torch.inf), _ONE)


class Sparsemax(Mapping):
    """Module twin of :func:`sparsemax`."""

    mapping_name = "sparsemax"

    def __init__(self, gamma: Any = 1.0):
        super().__init__(gamma=gamma)


set_module("sparsemax", Sparsemax)
