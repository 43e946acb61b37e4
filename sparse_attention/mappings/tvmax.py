r"""TVmax: :math:`p = \arg\min_{p \in \Delta} \frac12\|p - x/\gamma\|^2 + \lambda \sum_{(i,j)} |p_i - p_j|` for
neighbours i, j on a grid.

The penalty encourages connected regions of an image to get the same weight (Martins et al. 2021). Two positions are
neighbours if they share a side; edges to masked positions are left out. Taking the prox of the penalty and then
sparsemax is exact, as on a line: the projection keeps the order of the values, so a subgradient of the penalty before
the projection is still one afterwards (Yu 2013).

The prox is solved in its dual (an edge flow bounded by [-lam, lam]) by accelerated projected gradient with restarts, in
float64. The duality gap is a certificate: the values are within ``sqrt(2 gap)`` of the exact ones. The flow also
determines the regions: two neighbours differ only if the edge between them carries its full capacity, lam, towards the
lower one; all other edges join their ends into one region. The solver stops when the values of each region agree with
their mean to within `SAME` times the range of the scores. The result is then recomputed from these means, so if the
regions are correct, the result and its derivatives of any order are exact. The Jacobian is :math:`J_\Delta G / \gamma`,
where G averages within the regions; at kinks it is one of the possible Jacobians. The solver takes a few hundred steps,
or more for large grids and where neighbours are nearly equal. tvmax does not support ``torch.func`` transforms, and
``torch.compile`` breaks the graph at the call.

Forward and backward: in this file; the projection is `sparsemax`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.reference.graph import refuse
from ..kernels.reference.structured import group_mean
from ..registry import Param, register
from ..rows.apply import rows
from ..rows.shape import in_float64, last, per_row, scaled

LAM = Param("lam", low=0.0, closed_low=True, meaning="weight of the total variation; 0 is sparsemax")
GAMMA = Param("gamma", low=0.0, meaning="strength of the whole regulariser")
TOLERANCE = 1e-15  # largest accepted duality gap, relative to n times the squared range of scores
SAME = 1e-11  # largest accepted distance of a value from the mean of its region, relative to the range of the scores
STEPS, CHECKED = 20_000, 20  # maximum number of steps, and number of steps between two checks of the gap
SMALL = 256  # edges of a grid (8 x 16) up to which a step is one product of matrices


@register(
    "tvmax",
    kind="structured",
    over="grid",
    params=(LAM, GAMMA),
    paper="Martins, Niculae, Marinho & Martins 2021, Sparse and structured visual attention",
    oracle="bounded least squares (scipy) for the prox, the joint problem (cvxpy), total variation on one row",
)
@in_float64
def tvmax(
    scores: Tensor,
    lam: float | Tensor = 0.1,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    return_gap: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Encourages equal weight on connected regions of a grid.

    Args:
        scores: ``[..., H, W]``; -inf counts as masked.
        lam: >= 0, a number or a tensor over the leading dimensions.
        gamma: > 0, a number or a tensor over the leading dimensions.
        mask: bool, broadcastable to scores, True = keep.
        return_gap: also return the duality gap of the prox ``[...]`` (float64).
    Returns:
        ``[..., H, W]``; every grid sums to 1. The result is 0 where masked, and NaN in a grid with NaN or +inf.
    Raises:
        ValueError: the scores have fewer than two dimensions, or lam or gamma is out of range.
    """
    refuse("tvmax")
    if scores.ndim < 2:
        raise ValueError(f"scores of shape {tuple(scores.shape)} are not a grid; tvmax needs (..., H, W)")
    lam, gamma = LAM.take(lam), GAMMA.take(gamma)
    x, restore = last(scores, -1, mask)
    height, width = x.shape[-2:]
    z = x.flatten(-2)  # [..., n]
    lam, gamma = per_row(lam, z, -1, "lam"), per_row(gamma, z, -1, "gamma")
    z = scaled(z, gamma)
    if z.numel():
        groups, pull, gap = _regions(z.detach(), lam.detach() if isinstance(lam, Tensor) else lam, (height, width))
        p = rows("sparsemax", group_mean(z + lam * pull.to(z.dtype), groups), -1, None, {"gamma": 1.0})
    else:
        p, gap = z.clone(), x.new_zeros(x.shape[:-2], dtype=torch.float64)
    weights = restore(p.view(x.shape))
    return (weights, gap) if return_gap else weights


@torch.no_grad()
def _regions(z: Tensor, lam: float | Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The regions of the grids ``z [..., n]`` (-inf where masked).

    Scores too low to get any attention are raised to a floor. This changes no weight, because a position leaves the
    support when its score is 1 + 8 lam below the highest.

    Returns:
        the region of every position ``[..., n]`` int64; the net pull of its higher and lower neighbours, per unit of
        lam ``[..., n]``; and the duality gap ``[...]``.
    """
    n = z.shape[-1]
    flat = z.double().reshape(-1, n)
    weight = torch.as_tensor(lam, dtype=torch.float64, device=z.device).expand(*z.shape[:-1], 1).reshape(-1, 1)
    weight = weight.nan_to_num()
    keep = flat != -torch.inf
    flat = torch.where(flat.isfinite(), flat, 0.0)
    top = flat.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    flat = torch.where(keep, torch.maximum(flat - top, -2 - 16 * weight), 0.0)
    y, kept = flat.view(-1, *grid), keep.view(-1, *grid)
    # True where a position and its right, or its lower, neighbour are both kept
    edges = torch.stack((kept & pad(kept[:, :, 1:], (0, 1)), kept & pad(kept[:, 1:], (0, 0, 0, 1))), 1)
    spread = -flat.amin(-1)  # the highest score is 0
    # No edge carries more flow than this, however large lam is.
    capacity = edges * torch.minimum(weight, flat.abs().sum(-1, keepdim=True)).view(-1, 1, 1, 1)
    free = edges & (weight > 0).view(-1, 1, 1, 1)  # without a penalty no edge joins, not even between equal scores
    regions, apart, gap = _solve(y, capacity, free, (TOLERANCE * n * spread.square()).clamp(min=1e-300), SAME * spread)
    pull = -_outflow(torch.where(edges, apart, 0.0))
    return regions.view(z.shape), pull.view(z.shape), gap.view(z.shape[:-1])


def _solve(z: Tensor, capacity: Tensor, free: Tensor, enough: Tensor, same: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Solve the prox at ``z [R, H, W]``.

    The solver stops when the gap is at most ``enough [R]`` and every value is within ``same [R]`` of the mean of its
    region. Only ``free`` edges can join positions.

    Returns:
        regions ``[R, H W]``; the direction of the edges between different regions ``[R, 2, H, W]``; and the gap
        ``[R]``.
    """
    shape = capacity.shape

    def descent(a: Tensor) -> Tensor:
        """A gradient step from the flow a [R, 2, H, W]. Its size is 1/8: the grid's Laplacian has no eigenvalue above 8."""
        return a + _slopes(z - _outflow(a)) / 8

    most = capacity.flatten(1)  # flows are [R, 2 H W] from here
    if small := most.shape[1] <= SMALL:  # then the linear step as a matrix costs less than its many small operations
        unit = torch.eye(most.shape[1], dtype=z.dtype, device=z.device).view(-1, *shape[1:])
        matrix, fixed = (unit - _slopes(_outflow(unit)) / 8).flatten(1), (_slopes(z) / 8).flatten(1)
    least, flow = -most, torch.zeros_like(most)
    ahead, t = flow, torch.ones(len(z), 1, dtype=z.dtype, device=z.device)
    for step in range(1, STEPS + 1):
        new = torch.addmm(fixed, ahead, matrix) if small else descent(ahead.view(shape)).flatten(1)
        new = torch.clamp(new, least, most)
        moved = new - flow
        t = torch.where(((ahead - new) * moved).sum(1, keepdim=True) > 0, 1.0, t)
        t, before = (1 + torch.sqrt(1 + 4 * t * t)) / 2, t
        flow, ahead = new, torch.addcmul(new, (before - 1) / t, moved)
        if step % CHECKED == 0:
            flows = flow.view(shape)
            y = z - _outflow(flows)
            slope = _slopes(y)
            gap = (capacity * slope.abs() - flows * slope).sum((1, 2, 3)).clamp(min=0.0)
            if bool((gap <= enough).all()) or step == STEPS:
                direction = slope.sign()
                joined = free & ((flows != capacity * direction) | (slope == 0))
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
    """Differences ``[R, 2, H, W]`` of ``y [R, H, W]`` to the right and to the lower neighbour; 0 at the border."""
    found = y.new_zeros(len(y), 2, *y.shape[1:])
    torch.sub(y[:, :, 1:], y[:, :, :-1], out=found[:, 0, :, :-1])
    torch.sub(y[:, 1:], y[:, :-1], out=found[:, 1, :-1])
    return found


def _outflow(flow: Tensor) -> Tensor:
    """The transpose of `_slopes`, from ``[R, 2, H, W]`` to ``[R, H, W]``."""
    total = -flow.sum(1)
    total[:, :, 1:] += flow[:, 0, :, :-1]
    total[:, 1:] += flow[:, 1, :-1]
    return total


def _components(joined: Tensor) -> Tensor:
    """Components of the graph with edges ``joined [R, 2, H, W]``: the smallest index in each component ``[R, H W]``."""
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
