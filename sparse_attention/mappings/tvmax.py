r"""TVmax: :math:`p = \arg\min_{p \in \Delta} \frac12\|p - x/\gamma\|^2 + \lambda \sum_{(i,j)} |p_i - p_j|` over the neighbours of a grid.

Martins et al. 2021: connected regions of an image get the same weight. Neighbours share a side; edges to masked positions are
left out. The prox of the penalty followed by sparsemax is exact, as on a line: the projection keeps the order of the values, so
a subgradient of the penalty before the projection is one after it (Yu 2013).

The prox is solved in its dual, a flow on the edges between -lam and lam, by accelerated projected gradients with restarts in
float64. The duality gap is a certificate: the values are within ``sqrt(2 gap)`` of the exact ones. The flow also gives the regions:
two neighbours differ only if their edge carries its capacity, lam, towards the lower one; all other edges join. The solver stops
when the values of each region agree with their mean to `SAME` times the range of the scores. The value is then recomputed as
these means, so it and its derivatives of any order are exact if the regions are: with G averaging inside them the Jacobian is
:math:`J_\Delta G / \gamma`, at kinks one of the possible ones. It takes some hundred steps, more for large grids and where
neighbours nearly agree. Not for ``torch.func`` transforms; ``torch.compile`` breaks the graph at the
call.

Forward and backward: here; the projection by `sparsemax`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..kernels.reference.structured import group_mean
from ..registry import Param, register
from ..rows.apply import rows
from ..rows.shape import last, per_row, scaled

LAM = Param("lam", low=0.0, closed_low=True, meaning="weight of the total variation; 0 is sparsemax")
GAMMA = Param("gamma", low=0.0, meaning="strength of the whole regulariser")
TOLERANCE = 1e-15  # largest duality gap, times the number of positions and the squared range of the scores
SAME = 1e-11  # largest distance of a position from the mean of its region, times the range
STEPS, CHECKED = 20_000, 20  # most steps, and how many between two checks of the gap


@register(
    "tvmax",
    kind="structured",
    over="grid",
    params=(LAM, GAMMA),
    paper="Martins, Niculae, Marinho & Martins 2021, Sparse and structured visual attention",
    oracle="bounded least squares (scipy) for the prox, the joint problem (cvxpy), total variation on one row",
)
def tvmax(
    scores: Tensor,
    lam: float | Tensor = 0.1,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    return_gap: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Equal weight on connected regions of a grid.

    Args:
        scores: ``[..., H, W]``; -inf counts as masked.
        lam: >= 0, a number or a tensor over the leading dimensions.
        gamma: > 0, a number or a tensor over the leading dimensions.
        mask: bool, broadcastable to scores, True = keep.
        return_gap: also return the duality gap of the prox ``[...]`` (float64).
    Returns:
        ``[..., H, W]``, every grid sums to 1; 0 where masked, NaN in a grid with NaN or +inf.
    Raises:
        ValueError: scores of less than two dimensions, lam or gamma out of range.
    """
    if scores.ndim < 2:
        raise ValueError(f"scores of shape {tuple(scores.shape)} are no grid; tvmax needs (..., H, W)")
    lam, gamma = LAM.take(lam), GAMMA.take(gamma)
    x, restore = last(scores, -1, mask)
    height, width = x.shape[-2:]
    z = x.flatten(-2)  # [..., n]
    lam, gamma = per_row(lam, z, -1, "lam"), per_row(gamma, z, -1, "gamma")
    z = scaled(z, gamma)
    if not z.numel():
        return (
            (restore(x.clone()), x.new_zeros(x.shape[:-2], dtype=torch.float64)) if return_gap else restore(x.clone())
        )
    groups, pull, gap = _regions(z.detach(), lam.detach() if isinstance(lam, Tensor) else lam, (height, width))
    p = rows("sparsemax", group_mean(z + lam * pull.to(z.dtype), groups), -1, None, {"gamma": 1.0})
    weights = restore(p.view(x.shape))
    return (weights, gap) if return_gap else weights


@torch.no_grad()
def _regions(z: Tensor, lam: float | Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """For ``z [..., n]``, -inf where masked: the region of every position ``[..., n]`` int64, how its higher and lower neighbours
    pull it per unit of lam ``[..., n]``, and the duality gap ``[...]``.

    Scores that can get no attention are raised to a floor, which changes no weight: a position leaves the support when its score
    is 1 + 8 lam below the highest.
    """
    n = z.shape[-1]
    flat = z.double().reshape(-1, n)
    weight = torch.as_tensor(lam, dtype=torch.float64, device=z.device).expand(*z.shape[:-1], 1).reshape(-1, 1)
    weight = weight.nan_to_num()
    keep = flat != -torch.inf
    flat = torch.where(flat.isfinite(), flat, 0.0)
    top = flat.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    flat = torch.where(keep, torch.maximum(flat - top, -2 - 16 * weight), 0.0)
    y, edges = flat.view(-1, *grid), _between(keep.view(-1, *grid))
    spread = -flat.amin(-1)  # the highest is 0
    # No edge carries more than this, however large lam is.
    capacity = edges * torch.minimum(weight, flat.abs().sum(-1, keepdim=True)).view(-1, 1, 1, 1)
    free = edges & (weight > 0).view(-1, 1, 1, 1)  # without a penalty nothing joins, not even equal scores
    regions, apart, gap = _solve(y, capacity, free, (TOLERANCE * n * spread.square()).clamp(min=1e-300), SAME * spread)
    pull = -_outflow(torch.where(edges, apart, 0.0))
    return regions.view(z.shape), pull.view(z.shape), gap.view(z.shape[:-1])


def _solve(z: Tensor, capacity: Tensor, free: Tensor, enough: Tensor, same: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The prox at ``z [R, H, W]``: regions ``[R, H W]``, the direction of the edges between them ``[R, 2, H, W]``, the gap ``[R]``.

    Stops when the gap is below ``enough [R]`` and every value is within ``same [R]`` of the mean of its region. Only ``free`` edges
    join.
    """
    flow = ahead = torch.zeros_like(capacity)
    t = torch.ones(len(z), 1, 1, 1, dtype=z.dtype, device=z.device)
    for step in range(1, STEPS + 1):
        # No eigenvalue of the grid's Laplacian is above 8.
        new = torch.clamp(ahead + _slopes(z - _outflow(ahead)) / 8, -capacity, capacity)
        moved = new - flow
        t = torch.where(((ahead - new) * moved).sum((1, 2, 3), keepdim=True) > 0, 1.0, t)
        t, before = (1 + torch.sqrt(1 + 4 * t * t)) / 2, t
        flow, ahead = new, new + (before - 1) / t * moved
        if step % CHECKED == 0:
            y = z - _outflow(flow)
            slope = _slopes(y)
            gap = (capacity * slope.abs() - flow * slope).sum((1, 2, 3)).clamp(min=0.0)
            if bool((gap <= enough).all()) or step == STEPS:
                direction = slope.sign()
                joined = free & ((flow != capacity * direction) | (slope == 0))
                regions = _components(joined)
                off = (y.flatten(1) - group_mean(y.flatten(1), regions)).abs().amax(-1)
                if bool((off <= same).all()):
                    break
    else:
        warnings.warn(
            f"tvmax stopped after {STEPS} steps at a duality gap of {gap.max():.1e}; weights may be off by {off.max():.1e}",
            RuntimeWarning,
            stacklevel=2,
        )
    return regions, torch.where(joined, 0.0, direction), gap


def _slopes(y: Tensor) -> Tensor:
    """``y [R, H, W]`` -> the differences to the right and the lower neighbour ``[R, 2, H, W]``; 0 at the border."""
    found = y.new_zeros(len(y), 2, *y.shape[1:])
    torch.sub(y[:, :, 1:], y[:, :, :-1], out=found[:, 0, :, :-1])
    torch.sub(y[:, 1:], y[:, :-1], out=found[:, 1, :-1])
    return found


def _outflow(flow: Tensor) -> Tensor:
    """The transpose of `_slopes`: ``[R, 2, H, W]`` -> ``[R, H, W]``."""
    total = -flow.sum(1)
    total[:, :, 1:] += flow[:, 0, :, :-1]
    total[:, 1:] += flow[:, 1, :-1]
    return total


def _between(keep: Tensor) -> Tensor:
    """``keep [R, H, W]`` -> whether a position and its right, lower neighbour are both kept ``[R, 2, H, W]``."""
    found = keep.new_zeros(len(keep), 2, *keep.shape[1:])
    found[:, 0, :, :-1] = keep[:, :, 1:] & keep[:, :, :-1]
    found[:, 1, :-1] = keep[:, 1:] & keep[:, :-1]
    return found


def _components(joined: Tensor) -> Tensor:
    """Connected positions, from the edges ``[R, 2, H, W]`` that join them: the least index in each one's component ``[R, H W]``."""
    shape = (len(joined), *joined.shape[2:])
    n = shape[1] * shape[2]
    label = torch.arange(n, device=joined.device).expand(shape[0], n).reshape(shape)
    right, down = joined[:, 0, :, :-1], joined[:, 1, :-1]
    while True:
        new = label.clone()
        for a, b, edge in ((new[:, :, :-1], new[:, :, 1:], right), (new[:, :-1], new[:, 1:], down)):
            least = torch.minimum(a, b)
            a.copy_(torch.where(edge, least, a))
            b.copy_(torch.where(edge, torch.minimum(least, b), b))
        new = new.flatten(1)
        new = new.gather(1, new).view(shape)
        if torch.equal(new, label):
            return label.flatten(1)
        label = new
