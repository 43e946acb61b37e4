r"""Sigmoid attention: :math:`p_i = \sigma(x_i + b)` with :math:`b = -\log n` (Ramapuram et al. 2024, arXiv 2409.04431).

Every position gets its weight independently of the others, so rows have any sum from 0 to n. The bias makes it about 1
when training starts: equal scores of 0 give :math:`n\,\sigma(-\log n) = n / (n + 1)`. Here n is the number of kept
positions of the row, so that a mask means as much as removing its positions; the authors' code uses the length of the
sequence for every row, which is ``bias=-math.log(length)``. Cost O(n). The Jacobian is :math:`\mathrm{Diag}(p (1 -
p))`.

Forward and backward: in this file, by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import under_contract

BIAS = Param("bias", optional=True, meaning="added to every score; None is -log n, n the row's kept positions")


@register(
    "sigmoid",
    kind="unnormalised",
    params=(BIAS,),
    paper="Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention",
    oracle="scipy.special.expit; finite differences",
)
def sigmoid(scores: Tensor, dim: int = -1, bias: float | Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """The logistic function of each score plus a bias, by default -log n; rows have any sum from 0 to n.

    Args:
        scores: any shape; -inf counts as masked.
        bias: a number, a tensor over the rows (``[H, 1]`` for scores ``[B, H, T, n]``), or None for -log n, where n is
            the number of kept positions of the row.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores, between 0 and 1; differentiable in scores and in a tensor bias.
    """

    def body(x: Tensor, keep: Tensor, bias: float | Tensor | None) -> Tensor:
        return torch.sigmoid(x - keep.sum(-1, keepdim=True).to(x.dtype).log() if bias is None else x + bias)

    return under_contract(body, scores, dim, mask, over_rows={"bias": BIAS.take(bias)})
