r"""sq-pnorm-max: :math:`y = \arg\max_{y \in \Delta} y^\top x - \frac{\gamma}{2}\|y\|_p^2`, :math:`1 < p \le 2`.

Niculae & Blondel 2017, sec. 3.1 (the printed regulariser lacks the factor 1/2; gradient and Hessian have it). p = 2 is
sparsemax. Solved exactly by one scalar root, see ``kernels/reference/threshold.py``; the paper's projected gradient is
kept as ``solver="pgd"`` for replication.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, per_row, rows, rows_with_theta
from .softmax import scaled

P = Param("p", 1.5, low=1.0, high=2.0, closed_high=True, meaning="order of the norm; 2 is sparsemax", grid=(1.5,))
GAMMA = Param("gamma", 1.0, low=0.0, meaning="strength of the regulariser", grid=(1.0,))
SOLVER = Param(
    "solver",
    "exact",
    choices=("exact", "pgd"),
    tensor=False,
    meaning="pgd: projected gradient stopped at tol, as in the paper's experiments",
)
TOL = Param("tol", 1e-2, low=0.0, tensor=False, meaning="pgd only: stop when no coordinate moves by more than this")


@register(
    "pnormmax",
    params=(P, GAMMA, SOLVER, TOL),
    paper="Niculae & Blondel 2017, sec. 3.1 (sq-pnorm-max)",
    oracle="conic programme (cvxpy, Clarabel)",
    summary="squared p-norm regulariser",
    complete=True,
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
    """sq-pnorm-max along ``dim``.

    Args:
        scores: any shape; -inf counts as masked.
        p: 1 < p <= 2, a number or a tensor over the rows.
        gamma: > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
        solver: "exact" or "pgd" (accelerated projected gradient, stopped at ``tol``; its error at the published
            tolerance 1e-2 is about 7e-3 on average, 3e-2 at worst; the backward is that of Prop. 1 at the point reached).
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: p, gamma, solver or tol out of range.
    """
    if solver != "exact":
        from ._pgd import pnormmax_pgd

        SOLVER.check(solver)
        return pnormmax_pgd(scores, dim, p, gamma, mask, TOL.check(tol))
    if not isinstance(p, Tensor) and not isinstance(gamma, Tensor):
        p, gamma = P.check(p), GAMMA.check(gamma)
        if p == 2.0:
            return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
        return rows("pnormmax", scores, dim, mask, {"p": p, "gamma": gamma})
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    x = scaled(x, scores, dim, gamma)
    order = p if isinstance(p, Tensor) else torch.tensor(P.check(p), dtype=x.dtype, device=x.device)
    return restore(rows_with_theta("pnormmax", x, "p", per_row(order, scores, dim, "p"), {"gamma": 1.0}))


class Pnormmax(Mapping):
    """Module twin of :func:`pnormmax`."""

    mapping_name = "pnormmax"

    def __init__(self, p: Any = 1.5, gamma: Any = 1.0, solver: str = "exact", tol: float = 1e-2):
        super().__init__(p=p, gamma=gamma, solver=solver, tol=tol)


set_module("pnormmax", Pnormmax)
