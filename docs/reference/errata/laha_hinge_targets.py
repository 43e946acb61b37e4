"""Laha et al. 2018, Eq. 7 and 8: for a non-uniform target the loss is not 0 where the mapping is correct."""

import torch

import sparse_attention as sa

eta = torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64)
z = torch.tensor([0.4, 0.0, -0.9], dtype=torch.float64)
printed = sa.losses.sparsegen_hinge(z, eta)
corrected = sa.losses.sparsegen_hinge(z, eta, corrected=True)
print(
    f"sparsemax(z) = {sa.sparsemax(z).tolist()} = eta, but Eq. 8 gives {printed.item():.4f}; "
    f"with |z_i - z_j - (eta_i - eta_j)|: {corrected.item():.4f}"
)
assert torch.allclose(sa.sparsemax(z), eta, atol=1e-12) and abs(printed - 0.8) < 1e-12 and abs(corrected) < 1e-12

# The corrected hourglass loss is not convex: at a midpoint it can exceed the mean of both ends.
torch.manual_seed(0)
a, b = torch.randn(2, 20000, 4, dtype=torch.float64) * 3
t = torch.softmax(torch.randn(20000, 4, dtype=torch.float64) * 2, -1)


def loss(z: torch.Tensor) -> torch.Tensor:
    return sa.losses.sparsehourglass_hinge(z, t, q=0.1, corrected=True, reduction="none")


worst = (loss((a + b) / 2) - (loss(a) + loss(b)) / 2).max().item()
print(f"corrected hourglass loss: the midpoint exceeds the mean of the ends by up to {worst:.2f}")
assert worst > 0.1
