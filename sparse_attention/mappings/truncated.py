r"""Top-k and top-p: softmax over a set S of the largest scores, :math:`p = \mathrm{softmax}(x_S)`, and zero elsewhere.

In ``top_k``, S holds the k largest kept scores (Gupta et al. 2021, for attention). In ``top_p``, S is the smallest set
of largest scores whose softmax probabilities sum to at least ``mass`` (the nucleus of Holtzman et al. 2020). Ties are
broken in favour of the earlier position. S is piecewise constant in the scores, so the gradient is that of softmax on
S; k and mass have no gradient. Unlike sparsemax, the value jumps where two scores change order. Cost O(n log n).

Forward and backward: in this file, by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.reference.graph import in_order
from ..kernels.reference.rows import widest
from ..registry import Param, register
from ..rows.apply import under_contract

K = Param("k", low=1, closed_low=True, whole=True, meaning="the largest number of positions with weight")
MASS = Param("mass", low=0.0, high=1.0, closed_high=True, tensor=False, meaning="the least softmax probability that the chosen positions hold")  # fmt: skip


def _ordered(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Scores ``[..., n]`` in decreasing order (masked ones last, as -inf), and the rank of every position, from 0."""
    ordered, place = in_order(scores.detach().masked_fill(~mask, -torch.inf))
    at = torch.ones_like(place).cumsum(-1) - 1  # not arange, which would be no DTensor where the scores are one
    return ordered, torch.empty_like(place).scatter(-1, place, at)


def _restricted(scores: Tensor, inside: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(~inside, -torch.inf), -1)


@register("top_k", params=(K,), paper="Gupta et al. 2021 (top-k attention)", oracle="enumeration")
def top_k(scores: Tensor, dim: int = -1, mask: Tensor | None = None, *, k: int | Tensor = 8) -> Tensor:
    """Softmax of the k largest scores.

    Args:
        scores: any shape; -inf counts as masked.
        mask: bool, broadcastable to scores, True = keep.
        k: >= 1, a number or a tensor of integers over the rows; if fewer positions are kept, all of them are used.
    Returns:
        shape of scores; rows sum to 1, with at most k entries above 0.
    """

    def body(x: Tensor, keep: Tensor, k: int | Tensor) -> Tensor:
        return _restricted(x, keep & (_ordered(x, keep)[1] < k))

    return under_contract(body, scores, dim, mask, over_rows={"k": K.take(k)})


@register("top_p", params=(MASS,), paper="Holtzman et al. 2020 (nucleus)", oracle="enumeration")
def top_p(scores: Tensor, mask: Tensor, mass: float = 0.9) -> Tensor:
    """Softmax of the fewest scores whose softmax probabilities sum to at least ``mass``.

    Args:
        scores: [..., n]. mask: [..., n], True = keep. mass: 0 < mass <= 1; 1 gives softmax.
    Returns:
        [..., n]; rows sum to 1.
    """
    if mass == 1.0:
        return _restricted(scores, mask)
    ordered, rank = _ordered(scores, mask)
    held = torch.softmax(ordered.to(widest(ordered)), -1).cumsum(-1)
    before = torch.cat((torch.zeros_like(held[..., :1]), held[..., :-1]), -1)  # total probability of the higher scores
    return _restricted(scores, mask & (before.gather(-1, rank) < mass))
