r"""Group-wise sparsemax: the projection of each group of positions onto its own simplex,
:math:`\arg\min_{p_g \ge 0,\ \mathbf 1^\top p_g = s} \|p_g - x_g\|^2 = s\,\mathrm{sparsemax}(x_g / s)`.

Every group sums to the share s, so a row sums to s times the number of its groups. The Jacobian is that of sparsemax in
each group and 0 between groups. Cost as sparsemax's. A NaN affects only its own group in its row.

Forward and backward: in this file; sparsemax uses its kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.ragged import along, over_rows
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
    if jagged(scores):
        return over_rows(lambda x, mask: group_sparsemax(x, groups, share=share, mask=mask), scores, dim, mask, {})
    tensor(scores)
    n = scores.shape[dim] if scores.ndim else 1
    if isinstance(groups, Tensor):
        if groups.shape != (n,) or groups.dtype != torch.int64 or bool((groups < 0).any()):
            raise ValueError(
                f"groups is {groups.dtype} of shape {tuple(groups.shape)}; it must be int64 of shape ({n},), the group of each position, counted from 0"
            )
    elif groups < 1 or n % groups:
        raise ValueError(f"groups={groups} does not divide {n} positions; give a divisor, or a tensor of groups [{n}]")

    def body(x: Tensor) -> Tensor:
        if not isinstance(groups, Tensor):
            return share * sparsemax(x.unflatten(-1, (-1, groups)), gamma=share).flatten(-2)
        padded, parts = torch.nn.functional.pad(x, (0, 1), value=-torch.inf), []
        for place in places:
            p = share * sparsemax(padded[..., place], gamma=share)  # [..., groups, largest]
            parts.append(p.flatten(-2)[..., place.flatten() < n])
        return torch.cat(parts, -1)[..., back]

    if isinstance(groups, Tensor):
        places = _places(groups)
        back = torch.cat([place[place < n] for place in places]).argsort() if places else groups
    return along(body, scores, dim, mask) if n else along(lambda x: x, scores, dim, mask)


def _places(groups: Tensor) -> list[Tensor]:
    """The positions of each group, ``[groups, largest]`` int64, padded with n, by sizes.

    Groups of more than 2^k and at most 2^(k + 1) positions are together, so the padding is less than half of a tensor.
    """
    order = groups.argsort(stable=True)
    sizes = groups.unique(return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    found = []
    kinds = (sizes - 1).clamp(min=0).to(torch.float64).log2().floor()
    for kind in kinds.unique():
        own = kinds == kind
        at = torch.arange(int(sizes[own].max()), device=groups.device)
        inside = at < sizes[own].unsqueeze(-1)
        place = order[(starts[own].unsqueeze(-1) + at).clamp(max=len(groups) - 1)]
        found.append(place.masked_fill(~inside, len(groups)))
    return found
