"""A sequence labeller with SparseMAP: it returns the one sequence of tags that fits, or the few between which it hesitates.

    python examples/tagger.py            # half a minute

`sparsemap_sequence` stands where a CRF's forward-backward would, and `sparsemap_sequence_loss` where its likelihood would.
"""

import torch
from torch import Tensor, nn

import sparse_attention as sa

TAGS = ["outside", "begin", "inside"]
LENGTH, VOCABULARY = 10, 30


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Words and tags ``[count, LENGTH]``. Words 0 to 4 begin a name, 5 to 14 continue one or stand outside: only the order tells."""
    words, tags = torch.empty(count, LENGTH, dtype=torch.long), torch.zeros(count, LENGTH, dtype=torch.long)
    for t in range(LENGTH):
        before = tags[:, t - 1] if t else torch.zeros(count, dtype=torch.long)
        draw = torch.rand(count)
        tags[:, t] = torch.where(before == 0, (draw < 0.3).long(), torch.where(draw < 0.6, 2, 0))
        low, high = torch.tensor([5, 0, 5])[tags[:, t]], torch.tensor([VOCABULARY, 5, 15])[tags[:, t]]
        words[:, t] = low + (torch.rand(count) * (high - low)).long()
    return words, tags


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(VOCABULARY, 16), nn.Linear(16, len(TAGS))
        self.learned = nn.Parameter(torch.zeros(len(TAGS), len(TAGS)))
        forbidden = torch.zeros(len(TAGS), len(TAGS))
        forbidden[0, 2] = -torch.inf  # no "inside" after "outside"
        self.register_buffer("forbidden", forbidden)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        return self.score(self.embed(words)), self.learned + self.forbidden


def main(steps: int = 300) -> None:
    torch.manual_seed(0)
    model = Tagger()
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        words, tags = sentences(32)
        loss = sa.losses.sparsemap_sequence_loss(*model(words), tags)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    words, tags = sentences(300)
    with torch.no_grad():
        found = sa.sparsemap_sequence(*model(words), return_structures=True)
    right = (found.marginals.argmax(-1) == tags).float().mean()
    many = (found.weights > 0).sum(-1)
    print(
        f"{100 * right:.1f} % of the tags are right; {many.float().mean():.2f} sequences have weight, at most {many.max()}"
    )
    at = int(many.argmax())
    for weight, sequence in sorted(zip(found.weights[at].tolist(), found.structures[at].tolist()), reverse=True)[:4]:
        if weight > 0:
            print(f"  {weight:.2f}  {' '.join(TAGS[tag] for tag in sequence)}")
    print(f"  true  {' '.join(TAGS[int(tag)] for tag in tags[at])}")


if __name__ == "__main__":
    main()
