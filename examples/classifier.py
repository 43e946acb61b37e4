"""A classifier of your own, with attention that you can read: words that do not matter get a weight of exactly 0.

    python examples/classifier.py        # seconds

The sentences are generated: one word of each decides its class. Softmax gives every word some weight, sparsemax few words.
"""

import torch
from torch import Tensor, nn

import sparse_attention as sa

FILLERS = "the a film plot cast music of and it is was very with scenes story about quite".split()
DECIDING = "wonderful moving brilliant dull tedious awful".split()  # three good ones, three bad ones
WORDS = ["<pad>", *FILLERS, *DECIDING]


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Word numbers ``[count, 9]``, 0 behind the last word, and classes ``[count]``: 1 is good."""
    ids = torch.randint(1, 1 + len(FILLERS), (count, 9))
    lengths, decides = torch.randint(4, 10, (count,)), torch.randint(len(DECIDING), (count,))
    ids[torch.arange(count), (torch.rand(count) * lengths).long()] = 1 + len(FILLERS) + decides
    return ids.masked_fill(torch.arange(9) >= lengths.unsqueeze(-1), 0), (decides < 3).long()


class Classifier(nn.Module):
    def __init__(self, mapping: str):
        super().__init__()
        self.embed, self.score = nn.Embedding(len(WORDS), 16), nn.Linear(16, 1)
        nn.init.normal_(self.embed.weight, std=0.1)  # at first, no word is left out
        self.attend = sa.make(mapping)  # instead of torch.softmax(..., -1)
        self.decide = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids)  # [B, n, 16]
        weights = self.attend(self.score(x).squeeze(-1), mask=ids != 0)  # [B, n], padding left out
        return self.decide((weights.unsqueeze(-1) * x).sum(1)), weights


def main(steps: int = 300) -> None:
    for mapping in ("softmax", "sparsemax"):
        torch.manual_seed(0)
        model = Classifier(mapping)
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(steps):
            ids, classes = sentences(64)
            loss = nn.functional.cross_entropy(model(ids)[0], classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        ids, classes = sentences(1000)
        with torch.no_grad():
            logits, weights = model(ids)
        right = 100 * (logits.argmax(-1) == classes).float().mean()
        seen, words = (weights > 0).sum(-1).float().mean(), (ids != 0).sum(-1).float().mean()
        print(f"{mapping}: {right:.1f} % right; weight on {seen:.1f} of {words:.1f} words, for example")
        print("  " + " ".join(f"{WORDS[i]}:{w:.2f}" if w else WORDS[i] for i, w in zip(ids[0], weights[0]) if i))


if __name__ == "__main__":
    main()
