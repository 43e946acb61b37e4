r"""Softmax-plus-one: :math:`p_i = e^{x_i} / (e^s + \sum_j e^{x_j})`, a softmax that may give its weight to nothing.

It is softmax over the scores and one more score s, whose weight is dropped (Miller 2023, "Attention Is Off By One", s =
0). The sum of a row is :math:`\sigma(\log \sum_j e^{x_j} - s)`, between 0 and 1. A learned s per head is the attention
sink of gpt-oss (OpenAI 2025): weight that a head has no use for goes there, instead of to the first position (Xiao et
al. 2024). Cost O(n). The Jacobian is :math:`\mathrm{Diag}(p) - pp^\top`, and :math:`\partial p / \partial s = -p\,(1 -
\sum_i p_i)`.

In ``sa.sparse_attention``, softmax with ``sink=`` gives the same and is faster.

Forward and backward: in this file, by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import under_contract

LOGIT = Param(
    "logit",
    meaning="score of the position whose weight is dropped; lower is closer to softmax; an nn.Parameter is learned, [H, 1] is one per head",
)


@register(
    "softmax1",
    kind="unnormalised",
    params=(LOGIT,),
    paper="Miller 2023, Attention Is Off By One; with a learned logit: gpt-oss (OpenAI 2025)",
    oracle="scipy.special.softmax with one more score; finite differences",
)
def softmax1(scores: Tensor, dim: int = -1, logit: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Softmax with one more score, whose weight is dropped; a row sums to at most 1.

    Args:
        scores: any shape; -inf counts as masked.
        logit: the additional score, a number or a tensor over the rows (``[H, 1]`` for scores ``[B, H, T, n]``).
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to less than 1, fully masked rows are 0. Differentiable in scores and logit.
    """

    def body(x: Tensor, keep: Tensor, logit: float | Tensor) -> Tensor:
        rest = (x.new_zeros(()) + logit).expand(*x.shape[:-1], 1).to(x.dtype)
        return torch.softmax(torch.cat((x.masked_fill(~keep, -torch.inf), rest), -1), -1)[..., :-1]

    return under_contract(body, scores, dim, mask, over_rows={"logit": LOGIT.take(logit)})
