r"""sq-pnorm-max: :math:`y = \arg\max_{y \in \Delta} y^\top x - \frac{\gamma}{2}\|y\|_p^2`, :math:`1 < p \le 2`.

Niculae & Blondel 2017, sec. 3.1. (The printed regulariser lacks the factor 1/2 that the printed gradient and Hessian
assume.) p = 2 gives sparsemax. ``solver="exact"`` solves for a single scalar root. ``solver="pgd"`` is the paper's
projected gradient method: at the published tolerance of 1e-2, the weights are off by .007 on average and by .03 at
worst (200 rows drawn from N(0, I_30)). ``pgd`` takes p and gamma as numbers only and does not compile as one graph.

Forward and backward: the reference is in ``kernels/reference/threshold.py`` (``pnormmax_*``), the fast kernels are in
``kernels/native/src/simplex_mappings.h`` and ``kernels/triton/simplex.py``; ``pgd`` is in ``mappings/_pgd.py``.
"""

from __future__ import annotations

from torch import Tensor

from ..registry import Param, register
from ..rows.apply import rows
from ._pgd import pnormmax_pgd

P = Param("p", low=1.0, high=2.0, closed_high=True, meaning="order of the norm; 2 is sparsemax")
GAMMA = Param("gamma", low=0.0, meaning="strength of the regulariser")
SOLVER = Param(
    "solver",
    choices=("exact", "pgd"),
    tensor=False,
    meaning="pgd: projected gradient, stopped at tol, as in the paper's experiments",
)
TOL = Param("tol", low=0.0, tensor=False, meaning="pgd only: stop when no coordinate moves by more than this")


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
        return pnormmax_pgd(scores, dim, p, gamma, mask, TOL.check(tol))
    if p.__class__ is float and p == 2.0:
        return rows("sparsemax", scores, dim, mask, {"gamma": gamma})
    return rows("pnormmax", scores, dim, mask, {"p": p, "gamma": gamma})
