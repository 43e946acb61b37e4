"""Niculae & Blondel 2017, sec. 3.1: the Hessian has y^(p-2), infinite where y is 0; correct on the support."""

import torch

import sparse_attention as sa

x = torch.tensor([1.0, 0.9, -3.0], dtype=torch.float64, requires_grad=True)
y, p = sa.pnormmax(x, p=1.5), 1.5
print("y =", y.tolist(), " y^(p-2) =", (y ** (p - 2)).tolist())
assert y[2] == 0 and torch.isinf(y[2] ** (p - 2))

# Restricted to the support S: J = H^-1 - H^-1 1 1' H^-1 / (1' H^-1 1) is the Jacobian.
s = y.detach()[:2]
norm = (s**p).sum() ** (1 / p)
u = ((2 - p) / norm ** (2 * p - 2)) ** 0.5 * s ** (p - 1)
H = torch.diag((p - 1) * s ** (p - 2) / norm ** (p - 2)) + torch.outer(u, u)
inverse = torch.linalg.inv(H)
one = torch.ones(2, dtype=torch.float64)
J = inverse - torch.outer(inverse @ one, one @ inverse) / (one @ inverse @ one)
step = 1e-6
difference = torch.stack(
    [(sa.pnormmax(x + step * e) - sa.pnormmax(x - step * e)) / (2 * step) for e in torch.eye(3, dtype=torch.float64)], 1
).detach()
print("largest difference from finite differences:", (difference[:2, :2] - J).abs().max().item())
assert torch.allclose(difference[:2, :2], J, atol=1e-8) and (difference[2] == 0).all()
