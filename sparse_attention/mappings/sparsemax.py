r"""Sparsemax: :math:`p = \arg\min_{p \in \Delta} \|p - x/\gamma\|^2 = [x/\gamma - \tau]_+` (Martins & Astudillo 2016).

The threshold :math:`\tau` makes the weights sum to 1; scores more than :math:`\gamma` below the maximum get exactly 0.
The mapping is piecewise linear; its Jacobian is :math:`(\mathrm{Diag}(1_S) - 1_S 1_S^\top/|S|)/\gamma`, where S is the
support. The cost is O(n) in the native kernel and O(n log n) in the reference.

Forward and backward: the reference is in ``kernels/reference/threshold.py`` (``sparsemax_*``), the fast kernels are in
``kernels/native/src/simplex_mappings.h`` and ``kernels/triton/simplex.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import on_last, rows
from ..rows.ragged import over_segments

GAMMA = Param("gamma", low=0.0, meaning="strength of the regulariser: larger gives more support")
_ONE = {"gamma": 1.0}


@register(
    "sparsemax",
    params=(GAMMA,),
    paper="Martins & Astudillo 2016; Niculae & Blondel 2017, sec. 2",
    oracle="quadratic programme (cvxpy, DAQP); entmax.sparsemax",
)
def sparsemax(
    scores: Tensor,
    dim: int = -1,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    segments: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Euclidean projection onto the simplex, which gives exact zeros.

    Args:
        scores: any shape, floating point; -inf counts as masked.
        gamma: > 0, a number or a tensor over the rows (for scores ``[B, H, T, n]``, a tensor ``[H, 1]`` gives one
            value per head).
        mask: bool, broadcastable to scores, True = keep.
        segments: int64 ``[n]``, the segment of each position along ``dim``, such as the node that an edge leads to; every
            segment gets weights of its own, in linear time.
        dtype: the scores are first converted to it, as in torch.softmax.
    Returns:
        shape of scores; rows sum to 1, fully masked rows are 0, a row with NaN is NaN.
    Raises:
        ValueError: gamma is out of range, or the mask does not broadcast.
        TypeError: the scores are not floating point, or the mask is not boolean.
    """
    if dtype is not None:
        scores = scores.to(dtype)
    if segments is not None:
        return over_segments(sparsemax, scores, dim, mask, segments, gamma=GAMMA.take(gamma))
    if gamma.__class__ is float and gamma == 1.0:  # the most frequent call
        return rows("sparsemax", scores, dim, mask, _ONE)
    return rows("sparsemax", scores, dim, mask, {"gamma": GAMMA.take(gamma)})


def project_last(z: Tensor, keep: Tensor, gamma: float = 1.0) -> Tensor:
    """Sparsemax along the last dimension of ``z [..., n]`` (float32 or float64); 0 where ``keep`` is False."""
    return on_last("sparsemax", z.masked_fill(~keep, -torch.inf), {"gamma": gamma})
