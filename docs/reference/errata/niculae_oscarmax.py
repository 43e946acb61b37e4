"""Niculae & Blondel 2017, Prop. 2: P_simplex(P_OSC(x)) is oscarmax only if the prox stays positive."""

import torch

import sparse_attention as sa


def cost(p: torch.Tensor, x: torch.Tensor, lam: float) -> float:
    pairs = torch.maximum(p[:, None], p[None, :]).triu(1).sum()
    return (0.5 * (p - x).square().sum() + lam * pairs).item()


x = torch.tensor([0.3, -0.25, 0.1], dtype=torch.float64)
printed, exact = sa.oscarmax(x, lam=0.05, mode="paper"), sa.oscarmax(x, lam=0.05)
print(f"printed rule {printed.tolist()} costs {cost(printed, x, 0.05):.6f}")
print(f"exact        {[round(v, 4) for v in exact.tolist()]} costs {cost(exact, x, 0.05):.6f}")
assert abs(cost(printed, x, 0.05) - 0.196250) < 1e-9 and abs(cost(exact, x, 0.05) - 0.1954167) < 1e-7

shifted = sa.oscarmax(x + 10, lam=0.05, mode="paper")
print("shifting all scores changes the printed rule but not the problem; at x + 10 the rule is correct")
assert torch.allclose(shifted, exact, atol=1e-12)

torch.manual_seed(0)
for scale, n in ((1.0, 10), (0.1, 30)):
    x = torch.randn(1000, n, dtype=torch.float64) * scale
    error = (sa.oscarmax(x, mode="paper") - sa.oscarmax(x)).abs().amax(-1)
    share = (error > 1e-9).double().mean().item()
    print(
        f"N(0, {scale:g}^2), n = {n}, lam = .01: {share:.0%} of rows differ, mean {error.mean():.4f}, worst {error.max():.3f}"
    )
    assert share > 0.4 and error.max() > 0.03
