"""Laha et al. 2018, Table 1: softmax is 1-Lipschitz. True, but the tight l2 constant is 1/2."""

import torch

torch.manual_seed(0)
z = torch.randn(2000, 6, dtype=torch.float64) * torch.tensor([0.1, 1, 5, 20], dtype=torch.float64).repeat(500)[:, None]
p = z.softmax(-1)
norm = torch.linalg.matrix_norm(torch.diag_embed(p) - p[:, :, None] * p[:, None, :], ord=2)
two = torch.tensor([0.5, 0.5], dtype=torch.float64)
reached = torch.linalg.matrix_norm(torch.diag(two) - torch.outer(two, two), ord=2)
print(f"largest Jacobian norm over 2000 points: {norm.max():.4f}; at two equal scores: {reached:.4f}")
assert norm.max() <= 0.5 + 1e-12 and abs(reached - 0.5) < 1e-12
