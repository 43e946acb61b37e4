"""The regularisers Omega of the mappings that are gradients of a smoothed maximum, and the values at a vertex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..rows.shape import asynchronous, foreign, transformed

Regulariser = Callable[..., Tensor]


def _entropy(p: Tensor, keep: Tensor, gamma: Any) -> Tensor:
    return gamma * torch.xlogy(p, p)


def _quadratic(p: Tensor, keep: Tensor, gamma: Any) -> Tensor:
    return gamma * 0.5 * p.square()


def _tsallis(p: Tensor, keep: Tensor, alpha: Any) -> Tensor:
    # (p^alpha - p) / (alpha (alpha - 1)), in a form that tends to p log p as alpha -> 1.
    inside = torch.where(p > 0, p, 1.0)
    log_p, a = inside.log(), torch.as_tensor(alpha - 1.0, dtype=p.dtype, device=p.device)
    y = a * log_p
    near = y.abs() < 1e-5
    quotient = torch.expm1(y) / torch.where(a == 0, 1.0, a)
    quotient = torch.where(near, log_p * (1.0 + y / 2 + y.square() / 6), quotient)
    return torch.where(p > 0, inside * quotient, 0.0) / alpha


def _p_norm(y: Tensor, keep: Tensor, p: Any, gamma: Any, **_: Any) -> Tensor:
    inside = torch.where(y > 0, y, 1.0)
    total = torch.where(y > 0, inside.pow(p), 0.0).sum(-1, keepdim=True)
    # The whole value goes to the first position of each row, so that the sum over positions is the regulariser.
    row = gamma * 0.5 * torch.where(total > 0, total, 1.0).pow(2.0 / p) * (total > 0)
    return torch.cat((row, torch.zeros_like(y[..., 1:])), -1)


def _fused(p: Tensor, keep: Tensor, lam: Any, gamma: Any) -> Tensor:
    if not (foreign(keep) or transformed() or asynchronous(keep)) and bool(keep.all()):
        jump = (p[..., 1:] - p[..., :-1]).abs()
        return gamma * (0.5 * p.square() + lam * torch.nn.functional.pad(jump, (0, 1)))
    order = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
    packed, kept = p.gather(-1, order), keep.gather(-1, order)
    jump = torch.where(kept[..., 1:], packed[..., 1:] - packed[..., :-1], 0.0).abs()
    return gamma * (0.5 * packed.square() + lam * torch.nn.functional.pad(jump, (0, 1)))


def _oscar(p: Tensor, keep: Tensor, lam: Any, gamma: Any, **_: Any) -> Tensor:
    ordered = p.sort(dim=-1, descending=True).values
    rank = torch.arange(1, p.shape[-1] + 1, device=p.device)
    weight = (keep.sum(-1, keepdim=True) - rank).clamp(min=0)
    return gamma * (0.5 * ordered.square() + lam * (weight * ordered))  # lam times integers would give float32


def _sparsegen(p: Tensor, keep: Tensor, lam: Any) -> Tensor:
    return (1.0 - lam) * 0.5 * p.square()


def _grid(p: Tensor, keep: Tensor, lam: Any, gamma: Any) -> Tensor:
    """Terms ``[..., H, W]`` for grids ``p, keep [..., H, W]``; their sum is Omega."""
    edges = torch.zeros_like(p)
    for dim in (-1, -2):
        n = p.shape[dim] - 1
        both = keep.narrow(dim, 1, n) & keep.narrow(dim, 0, n)
        jump = torch.where(both, p.narrow(dim, 1, n) - p.narrow(dim, 0, n), 0.0).abs()
        edges = edges + torch.cat((jump, torch.zeros_like(p.narrow(dim, 0, 1))), dim)
    return gamma * (0.5 * p.square() + lam * edges)


# Each function returns terms [..., n] whose sum over positions is Omega(p).
REGULARISERS: dict[str, Regulariser] = {
    "softmax": _entropy,
    "sparsemax": _quadratic,
    "entmax": _tsallis,
    "pnormmax": _p_norm,
    "fusedmax": _fused,
    "oscarmax": _oscar,
    "sparsegen_lin": _sparsegen,
    "hardmax": lambda p, keep: torch.zeros_like(p),
    "constrained_softmax": lambda p, keep, **_: _entropy(p, keep, 1.0),
    "constrained_sparsemax": lambda p, keep, **_: _quadratic(p, keep, 1.0),
}


# The same for grids [..., H, W].
GRIDS: dict[str, Regulariser] = {"tvmax": _grid}


def _linear(p: Tensor, x: Tensor, gamma: float) -> Tensor:
    """For sparsemax, using ``x - top = gamma (p - p_top)`` on the support."""
    return gamma * (0.5 * torch.linalg.vector_norm(p, dim=-1).square() - p.amax(-1) + 0.5)


def _power(p: Tensor, x: Tensor, alpha: float) -> Tensor:
    """For entmax, using ``(alpha - 1)(x - top) = p^(alpha-1) - p_top^(alpha-1)`` on the support, where x is at most
    ``1/(alpha - 1)`` below top. No entry has to be raised to the power alpha."""
    top = x.amax(-1, keepdim=True)
    fall = (x - torch.where(top == -torch.inf, 0.0, top)).clamp(min=-1.0 / (alpha - 1.0)).mul_(p).sum(-1)
    return fall * (1.0 - 1.0 / alpha) + (p.sum(-1) - p.amax(-1).pow(alpha - 1.0)) / (alpha * (alpha - 1.0))


def _norm(y: Tensor, x: Tensor, p: float, gamma: float) -> Tensor:
    """For pnormmax, using ``x - top = gamma N^(2-p) (y^(p-1) - y_top^(p-1))`` on the support, with ``N = ||y||_p``."""
    size = torch.linalg.vector_norm(y, p, dim=-1)
    return gamma * (0.5 * size.square() - size.pow(2.0 - p) * y.amax(-1).pow(p - 1.0) + 0.5)


# ``sum_i p_i (x_i - top) - Omega(p) + Omega(vertex)`` for attention p and scores x, in as few passes as possible, where
# top is the highest score. The loss of class y is this value plus ``top - x_y``. Rows [..., n] give values [...], and
# hyperparameters are numbers.
AT_VERTEX: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda p, x, gamma: -gamma * p.amax(-1).log(),
    "sparsemax": _linear,
    "pnormmax": _norm,
    "sparsegen_lin": lambda p, x, lam: _linear(p, x, 1.0 - lam),
    "entmax": _power,
}

# Here Omega is a sum of the same function of every p_i, so two values of that function give Omega of a smoothed class.
SEPARABLE = ("softmax", "sparsemax", "entmax", "sparsegen_lin")
