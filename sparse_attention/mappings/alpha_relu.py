r"""Alpha-ReLU: :math:`p_i = \left((\alpha - 1) x_i - \tau\right)_+^{1/(\alpha - 1)}`, entmax with a constant threshold.

Entmax chooses :math:`\tau` so that the weights sum to 1; here it is given (Tezekbayev et al. 2022, "Speeding Up
Entmax"). It takes one pass, without sorting or searching, and a row may be all zeros. The derivative is :math:`p^{2 -
\alpha}` above the threshold and 0 at it; for alpha > 2 it is unbounded just above. Cost O(n).

Forward and backward: in this file, by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import under_contract

ALPHA = Param("alpha", low=1.0, tensor=False, meaning="as in entmax; 2 is relu(x - tau)")
TAU = Param("tau", meaning="the threshold; with that of entmax, the result is entmax")


@register(
    "alpha_relu",
    kind="unnormalised",
    params=(ALPHA, TAU),
    paper="Tezekbayev et al. 2022 (Speeding Up Entmax)",
    oracle="entmax at its own threshold; torch.relu; finite differences",
)
def alpha_relu(
    scores: Tensor, dim: int = -1, alpha: float = 1.5, tau: float | Tensor = 0.0, mask: Tensor | None = None
) -> Tensor:
    """Entmax with a constant threshold, ``((alpha - 1) scores - tau)_+ ^ (1 / (alpha - 1))``.

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 1.
        tau: the threshold, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; exactly 0 at or below the threshold. Differentiable in scores and in a tensor tau.
    Raises:
        ValueError: alpha is at or below 1.
    """
    alpha = ALPHA.check(alpha)

    def above(x: Tensor, keep: Tensor, tau: float | Tensor) -> Tensor:
        base = (alpha - 1.0) * x - tau
        inside = base.detach() > 0
        return torch.where(inside, torch.where(inside, base, 1.0) ** (1.0 / (alpha - 1.0)), 0.0)

    return under_contract(above, scores, dim, mask, over_rows={"tau": TAU.take(tau)})
