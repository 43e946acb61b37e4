r"""Group-wise sparsemax: the projection of each group of positions onto its own simplex,
:math:`\arg\min_{p_g \ge 0,\ \mathbf 1^\top p_g = s} \|p_g - x_g\|^2 = s\,\mathrm{sparsemax}(x_g / s)`.

Every group sums to the share s, so a row sums to s times the number of its groups. The Jacobian is that of sparsemax in
each group and 0 between groups. Cost as sparsemax's. A NaN affects only its own group in its row.

Forward and backward: in this file; sparsemax uses its kernels.
"""

from __future__ import annotations

from torch import Tensor

from ..registry import Param, register
from ..rows.ragged import along, over_rows, over_segments
from ..rows.shape import jagged, tensor
from .sparsemax import sparsemax

GROUPS = Param(
    "groups",
    low=1,
    closed_low=True,
    whole=True,
    meaning="size of a group, or the group of each position, int64 [n]; fixed or given per call",
)
SHARE = Param("share", low=0.0, tensor=False, meaning="sum of a group")


@register(
    "group_sparsemax",
    kind="unnormalised",
    inputs=("groups",),
    params=(GROUPS, SHARE),
    paper="Martins & Astudillo 2016, for each group",
    oracle="quadratic programme (DAQP) for each group",
)
def group_sparsemax(
    scores: Tensor, groups: int | Tensor, dim: int = -1, share: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Sparsemax within each group of positions along ``dim``; ``groups`` is what ``sa.sparsemax`` calls ``segments``.

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
    if jagged(scores):
        return over_rows(lambda x, mask: group_sparsemax(x, groups, share=share, mask=mask), scores, dim, mask, {})
    tensor(scores)
    if isinstance(groups, Tensor):
        return over_segments(lambda x: share * sparsemax(x, gamma=share), scores, dim, mask, groups, "groups")
    n = scores.shape[dim] if scores.ndim else 1
    if groups < 1 or n % groups:
        raise ValueError(f"groups={groups} does not divide {n} positions; give a divisor, or a tensor of groups [{n}]")
    return along(lambda x: share * sparsemax(x.unflatten(-1, (-1, groups)), gamma=share).flatten(-2), scores, dim, mask)
