r"""Entmax: :math:`p = \arg\max_{p \in \Delta} p^\top x + H_\alpha(p) = [(\alpha-1)x - \tau]_+^{1/(\alpha-1)}`.

:math:`H_\alpha(p) = \frac{1}{\alpha(\alpha-1)} \sum_i (p_i - p_i^\alpha)`, the Tsallis entropy (Peters, Niculae & Martins
2019). alpha -> 1 is softmax, alpha = 2 sparsemax; 1.5 has a closed form. With :math:`s = p^{2-\alpha}` on the support the
Jacobian is :math:`\mathrm{Diag}(s) - ss^\top/1^\top s`. A tensor ``alpha`` is learned; its gradient keeps full precision
as alpha -> 1.

Forward and backward: ``kernels/reference/threshold.py`` (``entmax_*``); fast ``kernels/native/src/simplex_mappings.h``,
``kernels/triton/simplex.py``.
"""

from __future__ import annotations

from torch import Tensor

from ..registry import Param, register
from ..rows.apply import rows

ALPHA = Param("alpha", low=1.0, meaning="1 is softmax (use softmax), 2 is sparsemax; larger is sparser")


@register(
    "entmax",
    params=(ALPHA,),
    paper="Peters, Niculae & Martins 2019; Correia et al. 2019 for the gradient in alpha",
    oracle="entmax package (entmax15, entmax_bisect)",
)
def entmax(scores: Tensor, dim: int = -1, alpha: float | Tensor = 1.5, mask: Tensor | None = None) -> Tensor:
    """Between softmax and sparsemax.

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 1, a number or a tensor over the rows (learned sparsity); tensors are not checked for their range.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: alpha <= 1 (entmax would be softmax there: call softmax).
    """
    alpha = ALPHA.check(alpha)
    if alpha.__class__ is float and alpha == 2.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": 1.0})
    return rows("entmax", scores, dim, mask, {"alpha": alpha})
