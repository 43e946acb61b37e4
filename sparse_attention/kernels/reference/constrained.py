"""Sparsemax with an upper bound on every position (Malaviya et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from .graph import in_order
from .rows import finish, prepare


def constrained_sparsemax_forward(x: Tensor, bounds: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmin_{p in simplex, p <= bounds} ||p - x||^2 = clip(x - tau, 0, bounds)``, rows ``[R, n]``.

    The sum of the clipped values decreases piecewise linearly in tau, with breakpoints ``x_i`` and ``x_i - u_i``. We
    sort the breakpoints, evaluate the sum at each of them by running sums, and interpolate. The cost is O(n log n). A
    row whose bounds sum to less than 1 has no solution; it gives its bounds, which are the nearest point of the box.

    Saved: the state of each position, ``[R, n]`` int8: +1 at its bound, 0 free, -1 at zero.
    """
    rows = prepare(x)
    u = bounds.to(rows.z.dtype).clamp(min=0.0).masked_fill(~rows.keep, 0.0)
    # A bound above 1 has the same effect as a bound of 1.
    u = u.clamp(max=1.0)
    z = rows.z.clamp(min=-1e300)
    points = torch.cat((z, z - u), -1)
    # As tau decreases, the slope grows by 1 when a position starts to rise and drops by 1 when it reaches its bound.
    change = torch.cat((torch.ones_like(z), -torch.ones_like(z)), -1).masked_fill(
        ~torch.cat((rows.keep, rows.keep), -1), 0.0
    )
    points, order = in_order(points)
    slope = change.gather(-1, order).cumsum(-1)  # slope of the sum, just left of each point
    gap = points[..., :-1] - points[..., 1:]
    reached = torch.cat((torch.zeros_like(points[..., :1]), (slope[..., :-1] * gap).cumsum(-1)), -1)
    # Start at the last point where the sum is still at most 1, and go linearly to 1.
    last = ((reached <= 1.0).sum(-1, keepdim=True) - 1).clamp(min=0)
    at, rise, value = points.gather(-1, last), slope.gather(-1, last), reached.gather(-1, last)
    tau = torch.where(rise > 0, at - (1.0 - value) / rise.clamp(min=1.0), at)
    p = torch.minimum((z - tau).clamp(min=0.0), u)
    capped = (z - tau >= u) & (bounds <= 1.0) & rows.keep  # a bound above 1 has no effect
    free = (z > tau) & ~capped
    state = capped.to(torch.int8) - (~capped & ~free).to(torch.int8)
    state = state.masked_fill(rows.dead, -1)
    return finish(p, rows), (state,)


def constrained_sparsemax_backward(
    g: Tensor, p: Tensor, saved: tuple[Tensor, ...], bounds: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x (``g - m`` on free positions) and of the bounds (``g - m`` on capped positions).

    m is the mean of g over the free positions.
    """
    state = saved[0]
    free = (state == 0).to(g.dtype)
    size = free.sum(-1, keepdim=True)
    mean = (free * g).sum(-1, keepdim=True) / size.clamp(min=1.0)
    # A NaN row also gets NaN gradients.
    spoilt = torch.where(torch.isnan(p), p, 0.0)
    return free * (g - mean) + spoilt, (state == 1).to(g.dtype) * (g - mean) + spoilt
