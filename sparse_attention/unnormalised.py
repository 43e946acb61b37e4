r"""Attention whose rows do not sum to 1, and which is therefore not in the registry: alpha-ReLU and group-wise sparsemax.

* ``alpha_relu``: :math:`p_i = \left((\alpha - 1) x_i - \tau\right)_+^{1/(\alpha - 1)}`, entmax with a constant threshold
  :math:`\tau` in place of the one that makes the sum 1 (Tezekbayev et al. 2022, "Speeding Up Entmax"). One pass, no sorting, no
  search; a row may be all zeros.
* ``group_sparsemax``: the projection of each group of positions on its own simplex,
  :math:`\arg\min_{p_g \ge 0,\ \mathbf 1^\top p_g = s_g} \|p_g - x_g\|^2 = s_g\,\mathrm{sparsemax}(x_g / s_g)`: rows sum to
  :math:`\sum_g s_g`.

Masks, -inf, NaN, precision and ``dim`` work as in the mappings. Forward and backward: here, by autograd; sparsemax natively.
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
    """``((alpha - 1) scores - tau)_+ ^ (1 / (alpha - 1))``: not normalised.

    Args:
        scores: any shape; -inf counts as masked.
        alpha: > 1.
        tau: the threshold, a number or a tensor over the rows; with entmax's own it is entmax.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape and dtype of scores; exactly 0 at or below the threshold, NaN in a row with NaN or +inf. Differentiable in
        scores and a tensor tau; the gradient at the threshold is 0, and unbounded just above it where alpha > 2.
    Raises:
        ValueError: alpha at or below 1.
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
        groups: the size of a group of consecutive positions (a divisor of n), or the group of each position, int64 ``[n]``,
            from 0, in any order.
        share: > 0, what each group sums to.
        mask: bool, broadcastable to scores, True = keep; a group without kept positions is 0.
    Returns:
        shape and dtype of scores; a NaN spoils only its own group of a row.
    Raises:
        ValueError: a size that does not divide, groups of another length or negative, share not positive.
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
    """The positions of each group, ``[groups, largest]`` int64; n where a group has no more."""
    members = [(groups == g).nonzero().flatten() for g in groups.unique()]
    return torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=len(groups))


__all__ = ["alpha_relu", "group_sparsemax"]
