r"""Entmax: :math:`p = \arg\max_{p \in \Delta} p^\top x + H_\alpha(p) = [(\alpha-1)x - \tau]_+^{1/(\alpha-1)}`.

Here :math:`H_\alpha(p) = \frac{1}{\alpha(\alpha-1)} \sum_i (p_i - p_i^\alpha)` is the Tsallis entropy (Peters, Niculae
& Martins 2019). alpha = 1 gives softmax, alpha = 2 gives sparsemax, and alpha = 1.5 has a closed form. For alpha below
1 every position has nonzero weight, and the result is denser than softmax. With :math:`s = p^{2-\alpha}` on the
support, the Jacobian is :math:`\mathrm{Diag}(s) - ss^\top/1^\top s`. If ``alpha`` is a tensor, it can be learned. Value
and gradient are continuous at alpha = 1 and have full precision up to alpha = 100.

Forward and backward: the reference is in ``kernels/reference/threshold.py`` (``entmax_*``), the fast kernels are in
``kernels/native/src/simplex_mappings.h`` and ``kernels/triton/simplex.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import rows
from ..rows.ragged import over_segments
from .softmax import softmax

ALPHA = Param(
    "alpha",
    low=0.0,
    learned=(1.0, 2.0),
    meaning='1 is softmax, 2 is sparsemax; larger is sparser, below 1 is denser than softmax; a module can learn it: "learned", between 1 and 2',
)


@register(
    "entmax",
    params=(ALPHA,),
    paper="Peters, Niculae & Martins 2019; Correia et al. 2019 for the gradient in alpha",
    oracle="entmax package (entmax15, entmax_bisect)",
)
def entmax(
    scores: Tensor,
    dim: int = -1,
    alpha: float | Tensor = 1.5,
    mask: Tensor | None = None,
    segments: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A family of mappings that contains softmax (alpha = 1) and sparsemax (alpha = 2).

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 0, a number or a tensor over the rows (for learned sparsity).
        mask: bool, broadcastable to scores, True = keep.
        segments: int64 ``[n]``, the segment of each position along ``dim``, such as the node that an edge leads to; every
            segment gets weights of its own, in linear time.
        dtype: the scores are first converted to it, as in torch.softmax.
    Returns:
        shape of scores; rows sum to 1; a row is NaN if a tensor alpha is out of range there.
    Raises:
        ValueError: alpha is a number <= 0.
    """
    if dtype is not None:
        scores = scores.to(dtype)
    if segments is not None:
        return over_segments(entmax, scores, dim, mask, segments, alpha=ALPHA.take(alpha))
    alpha = ALPHA.take(alpha)
    if alpha.__class__ is float and alpha == 2.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": 1.0})
    if alpha.__class__ is float and alpha == 1.0:
        return softmax(scores, dim, mask=mask)
    return rows("entmax", scores, dim, mask, {"alpha": alpha})
