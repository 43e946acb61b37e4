"""Laha et al. 2018, before sec. 3.1: "lambda -> 1 uniform, lambda -> -infinity hardmax" is reversed (not so in 3.2)."""

import torch

import sparse_attention as sa

z = torch.tensor([0.8, 0.3, -0.1, 0.5, 0.0], dtype=torch.float64)
for lam in (0.75, 0.0, -1.0, -10000.0):
    print(f"lambda = {lam:g}: {[round(v, 4) for v in sa.sparsegen_lin(z, lam=lam).tolist()]}")
assert torch.equal(sa.sparsegen_lin(z, lam=0.75), sa.hardmax(z))
assert torch.allclose(sa.sparsegen_lin(z, lam=-10000.0), torch.full_like(z, 0.2), atol=1e-4)
