r"""Entmax: :math:`p = \arg\max_{p \in \Delta} p^\top x + H_\alpha(p) = [(\alpha-1)x - \tau]_+^{1/(\alpha-1)}`.

:math:`H_\alpha(p) = \frac{1}{\alpha(\alpha-1)} \sum_i (p_i - p_i^\alpha)`, the Tsallis entropy (Peters, Niculae & Martins
2019). alpha = 1 is softmax, 2 is sparsemax, and 1.5 has a closed form. Below 1 every position has weight, denser than softmax.
With :math:`s = p^{2-\alpha}` on the support the Jacobian is :math:`\mathrm{Diag}(s) - ss^\top/1^\top s`. A tensor
``alpha`` is learned. Value and gradient are continuous through 1 and have full precision up to 100.

Forward and backward: ``kernels/reference/threshold.py`` (``entmax_*``); fast ``kernels/native/src/simplex_mappings.h``,
``kernels/triton/simplex.py``.
"""

from __future__ import annotations

from torch import Tensor

from ..registry import Param, register
from ..rows.apply import rows
from .softmax import softmax

ALPHA = Param(
    "alpha", low=0.0, learned=(1.0, 2.0),
    meaning='1 is softmax, 2 is sparsemax; larger is sparser, below 1 is denser than softmax; a module can learn it: "learned", between 1 and 2',
)  # fmt: skip


@register(
    "entmax",
    params=(ALPHA,),
    paper="Peters, Niculae & Martins 2019; Correia et al. 2019 for the gradient in alpha",
    oracle="entmax package (entmax15, entmax_bisect)",
)
def entmax(scores: Tensor, dim: int = -1, alpha: float | Tensor = 1.5, mask: Tensor | None = None) -> Tensor:
    """Softmax, sparsemax and everything between and beyond them.

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 0, a number or a tensor over the rows (learned sparsity).
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1; NaN in the rows where a tensor alpha is out of range.
    Raises:
        ValueError: a number alpha <= 0.
    """
    alpha = ALPHA.take(alpha)
    if alpha.__class__ is float and alpha == 2.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": 1.0})
    if alpha.__class__ is float and alpha == 1.0:
        return softmax(scores, dim, mask=mask)
    return rows("entmax", scores, dim, mask, {"alpha": alpha})
