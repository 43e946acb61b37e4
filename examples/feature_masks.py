"""Masks of features as in TabNet (Arik & Pfister 2021): every step of a model reads few columns, chosen by sparsemax for each row.

    python examples/feature_masks.py     # seconds

Of the 12 columns of the generated table, column 0 says which of the columns 1 and 2 decides the class. The others are noise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparse_attention as sa

COLUMNS, STEPS, GAMMA = 12, 2, 1.3  # below GAMMA = 1, no column could be used twice


def table(rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, COLUMNS)
    return x, (torch.where(x[:, 0] > 0, x[:, 1], x[:, 2]) > 0).long()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.ModuleList(
            nn.Sequential(nn.Linear(COLUMNS if not step else 32, COLUMNS), nn.BatchNorm1d(COLUMNS))
            for step in range(STEPS)
        )
        self.read = nn.ModuleList(
            nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()) for _ in range(STEPS)
        )
        self.decide = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        prior, state, total, masks = torch.ones_like(x), x, 0, []
        for choose, read in zip(self.choose, self.read):
            mask = sa.sparsemax(choose(state) * prior)  # [rows, COLUMNS], exact zeros
            prior = prior * (GAMMA - mask)
            state = read(mask * x)
            total = total + state
            masks.append(mask)
        return self.decide(total), masks


def main(steps: int = 800) -> None:
    torch.manual_seed(0)
    model = Masked()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        x, classes = table(256)
        logits, masks = model(x)
        wide = sum((-m * (m + 1e-9).log()).sum(-1).mean() for m in masks)  # entropy: few columns in a row
        loss = F.cross_entropy(logits, classes) + 0.01 * wide
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x, classes = table(2000)
    with torch.no_grad():
        logits, masks = model.eval()(x)
    print(
        f"{100 * (logits.argmax(-1) == classes).float().mean():.1f} % right; weight of each column, and columns read in a row:"
    )
    for step, mask in enumerate(masks):
        means = " ".join(f"{w:.2f}" for w in mask.mean(0))
        print(f"  step {step + 1}: {means}; {(mask > 0).sum(-1).float().mean():.1f}")


if __name__ == "__main__":
    main()
