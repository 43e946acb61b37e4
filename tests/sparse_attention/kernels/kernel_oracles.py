"""What the kernels should return, one float64 row at a time, by means that share nothing with them.

Generic solvers wherever one exists: scipy's root finder and isotonic regression, DAQP for the TV prox.
"""

from collections.abc import Callable
from ctypes import c_int

import daqp
import numpy as np
import torch
from scipy.optimize import brentq, isotonic_regression
from torch import Tensor

import sparse_attention as sa
from sparse_attention.kernels.native import attention

Row = np.ndarray


def defaults(op: str) -> dict[str, float]:
    """The public defaults of an operation's hyperparameters: kernels have none of their own."""
    return {name: sa.spec(op).defaults[name] for name in sa.kernels.reference.OPS[op].params}


def _on_kept(x: Row, mapping: Callable[[Row], Row]) -> Row:
    """Excluded positions are taken out before, and get 0 after."""
    p = np.zeros_like(x)
    kept = x > -np.inf
    if kept.any():
        p[kept] = mapping(x[kept])
    return p


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    return brentq(f, low, high, xtol=1e-15, rtol=8.9e-16, maxiter=500)


def simplex_projection(z: Row) -> Row:
    ordered = np.sort(z)[::-1]
    taus = (np.cumsum(ordered) - 1) / np.arange(1, len(z) + 1)
    return np.maximum(z - taus[np.nonzero(ordered > taus)[0][-1]], 0)


def sparsemax(x: Row, gamma: float = 1.0) -> Row:
    return _on_kept(x, lambda k: simplex_projection((k - k.max()) / gamma))


def entmax(x: Row, alpha: float) -> Row:
    def solve(k: Row) -> Row:
        b = (alpha - 1) * (k - k.max())
        r = 1 / (alpha - 1)
        high = -0.999 * float(len(b)) ** (1 - alpha)  # beyond the root even when all are equal
        tau = _root(lambda t: np.sum(np.maximum(b - t, 0) ** r) - 1, -1, high) if len(b) > 1 else -1.0
        return np.maximum(b - tau, 0) ** r

    return _on_kept(x, solve)


def pnormmax(x: Row, p: float, gamma: float = 1.0) -> Row:
    def solve(k: Row) -> Row:
        b, q = (k - k.max()) / gamma, p / (p - 1)

        def gap(tau: float) -> float:
            v = np.maximum(b - tau, 0)
            return np.sum(v ** (q - 1)) / np.sum(v**q) ** ((q - 2) / q) - 1

        tau = -1.0 if gap(-1.0) <= 0 else _root(gap, -1, -1e-300 - 0.5 * len(b) ** (-2 / q))
        v = np.maximum(b - tau, 0) ** (q - 1)
        return v / v.sum()

    return _on_kept(x, solve)


def total_variation(z: Row, lam: float) -> Row:
    """TV prox through its dual: z - D'u with |u| <= lam."""
    if len(z) == 1 or lam == 0:
        return z.copy()
    d = np.diff(np.eye(len(z)), axis=0)
    bound = np.full(len(z) - 1, lam)
    nothing, free = np.zeros((0, len(bound))), np.zeros(len(bound), dtype=c_int)
    u, _, flag, _ = daqp.solve(d @ d.T, -d @ z, nothing, bound, -bound, free, primal_tol=1e-13, dual_tol=1e-13)
    if flag == -2:  # cycling among ties
        u, _, flag, _ = daqp.solve(d @ d.T, -d @ z, nothing, bound, -bound, free)
    assert flag > 0, f"DAQP stopped with {flag}"
    return z - d.T @ np.asarray(u)


def fusedmax(x: Row, lam: float, gamma: float = 1.0) -> Row:
    return _on_kept(x, lambda k: simplex_projection(total_variation((k - k.max()) / gamma, lam)))


def oscarmax(x: Row, lam: float, gamma: float = 1.0) -> Row:
    def solve(k: Row) -> Row:
        z = (k - k.max()) / gamma
        order = np.argsort(-z, kind="stable")
        shifted = z[order] - lam * (len(z) - np.arange(1, len(z) + 1))
        y = np.empty_like(z)
        y[order] = isotonic_regression(shifted, increasing=False).x
        return simplex_projection(y)

    return _on_kept(x, solve)


def constrained_sparsemax(x: Row, bounds: Row) -> Row:
    kept = x > -np.inf
    p = np.zeros_like(x)
    if kept.any():
        z, u = x[kept] - x[kept].max(), bounds[kept]

        def excess(tau: float) -> float:
            return np.clip(z - tau, 0, u).sum() - 1

        low = min(-1.0, float((z - u).min()))
        tau = low if excess(low) <= 0 else _root(excess, low, 0.0)
        p[kept] = np.clip(z - tau, 0, u)
    return p


def columns(saved: attention.Saved) -> Tensor:
    """The keys of all entries of a support, int32 [entries], increasing within a row."""
    entries, rows = int(saved.row_pointers[-1]), saved.row_pointers.numel() - 1
    found = torch.empty(entries + 16, dtype=torch.int32)  # the library writes full vectors
    at = saved.row_pointers.data_ptr(), saved.held.data_ptr()
    attention._load().attention_columns(*at, rows, saved.of.m, found.data_ptr())
    return found[:entries]


def dense_weights(saved: attention.Saved) -> Tensor:
    """P as a dense tensor [H, n, m]; ``forward`` has kept it with ``weights=True``."""
    s = saved.of
    p = saved.weights_.new_zeros(s.heads * s.n, s.m)
    rows = torch.repeat_interleave(torch.arange(p.shape[0]), saved.row_pointers.diff())
    p[rows, columns(saved).long()] = saved.weights_.abs()
    return p.view(s.heads, s.n, s.m)
