r"""sq-pnorm-max: :math:`y = \arg\max_{y \in \Delta} y^\top x - \frac{\gamma}{2}\|y\|_p^2`, :math:`1 < p \le 2`.

Niculae & Blondel 2017, sec. 3.1. (The printed regulariser lacks the factor 1/2 that the printed gradient and Hessian
assume.) p = 2 gives sparsemax. ``solver="exact"`` solves for a single scalar root. ``solver="pgd"`` is the paper's
projected gradient method: at the published tolerance of 1e-2, the weights are off by .007 on average and by .03 at
worst (200 rows drawn from N(0, I_30)). ``pgd`` takes p and gamma as numbers only and does not compile as one graph.

Forward and backward: the reference is in ``kernels/reference/threshold.py`` (``pnormmax_*``), the fast kernels are in
``kernels/native/src/simplex_mappings.h`` and ``kernels/triton/simplex.py``; ``pgd`` is in this file.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from ..kernels.reference.graph import refuse
from ..kernels.reference.rows import finish, prepare, project
from ..kernels.reference.threshold import pnormmax_backward
from ..registry import Param, register
from ..rows.apply import rows
from ..rows.ragged import along

P = Param("p", low=1.0, high=2.0, closed_high=True, meaning="order of the norm; 2 is sparsemax")
GAMMA = Param("gamma", low=0.0, meaning="strength of the regulariser")
SOLVER = Param(
    "solver",
    choices=("exact", "pgd"),
    tensor=False,
    meaning="pgd: projected gradient, stopped at tol, as in the paper's experiments",
)
TOL = Param("tol", low=0.0, tensor=False, meaning="pgd only: stop when no coordinate moves by more than this")
_MAX_STEPS = 5000


@register(
    "pnormmax",
    params=(P, GAMMA, SOLVER, TOL),
    paper="Niculae & Blondel 2017, sec. 3.1 (sq-pnorm-max)",
    oracle="conic programme (cvxpy, Clarabel)",
)
def pnormmax(
    scores: Tensor,
    dim: int = -1,
    p: float | Tensor = 1.5,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    solver: str = "exact",
    tol: float = 1e-2,
) -> Tensor:
    """Sparse attention with a squared p-norm regulariser.

    Args:
        scores: any shape; -inf counts as masked.
        p: 1 < p <= 2, a number or a tensor over the rows.
        gamma: > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
        solver: "exact" or "pgd" (accelerated projected gradient, stopped at ``tol``; the backward pass applies Prop. 1
            at the last iterate).
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: p, gamma, solver or tol is out of range, or p or gamma is a tensor with ``solver="pgd"``.
    """
    p, gamma = P.take(p), GAMMA.take(gamma)
    if solver != "exact":
        SOLVER.check(solver)
        tol = TOL.check(tol)
        refuse("pnormmax with solver='pgd'", "use solver='exact'")
        if isinstance(p, Tensor) or isinstance(gamma, Tensor):
            raise ValueError("solver='pgd' takes p and gamma as numbers; use solver='exact' to learn them")
        return along(lambda x: _Pgd.apply(x, p, gamma, tol), scores, dim, mask)
    if p.__class__ is float and p == 2.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
    return rows("pnormmax", scores, dim, mask, {"p": p, "gamma": gamma})


class _Pgd(Function):
    """Minimise ``-x.y + gamma/2 ||y||_p^2`` over the simplex by FISTA with backtracking, starting at the uniform point.

    A row stops when no coordinate moves by more than ``tol``, or after 5000 steps. (The paper gives the tolerance but
    not the stopping criterion.) The backward pass applies Prop. 1 at the last iterate.
    """

    @staticmethod
    def forward(ctx, x: Tensor, p: float, gamma: float, tol: float) -> Tensor:
        ready = prepare(x.reshape(-1, x.shape[-1]), gamma)
        y = finish(_descend(ready.z, ready.keep, p, tol), ready).view(x.shape)
        ctx.save_for_backward(y)
        ctx.p, ctx.gamma = p, gamma
        return y

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
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
