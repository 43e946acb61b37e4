"""Gauss quadrature from the eigenvalues of the Jacobi matrix (Golub & Welsch 1969), in torch to avoid a dependency."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...rows.shape import kept


@kept()
def jacobi_on(device: torch.device, count: int, power: int) -> tuple[Tensor, Tensor]:
    """`jacobi` on a device, copied there only once, because every copy forces a synchronisation."""
    nodes, weights = jacobi(count, power)
    return nodes.to(device), weights.to(device)


@kept()
def jacobi(count: int, power: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights, [count] each, on [-1, 1] for the weight function (1 - y^2)^power, in float64."""
    i = torch.arange(1, count, dtype=torch.float64)
    lam = power + 0.5
    off_diagonal = (i * (i + 2 * lam - 1) / (4 * (i + lam) * (i + lam - 1))).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    mass = math.sqrt(math.pi) * math.gamma(power + 1) / math.gamma(power + 1.5)
    return nodes, mass * vectors[0] ** 2
