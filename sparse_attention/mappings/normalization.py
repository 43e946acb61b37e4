r"""The baseline mappings of Laha et al. 2018 (sec. 2 and Table 1), and hardmax, the one-hot limit.

sum-normalisation :math:`z_i/\sum z`; sum-normalisation++ :math:`\mathrm{sparsemax}(z/|\sum z|)` (sparsehourglass at q =
0); spherical softmax :math:`z_i^2/\sum z^2`; hardmax, the arg max. Both
sum-normalisations return NaN for a row that sums to 0, and spherical softmax returns NaN for a row of zeros.

Forward and backward: plain torch in this file; sum-normalisation++ uses sparsemax, in
``kernels/reference/threshold.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import register
from ..rows.apply import under_contract
from .sparsehourglass import through_cone

_PAPER = "Laha et al. 2018, sec. 2 and Table 1"


@register("sum_normalization", paper=_PAPER, oracle="definition", domain="nonnegative")
def sum_normalization(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``z / sum z``, for z >= 0.

    Defined for non-negative scores only. A row with a negative kept score is NaN, and so is a row of zeros.

    Args:
        scores: any shape; -inf counts as masked.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores.
    """

    def normalized(z: Tensor, keep: Tensor) -> Tensor:
        z = z.masked_fill(~keep, 0.0)
        outside = (z.detach() < 0).any(-1, keepdim=True)
        return (z / z.sum(-1, keepdim=True)).masked_fill(outside, torch.nan)

    return under_contract(normalized, scores, dim, mask)


@register(
    "sum_normalization_pp", paper="Laha et al. 2018, sec. 3.5 (sum normalization++)", oracle="quadratic programme"
)
def sum_normalization_pp(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Sparsehourglass at q = 0.

    ``sparsemax(z / |sum z|)``, scale invariant; a row that sums to 0 is NaN. Arguments and result are those of
    :func:`sum_normalization`.
    """
    return through_cone("sparsehourglass", scores, dim, mask, 0.0)


@register("spherical_softmax", paper=_PAPER + "; de Brebisson & Vincent 2016", oracle="definition")
def spherical_softmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``z^2 / sum z^2``.

    Scale invariant; signs have no effect; a row of zeros is NaN. Arguments are those of :func:`sum_normalization`.
    """

    def squared(z: Tensor, keep: Tensor) -> Tensor:
        z = z.masked_fill(~keep, 0.0)
        # The mapping is scale invariant: dividing by the largest absolute value first keeps the squares in range.
        z = z / z.detach().abs().amax(-1, keepdim=True)
        square = z.square()
        return square / square.sum(-1, keepdim=True)

    return under_contract(squared, scores, dim, mask)


@register("hardmax", paper="Laha et al. 2018, sec. 2", oracle="argmax")
def hardmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """One-hot at the largest score.

    Tied maxima share the weight equally; the gradient is 0 everywhere. Arguments are those of
    :func:`sum_normalization`.
    """

    def largest(z: Tensor, keep: Tensor) -> Tensor:
        x = z.detach().masked_fill(~keep, -torch.inf)
        best = (x == x.amax(-1, keepdim=True)).to(z.dtype)
        # Adding z * 0 keeps the autograd graph, with derivative 0, so that a loss on the result can be differentiated.
        return best / best.sum(-1, keepdim=True) + z * 0.0

    return under_contract(largest, scores, dim, mask)
