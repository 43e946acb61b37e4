r"""Entmoid15 and sparsemoid: the first weight of entmax 1.5 and of sparsemax over the two scores (x, 0).

They are to entmax and sparsemax what the logistic function is to softmax: gates that reach 0 and 1 exactly, used by
differentiable decision trees (Popov, Morozov & Babenko 2020, NODE, arXiv 1909.06312). Each score is mapped separately.

* ``entmoid15``: :math:`\frac12 + \frac18 x\sqrt{8 - x^2}` for :math:`|x| \le 2`, 0 below and 1 above. The derivative
  :math:`(4 - x^2) / (4\sqrt{8 - x^2})` is 0 at both ends. On the left it is computed as the square of :math:`(4 - x^2)
  / (2\sqrt{8 - x^2} - 2x)`, so that small weights keep their relative precision.
* ``sparsemoid``: :math:`\frac{x + 1}{2}` clipped to [0, 1]. The derivative is 1/2 inside and 0 outside.

Cost O(n). Forward and backward: in this file, by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import register
from ..rows.apply import under_contract

_PAPER = "Popov et al. 2020 (NODE), sec. 3.1 and its code"


@register("entmoid15", kind="unnormalised", paper=_PAPER, oracle="entmax package (entmax15 of (x, 0)); mpmath")
def entmoid15(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Entmax 1.5 of each score against 0: a smooth gate that is exactly 0 below -2 and 1 above 2.

    Args:
        scores: any shape; -inf counts as masked.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores, between 0 and 1.
    """
    return under_contract(_entmoid15, scores, dim, mask)


def _entmoid15(x: Tensor, keep: Tensor) -> Tensor:
    right = x.detach() > 0
    t = torch.where(right, -x, x).clamp(min=-2.0)
    left = ((2.0 - t) * (2.0 + t) / (2.0 * ((8.0 - t * t).sqrt() - t))).square()
    return torch.where(right, 1.0 - left, left)


@register("sparsemoid", kind="unnormalised", paper=_PAPER, oracle="entmax package (sparsemax of (x, 0)); numpy.clip")
def sparsemoid(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Sparsemax of each score against 0: linear from 0 at -1 to 1 at 1. Arguments and result as in `entmoid15`."""
    return under_contract(lambda x, keep: (0.5 * x + 0.5).clamp(0.0, 1.0), scores, dim, mask)
