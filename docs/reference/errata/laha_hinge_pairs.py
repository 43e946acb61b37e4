"""Laha et al. 2018, Eq. 7 and 8: the sum over i, j in Y counts |z_i - z_j| twice; in the authors' code, once."""

import torch

import sparse_attention as sa

z = torch.tensor([1.0, 0.4, -2.0], dtype=torch.float64)
y = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
printed, half = sa.losses.sparsegen_hinge(z, y), sa.losses.sparsegen_hinge(z, y, half_pairs=True)
print(f"|z_1 - z_2| = 0.6; printed sum {printed.item():.4f}, each pair once {half.item():.4f}")
assert abs(printed - 1.2) < 1e-12 and abs(half - 0.6) < 1e-12
