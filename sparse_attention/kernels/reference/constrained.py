"""Sparsemax with an upper bound on every position (Malaviya et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import finish, prepare


def constrained_sparsemax_forward(x: Tensor, bounds: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``argmin_{p in simplex, p <= bounds} ||p - x||^2 = clip(x - tau, 0, bounds)``, rows ``[R, n]``.

    The sum of the clipped values falls piecewise linearly in tau with breakpoints ``x_i`` and ``x_i - u_i``: sort them,
    evaluate the sum at each by running sums, and interpolate. O(n log n). A row whose bounds sum to less than 1 has no
    solution and gives its bounds, the nearest point of the box.

    Saved: +1 where the position is at its bound, 0 where free, -1 where zero, ``[R, n]`` int8.
    """
    rows = prepare(x)
    u = bounds.to(rows.z.dtype).clamp(min=0.0).masked_fill(~rows.keep, 0.0)
    # A bound above 1 never binds beyond what bound 1 does.
    u = u.clamp(max=1.0)
    z = rows.z.clamp(min=-1e300)
    points = torch.cat((z, z - u), -1)
    # Going left in tau, the slope grows by 1 where a position starts to rise and falls by 1 where it meets its bound.
    change = torch.cat((torch.ones_like(z), -torch.ones_like(z)), -1).masked_fill(
        ~torch.cat((rows.keep, rows.keep), -1), 0.0
    )
    points, order = points.sort(dim=-1, descending=True, stable=True)
    slope = change.gather(-1, order).cumsum(-1)  # of the sum, just left of each point
    gap = points[..., :-1] - points[..., 1:]
    reached = torch.cat((torch.zeros_like(points[..., :1]), (slope[..., :-1] * gap).cumsum(-1)), -1)
    # The last point at which the sum is still at most 1; from there, linearly to 1.
    last = ((reached <= 1.0).sum(-1, keepdim=True) - 1).clamp(min=0)
    at, rise, value = points.gather(-1, last), slope.gather(-1, last), reached.gather(-1, last)
    tau = torch.where(rise > 0, at - (1.0 - value) / rise.clamp(min=1.0), at)
    p = torch.minimum((z - tau).clamp(min=0.0), u)
    capped = (z - tau >= u) & (bounds <= 1.0) & rows.keep  # a bound above 1 decides nothing
    free = (z > tau) & ~capped
    state = capped.to(torch.int8) - (~capped & ~free).to(torch.int8)
    state = state.masked_fill(rows.dead, -1)
    return finish(p, rows), (state,)


def constrained_sparsemax_backward(
    g: Tensor, p: Tensor, saved: tuple[Tensor, ...], bounds: Tensor
) -> tuple[Tensor, Tensor]:
    """With m the mean of g over free positions: ``g - m`` on them for x, ``g - m`` on capped ones for the bounds."""
    state = saved[0]
    free = (state == 0).to(g.dtype)
    size = free.sum(-1, keepdim=True)
    mean = (free * g).sum(-1, keepdim=True) / size.clamp(min=1.0)
    # A bad row keeps NaN in its gradients too.
    spoilt = torch.where(torch.isnan(p), p, 0.0)
    return free * (g - mean) + spoilt, (state == 1).to(g.dtype) * (g - mean) + spoilt
