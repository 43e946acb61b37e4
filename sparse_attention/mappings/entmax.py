r"""Entmax: :math:`p = \arg\max_{p \in \Delta} p^\top x + H_\alpha(p) = [(\alpha-1)x - \tau]_+^{1/(\alpha-1)}`.

:math:`H_\alpha(p) = \frac{1}{\alpha(\alpha-1)} \sum_i (p_i - p_i^\alpha)`, the Tsallis entropy (Peters, Niculae & Martins
2019). alpha -> 1 is softmax, alpha = 2 sparsemax; 1.5 has a closed form. With :math:`s = p^{2-\alpha}` on the support the
Jacobian is :math:`\mathrm{Diag}(s) - ss^\top/1^\top s`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, per_row, rows, rows_with_theta

ALPHA = Param(
    "alpha",
    1.5,
    low=1.0,
    meaning="1 is softmax (use softmax), 2 is sparsemax; larger is sparser",
    grid=(1.25, 1.5, 1.75),
)


@register(
    "entmax",
    params=(ALPHA,),
    paper="Peters, Niculae & Martins 2019; Correia et al. 2019 for the gradient in alpha",
    oracle="entmax package (entmax15, entmax_bisect)",
    summary="between softmax and sparsemax",
    complete=True,
)
def entmax(scores: Tensor, dim: int = -1, alpha: float | Tensor = 1.5, mask: Tensor | None = None) -> Tensor:
    """alpha-entmax along ``dim``.

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 1, a number or a tensor over the rows (learned sparsity); tensors are not checked for their range.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: alpha <= 1 (entmax would be softmax there: call softmax).
    """
    if isinstance(alpha, Tensor):
        x, restore = last(scores, dim, mask)
        if not x.numel():
            return restore(x.clone())
        return restore(rows_with_theta("entmax", x, "alpha", per_row(alpha, scores, dim, "alpha"), {}))
    alpha = ALPHA.check(alpha)
    if alpha == 2.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": 1.0})
    return rows("entmax", scores, dim, mask, {"alpha": alpha})


class Entmax(Mapping):
    """Module twin of :func:`entmax`; ``alpha`` may be an ``nn.Parameter``."""

    mapping_name = "entmax"

    def __init__(self, alpha: Any = 1.5):
        super().__init__(alpha=alpha)


set_module("entmax", Entmax)
