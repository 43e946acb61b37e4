"""Niculae & Blondel 2017, sec. 3.1 prints 1/2 ||y||_p^2 = (sum y^p)^(2/p): a factor 1/2 is missing on the right."""

import torch

y = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
p = 1.5
left = 0.5 * torch.linalg.vector_norm(y, p) ** 2
right = (y**p).sum() ** (2 / p)
print(f"1/2 ||y||_p^2 = {left.item():.6f}, printed right-hand side = {right.item():.6f}")
assert abs(right - 2 * left) < 1e-12 and abs(left - 0.257150) < 1e-6

(gradient,) = torch.autograd.grad(left, y)
printed = y ** (p - 1) / torch.linalg.vector_norm(y, p) ** (p - 2)
print("the printed gradient y^(p-1)/||y||_p^(p-2) is that of the left-hand side:", printed.tolist())
assert torch.allclose(gradient, printed, atol=1e-12)
