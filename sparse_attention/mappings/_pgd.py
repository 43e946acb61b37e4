"""sq-pnorm-max computed by projected gradient, as in the experiments of Niculae & Blondel 2017."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..kernels.reference.graph import refuse
from ..kernels.reference.rows import finish, prepare, project
from ..kernels.reference.threshold import pnormmax_backward
from ..rows.ragged import along

_MAX_STEPS = 5000


def pnormmax_pgd(scores: Tensor, dim: int, p: Any, gamma: Any, mask: Tensor | None, tol: float) -> Tensor:
    """Minimise ``-x.y + gamma/2 ||y||_p^2`` over the simplex by FISTA with backtracking, starting at the uniform point.

    A row stops when no coordinate moves by more than ``tol``, or after 5000 steps. (The paper gives the tolerance but
    not the stopping criterion.) The backward pass applies Prop. 1 at the last iterate.

    Raises:
        ValueError: p or gamma is a tensor (learned values need the exact solver).
    """
    refuse("pnormmax with solver='pgd'", "use solver='exact'")
    if isinstance(p, Tensor) or isinstance(gamma, Tensor):
        raise ValueError("solver='pgd' takes p and gamma as numbers; use solver='exact' to learn them")
    return along(lambda x: _Pgd.apply(x, p, gamma, tol), scores, dim, mask)


class _Pgd(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, gamma: float, tol: float) -> Tensor:
        rows = prepare(x.reshape(-1, x.shape[-1]), gamma)
        y = finish(_descend(rows.z, rows.keep, p, tol), rows).view(x.shape)
        ctx.save_for_backward(y)
        ctx.p, ctx.gamma = p, gamma
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        return pnormmax_backward(g, y, (), p=ctx.p, gamma=ctx.gamma), None, None, None


def _descend(z: Tensor, keep: Tensor, p: float, tol: float) -> Tensor:
    """Solve all rows ``z [R, n]`` (scores divided by gamma) together, each with its own step size and stopping test."""
    finite = z.masked_fill(~keep, 0.0)

    def norm(y: Tensor) -> Tensor:
        return y.clamp(min=0.0).pow(p).sum(-1, keepdim=True).pow(1.0 / p)

    def cost(y: Tensor) -> Tensor:
        return 0.5 * norm(y).square() - (finite * y).sum(-1, keepdim=True)

    def slope(y: Tensor) -> Tensor:
        size = norm(y)
        return y.clamp(min=0.0).pow(p - 1.0) * torch.where(size > 0, size, 1.0).pow(2.0 - p) - finite

    y = keep.to(z.dtype) / keep.sum(-1, keepdim=True).clamp(min=1)
    momentum, weight = y, torch.ones_like(y[:, :1])
    rate = torch.ones_like(weight)  # 1 / (estimate of the Lipschitz constant)
    running = torch.ones_like(weight, dtype=torch.bool)
    for _ in range(_MAX_STEPS):
        gradient, value = slope(momentum), cost(momentum)
        while True:
            new = project((momentum - rate * gradient).masked_fill(~keep, -torch.inf))
            new = torch.where(keep, new, 0.0)
            step = new - momentum
            model = value + (gradient * step).sum(-1, keepdim=True) + step.square().sum(-1, keepdim=True) / (2 * rate)
            too_long = running & (cost(new) > model + 1e-12 * value.abs()) & (rate > 1e-12)
            if not bool(too_long.any()):
                break
            rate = torch.where(too_long, rate / 2, rate)
        next_weight = (1.0 + (1.0 + 4.0 * weight.square()).sqrt()) / 2
        moved = (new - y).abs().amax(-1, keepdim=True)
        momentum = new + (weight - 1.0) / next_weight * (new - y)
        y = torch.where(running, new, y)
        weight = next_weight
        running = running & (moved > tol)
        if not bool(running.any()):
            break
    return y
