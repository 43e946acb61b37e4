"""All structures written down, and the problem over them handed to a solver that knows nothing of this package."""

import itertools

import numpy as np
import qpsolvers
import torch


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale


def differentiated(f, *xs: torch.Tensor) -> bool:
    """Whether the Jacobians of autograd are those of differences."""
    return torch.autograd.gradcheck(f, [x.clone().requires_grad_() for x in xs], atol=1e-6, rtol=0.0)


def sequences(T: int, S: int) -> tuple[np.ndarray, np.ndarray]:
    """Indicators ``[Y, T S]`` and how often each takes every transition ``[Y, S S]``."""
    m, steps = [], []
    for states in itertools.product(range(S), repeat=T):
        m.append(np.eye(S)[list(states)].ravel())
        taken = np.zeros((S, S))
        for pair in itertools.pairwise(states):
            taken[pair] += 1
        steps.append(taken.ravel())
    return np.array(m), np.array(steps)


def matchings(n: int, m: int) -> np.ndarray:
    """Indicators ``[Y, n m]``: the shorter side takes different partners."""
    found = []
    for partners in itertools.permutations(range(max(n, m)), min(n, m)):
        y = np.zeros((n, m))
        for a, b in enumerate(partners):
            y[(a, b) if n <= m else (b, a)] = 1
        found.append(y.ravel())
    return np.array(found)


def trees(n: int) -> np.ndarray:
    """Indicators ``[Y, n n]``, [word, head]: every word has a head or is a root (the diagonal), and comes from a root."""
    found = []
    for heads in itertools.product(range(n), repeat=n):
        up = list(range(n))
        for _ in range(n):
            up = [heads[u] for u in up]
        if all(heads[u] == u for u in up):
            y = np.zeros((n, n))
            y[range(n), list(heads)] = 1
            found.append(y.ravel())
    return np.array(found)


def held(structures: torch.Tensor, n: int) -> torch.Tensor:
    """Indicators ``[..., n]`` of choices, -1 for none."""
    return torch.nn.functional.one_hot(structures.clamp(min=0), n).double() * (structures >= 0).unsqueeze(-1)


def subsets(n: int, k: int) -> np.ndarray:
    return np.array([y for y in itertools.product((0.0, 1.0), repeat=n) if sum(y) <= k])


def sparsemap(M: np.ndarray, theta: np.ndarray, c: np.ndarray | float = 0.0) -> np.ndarray:
    """Marginals of the quadratic programme over distributions of the structures ``M [Y, D]`` with scores c ``[Y]``.

    It is not strictly convex where structures are affinely dependent: proximal steps, each by DAQP, end at a solution.
    """
    Y = len(M)
    b = M @ theta + c
    p = np.full(Y, 1 / Y)
    for _ in range(60):
        q = qpsolvers.solve_qp(
            M @ M.T + 1e-2 * np.eye(Y), -(b + 1e-2 * p), A=np.ones((1, Y)), b=np.ones(1), lb=np.zeros(Y), solver="daqp"
        )
        done = np.abs(q - p).max() < 1e-13
        p = q
        if done:
            break
    return M.T @ p
