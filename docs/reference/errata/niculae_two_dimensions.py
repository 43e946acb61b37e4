"""Niculae & Blondel 2017, caption of Fig. 2: oscarmax and fusedmax agree for d = 2 - if fusedmax has half the lambda.

On the simplex max(y1, y2) = (1 + |y1 - y2|)/2.
"""

import torch

import sparse_attention as sa

x = torch.tensor([0.3, 0.1], dtype=torch.float64)
same, half = sa.fusedmax(x, lam=0.1), sa.fusedmax(x, lam=0.05)
oscar = sa.oscarmax(x, lam=0.1)
print(f"oscarmax(.1) = {oscar.tolist()}, fusedmax(.1) = {same.tolist()}, fusedmax(.05) = {half.tolist()}")
assert torch.allclose(oscar, half, atol=1e-12) and not torch.allclose(oscar, same, atol=1e-3)
torch.manual_seed(0)
x = torch.randn(1000, 2, dtype=torch.float64)
assert torch.allclose(sa.oscarmax(x, lam=0.3), sa.fusedmax(x, lam=0.15), atol=1e-12)
