r"""alpha-ReLU and group-wise sparsemax. Their rows do not sum to 1, so they are not in the registry.

* ``alpha_relu``: :math:`p_i = \left((\alpha - 1) x_i - \tau\right)_+^{1/(\alpha - 1)}`, which is entmax with a constant
  threshold :math:`\tau` instead of the threshold that makes the sum 1 (Tezekbayev et al. 2022, "Speeding Up Entmax").
  It takes one pass, without sorting or searching. A row may be all zeros.
* ``group_sparsemax``: the projection of each group of positions onto its own simplex,
  :math:`\arg\min_{p_g \ge 0,\ \mathbf 1^\top p_g = s_g} \|p_g - x_g\|^2 = s_g\,\mathrm{sparsemax}(x_g / s_g)`. Rows sum
  to :math:`\sum_g s_g`.

Masks, -inf, NaN, precision and ``dim`` work as in the mappings. Forward and backward: in this file, by autograd;
sparsemax uses its native kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .describe import Param
from .mappings.sparsemax import sparsemax
from .rows.shape import along

ALPHA = Param("alpha", low=1.0, tensor=False, meaning="as in entmax; 2 is relu(x - tau)")
SHARE = Param("share", low=0.0, tensor=False, meaning="sum of a group")


def alpha_relu(
    scores: Tensor, dim: int = -1, alpha: float = 1.5, tau: float | Tensor = 0.0, mask: Tensor | None = None
) -> Tensor:
    """alpha-ReLU, ``((alpha - 1) scores - tau)_+ ^ (1 / (alpha - 1))``; not normalised.

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 1.
        tau: the threshold, a number or a tensor over the rows; with the threshold of entmax, the result is entmax.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape and dtype of scores; exactly 0 at or below the threshold, NaN in a row with NaN or +inf. Differentiable in
        scores and in a tensor tau. The gradient is 0 at the threshold; for alpha > 2, it is unbounded just above it.
    Raises:
        ValueError: alpha is at or below 1.
    """
    ALPHA.check(alpha)

    def body(x: Tensor, tau: float | Tensor) -> Tensor:
        bad = ~(x.detach() < torch.inf).all(-1, keepdim=True)
        above = (alpha - 1.0) * x - tau
        inside = above.detach() > 0
        return torch.where(inside, torch.where(inside, above, 1.0) ** (1.0 / (alpha - 1.0)), 0.0).masked_fill(
            bad, torch.nan
        )

    return along(body, scores, dim, mask, tau=tau)


def group_sparsemax(
    scores: Tensor, groups: int | Tensor, dim: int = -1, share: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Sparsemax within each group of positions along ``dim``.

    Args:
        scores: any shape; -inf counts as masked.
        groups: either the size of each group of consecutive positions (a divisor of n), or a tensor with the group
            number of each position, int64 ``[n]``, from 0, in any order.
        share: > 0, the sum of each group.
        mask: bool, broadcastable to scores, True = keep; a group without kept positions is 0.
    Returns:
        shape and dtype of scores; a NaN affects only its own group in its row.
    Raises:
        ValueError: the group size does not divide n, the groups tensor has the wrong length or negative entries, or
            share is not positive.
    """
    SHARE.check(share)
    n = scores.shape[dim] if scores.ndim else 1
    if isinstance(groups, Tensor):
        if groups.shape != (n,) or groups.dtype != torch.int64 or bool((groups < 0).any()):
            raise ValueError(
                f"groups is {groups.dtype} of shape {tuple(groups.shape)}; it must be the group of each of {n} positions, int64, from 0"
            )
    elif groups < 1 or n % groups:
        raise ValueError(f"groups={groups} does not divide {n} positions; give a divisor, or a tensor of groups [{n}]")

    def body(x: Tensor) -> Tensor:
        if not isinstance(groups, Tensor):
            return share * sparsemax(x.unflatten(-1, (-1, groups)), gamma=share).flatten(-2)
        place = _places(groups)
        wide = torch.nn.functional.pad(x, (0, 1), value=-torch.inf)[..., place]  # [..., groups, largest]
        p = share * sparsemax(wide, gamma=share)
        used = place.flatten() < n
        return p.flatten(-2)[..., used][..., place.flatten()[used].argsort()]

    return along(body, scores, dim, mask)


def _places(groups: Tensor) -> Tensor:
    """The positions of each group, ``[groups, largest]`` int64, padded with n."""
    members = [(groups == g).nonzero().flatten() for g in groups.unique()]
    return torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=len(groups))


__all__ = ["alpha_relu", "group_sparsemax"]
