"""What a user's file may look like; `mypy --strict` checks it, and it runs."""

import torch
from torch import Tensor, nn

import sparse_attention as sa


class Reader(nn.Module):
    """Self-attention, then attention that pools, then classes."""

    def __init__(self, width: int, classes: int, mapping: sa.Mapping) -> None:
        super().__init__()
        self.attend = sa.nn.MultiheadAttention(width, 2, batch_first=True, mapping="entmax", alpha="learned")
        self.score = nn.Linear(width, 1)
        self.pool = mapping
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        read, _ = self.attend(x, x, x, key_padding_mask=~keep, need_weights=False)
        weights: Tensor = self.pool(self.score(read).squeeze(-1), mask=keep)
        return self.out((weights.unsqueeze(1) @ read).squeeze(1)), weights


def mappings(scores: Tensor, keep: Tensor) -> list[Tensor]:
    bounds = torch.full_like(scores, 0.5)
    return [
        sa.softmax(scores, mask=keep),
        sa.entmax(scores, alpha=1.3, mask=keep),
        sa.fusedmax(scores, lam=torch.tensor(0.1), mask=keep),
        sa.top_k(scores, k=2),
        sa.constrained_sparsemax(scores, bounds=bounds),
        sa.Sparsemax(dim=1)(scores),
        sa.make("oscarmax", lam=0.1)(scores),
        sa.alpha_relu(scores, alpha=1.5, tau=torch.tensor(0.2), mask=keep),
        sa.group_sparsemax(scores, 1, share=0.5, mask=keep),
    ]


def losses(scores: Tensor, classes: Tensor) -> Tensor:
    total: Tensor = sa.losses.fenchel_young(scores, classes, "entmax", alpha=1.3)
    total = total + sa.losses.sparsemax_loss(scores, classes, reduction="mean")
    total += sa.losses.FenchelYoungLoss("fusedmax", lam=0.1)(scores, classes)
    return total + sa.max_omega(scores, "sparsemax").mean()


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, str]:
    out: Tensor = sa.sparse_attention(q, k, v, causal=True)
    with_weights, weights = sa.sparse_attention(q, k, v, "entmax", alpha=1.5, need_weights=True)
    plan: sa.attention.Plan = sa.attention.plan(q, k, v, "sparsemax")
    cache = sa.KeyCache("sparsemax")
    cache.append(k, v)
    return out + with_weights + cache.attend(q), weights, plan.reason


@sa.register("user_powermax", params=(sa.Param("power", low=0.0, meaning="larger is sparser"),))
def user_powermax(scores: Tensor, mask: Tensor, power: float = 2.0) -> Tensor:
    """Powers, normalised."""
    z = scores.abs().masked_fill(~mask, 0.0) ** power
    return z / z.sum(-1, keepdim=True)


def main() -> dict[str, float]:
    known: list[str] = sa.names("simplex")
    described: sa.Spec = sa.spec(known[0])
    x, keep = torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    logits, weights = Reader(8, 4, sa.make("sparsemax"))(x, keep)
    losses(logits, torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
    mappings(x[..., 0], keep)
    attention(*torch.randn(3, 1, 2, 5, 8).unbind(0))
    marginals: Tensor = sa.sparsemap_sequence(torch.randn(2, 4, 3), torch.randn(3, 3))
    with sa.kernels.use("reference"):
        sa.make("user_powermax", power=3.0)(marginals)
    try:
        sa.make(described.name + "x")
    except sa.UnknownMappingError as error:
        print(error)
    return sa.quality.attention_statistics(weights, keep)
