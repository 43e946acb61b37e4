"""Fusedmax and oscarmax: a prox that ties positions together, followed by the projection onto the simplex.

Both process many rows at once: each step of the algorithm is carried out for all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import graph
from .rows import Value, centred, finish, prepare, project


def fusedmax_forward(x: Tensor, lam: Value, gamma: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmin_{p in simplex} 1/2 ||p - x/gamma||^2 + lam sum_i |p_{i+1} - p_i|`` (Niculae & Blondel 2017, Prop. 2).

    Excluded positions are removed first, so that the kept positions on both sides of a gap become neighbours. Saved:
    the group of every position, ``[R, n]`` int64.
    """
    rows = prepare(x, gamma)
    # Move kept positions to the front, in their order; `place` is where each one came from.
    place = graph.in_order(rows.keep.to(torch.int32))[1]
    packed = rows.z.gather(-1, place)
    kept = rows.keep.gather(-1, place)
    # A position gets no weight if its score is 1 + 4 lam below the highest, since its neighbours pull it up by at most
    # 2 lam and the highest down by at most 2 lam. Raising such scores keeps the sums in `graph.tv_prox` exact.
    packed = packed.masked_fill(~kept, 0.0).clamp(min=-1.0 - 4.0 * lam)
    # Edges between kept and excluded positions get weight 0, which separates the two.
    weight = kept[..., 1:].to(packed.dtype) * lam
    smooth = tv_prox(packed, weight)
    starts = torch.ones_like(kept)
    starts[..., 1:] = (smooth[..., 1:] != smooth[..., :-1]) | ~kept[..., 1:]
    groups = torch.zeros_like(place).scatter(-1, place, starts.cumsum(-1) - 1)
    smooth = torch.empty_like(smooth).scatter(-1, place, smooth).masked_fill(~rows.keep, -torch.inf)
    return finish(project(smooth), rows), (groups,)


def tv_prox(y: Tensor, weight: Tensor) -> Tensor:
    """``argmin_b 1/2 ||b - y||^2 + sum_k weight_k |b_{k+1} - b_k|`` for rows ``y [R, n]``, ``weight [R, n-1]`` >= 0.

    Solved by dynamic programming (Johnson 2013). Take the best cost of the first k values as a function of b_k: its
    derivative is piecewise linear and increasing. Each edge clips this derivative to [-weight, weight], and each value
    adds ``b - y``. On the way back, b_k is b_{k+1} clipped to the interval between the clipping points. The cost
    is amortised O(n) per row. Positions of one group have bitwise equal results.
    """
    if graph.exporting():
        return graph.tv_prox(y, weight)
    R, n = y.shape
    low, high = torch.empty_like(y), torch.empty_like(y)
    # The breakpoints of the derivative, one double-ended queue per row: position, change of slope, change of intercept.
    knots = y.new_zeros(3, R, 2 * n + 2)
    head = torch.full((R,), n, device=y.device)
    tail = head - 1  # the queue is empty if tail < head
    row = torch.arange(R, device=y.device)
    zero = y.new_zeros(R)

    def crossing(
        level: Tensor, slope: Tensor, cut: Tensor, end: Tensor, side: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From one end, drop all knots before the derivative ``slope b + cut`` reaches ``level``; return that point."""
        point = (level - cut) / slope
        while True:
            at, da, dc = knots[:, row, end.clamp(0, 2 * n + 1)]
            passed = (head <= end) & (end <= tail) & ((point - at) * side > 0)
            if not bool(passed.any()):
                return point, slope, cut, end
            slope = torch.where(passed, slope + side * da, slope)
            cut = torch.where(passed, cut + side * dc, cut)
            end = torch.where(passed, end + side, end)
            point = torch.where(passed, (level - cut) / slope, point)

    before = zero  # the level at which the previous edge clipped
    for k in range(n):
        after = weight[:, k] if k < n - 1 else zero
        left, slope_l, cut_l, head = crossing(-after, torch.ones_like(zero), -before - y[:, k], head, 1)
        if k == n - 1:
            low[:, k] = high[:, k] = left
            break
        right, slope_r, cut_r, tail = crossing(after, torch.ones_like(zero), before - y[:, k], tail, -1)
        low[:, k], high[:, k] = left, right
        head, tail = head - 1, tail + 1
        knots[:, row, head] = torch.stack((left, slope_l, cut_l + after))
        knots[:, row, tail] = torch.stack((right, -slope_r, after - cut_r))
        before = after
    b = torch.empty_like(y)
    b[:, n - 1] = low[:, n - 1]
    for k in range(n - 2, -1, -1):
        b[:, k] = torch.minimum(torch.maximum(b[:, k + 1], low[:, k]), high[:, k])
    return b


def oscarmax_forward(x: Tensor, lam: Value, gamma: Value) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmin_{p in simplex} 1/2 ||p - x/gamma||^2 + lam sum_{i<j} max(p_i, p_j)``.

    On the simplex p >= 0, so with the scores sorted in decreasing order the penalty is ``sum_i lam (d - i) p_(i)``.
    Subtract its coefficients from the scores, pool the positions that are then out of order (pool adjacent violators,
    PAV), and project. This is valid for scores of any sign, unlike the composition with the prox over R^d that is
    printed in the paper. Saved: the group of every position, ``[R, n]`` int64.
    """
    rows = prepare(x, gamma)
    ordered, place = graph.in_order(rows.z)
    count = rows.keep.sum(-1, keepdim=True)
    # an integer tensor times lam would be float32
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=ordered.dtype)
    kept = rank <= count
    # The penalty pulls a position down by at most lam (count - 1): raising lower scores to this level changes no weight.
    floor = -1.0 - lam * (count.to(ordered.dtype) - 1.0)
    lowered = torch.maximum(ordered, floor) - lam * (count - rank)
    # Excluded positions come last and below all others, so that PAV never pools them with kept positions.
    floor = torch.where(kept, lowered, torch.inf).amin(-1, keepdim=True)
    floor = torch.where(torch.isfinite(floor), floor, 0.0) - 1.0
    lowered = torch.where(kept, lowered, floor - rank)
    pooled, sorted_groups = isotonic_decreasing(lowered)
    groups = torch.zeros_like(place).scatter(-1, place, sorted_groups)
    pooled = torch.empty_like(pooled).scatter(-1, place, pooled).masked_fill(~rows.keep, -torch.inf)
    return finish(project(pooled), rows), (groups,)


def isotonic_decreasing(y: Tensor) -> tuple[Tensor, Tensor]:
    """Non-increasing least-squares fit to rows ``y [R, n]``, and the block of every position.

    Pool adjacent violators, with all rows and all violations at once: two adjacent blocks in the wrong order always end
    up in the same block, so they may be merged in any order. This is repeated until no violation is left.
    """
    if graph.exporting():
        fit = graph.isotonic(y)
        return fit, torch.cat((torch.zeros_like(fit[..., :1]), fit.diff(dim=-1)), -1).ne(0).cumsum(-1)
    n = y.shape[-1]
    blocks = torch.arange(n, device=y.device).expand_as(y).contiguous()
    fit = y
    while True:
        wrong = fit[..., 1:] > fit[..., :-1]
        if not bool(wrong.any()):
            return fit, blocks
        starts = torch.ones_like(y, dtype=torch.bool)
        starts[..., 1:] = (blocks[..., 1:] != blocks[..., :-1]) & ~wrong
        blocks = starts.cumsum(-1) - 1
        fit = group_mean(y, blocks)


def group_mean(values: Tensor, groups: Tensor) -> Tensor:
    """Mean of ``values [..., n]`` over the positions with the same number in ``groups [..., n]`` (0 <= number < n)."""
    total = torch.zeros_like(values).scatter_add(-1, groups, values)
    size = torch.zeros_like(values).scatter_add(-1, groups, torch.ones_like(values))
    return (total / size.clamp(min=1.0)).gather(-1, groups)


def grouped_backward(g: Tensor, p: Tensor, saved: tuple[Tensor, ...], lam: Value, gamma: Value) -> Tensor:
    """``J_prox J_simplex g / gamma``: centre g on the support, then average it over each group.

    The product of the Jacobians is symmetric, since the support is a union of groups.
    """
    return group_mean(centred(g, (p > 0).to(g.dtype)), saved[0]) / gamma
