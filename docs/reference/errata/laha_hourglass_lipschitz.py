"""Laha et al. 2018, sec. 3.5 and Table 1: the l2 Lipschitz constant of sparsehourglass exceeds 1 + 1/(Kq)."""

import torch

import sparse_attention as sa
from tasks.commands.properties import hourglass_lipschitz

for K, q in ((2, 0.1), (5, 0.4), (10, 1.0)):
    # Two close points: full support, almost one-hot, sum of scores just above 0.
    p = torch.full((K,), 1e-6, dtype=torch.float64)
    p[0] = 1 - (K - 1) * 1e-6
    z = (p - 1 / K) * K * q / (1 + K * q) + 1e-7
    jacobian = torch.autograd.functional.jacobian(lambda v, q=q: sa.sparsehourglass(v, q=q), z)
    direction = torch.linalg.svd(jacobian).Vh[0] * 1e-9
    if direction.sum() < 0:  # stay on one side of the kink at sum 0
        direction = -direction
    moved = (sa.sparsehourglass(z + direction, q=q) - sa.sparsehourglass(z, q=q)).norm() / direction.norm()
    claim, true = 1 + 1 / (K * q), hourglass_lipschitz(K, q)
    print(
        f"K = {K}, q = {q}: two points moved apart by {moved:.4f}; printed bound {claim:.4f}; "
        f"sqrt((1+1/Kq)^2 + (K-1)/(Kq)^2) = {true:.4f}"
    )
    assert claim * 1.01 < moved < true * (1 + 1e-4) and moved > 0.999 * true
