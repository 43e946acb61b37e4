"""The optimisation problems themselves, handed to solvers that know nothing of this package."""

import cvxpy as cp
import numpy as np
import qpsolvers


def solved(problem: cp.Problem, y: cp.Variable) -> np.ndarray:
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return y.value


def sparsemax(
    x: np.ndarray, gamma: float = 1.0, upper: np.ndarray | None = None, lower: np.ndarray | float = 0.0
) -> np.ndarray:
    """Quadratic programme by DAQP; exact to rounding."""
    n = len(x)
    upper = np.ones(n) if upper is None else upper
    one = {"A": np.ones((1, n)), "b": np.ones(1)}
    return qpsolvers.solve_qp(np.eye(n), -x / gamma, **one, lb=np.zeros(n) + lower, ub=upper, solver="daqp")


def fusedmax(x: np.ndarray, lam: float) -> np.ndarray:
    """The joint problem, without Proposition 2; the interior-point solver is good to about 1e-7."""
    y = cp.Variable(len(x))
    goal = 0.5 * cp.sum_squares(y - x) + (lam * cp.tv(y) if len(x) > 1 else 0)
    return solved(cp.Problem(cp.Minimize(goal), [y >= 0, cp.sum(y) == 1]), y)


def oscarmax(x: np.ndarray, lam: float, gamma: float = 1.0) -> np.ndarray:
    """Joint problem; sum_{i<j} max(p_i, p_j) = sum_k (sum of the k largest), k = 1..n-1."""
    n = len(x)
    y = cp.Variable(n)
    pairs = sum(cp.sum_largest(y, k) for k in range(1, n)) if n > 1 else 0
    goal = 0.5 * cp.sum_squares(y - x / gamma) + lam * pairs
    return solved(cp.Problem(cp.Minimize(goal), [y >= 0, cp.sum(y) == 1]), y)


def pnormmax(x: np.ndarray, p: float, gamma: float = 1.0) -> np.ndarray:
    y = cp.Variable(len(x))
    goal = x @ y - gamma / 2 * cp.square(cp.pnorm(y, p))
    return solved(cp.Problem(cp.Maximize(goal), [y >= 0, cp.sum(y) == 1]), y)


def constrained_softmax(x: np.ndarray, upper: np.ndarray, lower: np.ndarray | float = 0.0) -> np.ndarray:
    y = cp.Variable(len(x))
    goal = x @ y + cp.sum(cp.entr(y))
    return solved(cp.Problem(cp.Maximize(goal), [lower <= y, y <= upper, cp.sum(y) == 1]), y)
