"""Gauss quadrature from the eigenvalues of the Jacobi matrix (Golub & Welsch 1969), in torch to avoid a dependency."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...rows.shape import kept


@kept()
def jacobi(count: int, power: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Nodes and weights, [count] each, on [-1, 1] for the weight function (1 - y^2)^power, in float64.

    They are copied to a device only once, because every copy forces a synchronisation.
    """
    i = torch.arange(1, count, dtype=torch.float64)
    lam = power + 0.5
    off_diagonal = (i * (i + 2 * lam - 1) / (4 * (i + lam) * (i + lam - 1))).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    mass = math.sqrt(math.pi) * math.gamma(power + 1) / math.gamma(power + 1.5)
    return nodes.to(device), (mass * vectors[0] ** 2).to(device)
