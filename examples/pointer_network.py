"""A pointer network (Vinyals et al. 2015) that sorts numbers by pointing at them; sparsemax points at one, or says at which few.

    python examples/pointer_network.py   # half a minute

The loss of a mapping as the output layer is its Fenchel-Young loss: `sa.losses.sparsemax_loss` in place of cross_entropy.
"""

import torch
from torch import Tensor, nn

import sparse_attention as sa

LENGTH, WIDTH = 6, 32


class Pointer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.encode = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.steps = nn.Parameter(
            torch.randn(LENGTH, WIDTH)
        )  # a query for the smallest number, the second smallest, ...
        self.decode = nn.TransformerDecoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, numbers: Tensor) -> Tensor:
        """Numbers ``[B, n]`` to scores ``[B, step, n]``."""
        memory = self.encode(self.embed(numbers.unsqueeze(-1)))
        queries = self.decode(self.steps.expand(len(numbers), -1, -1), memory)
        return queries @ memory.mT / WIDTH**0.5


def main(steps: int = 1000) -> None:
    torch.manual_seed(0)
    model = Pointer()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        numbers = torch.rand(64, LENGTH)
        loss = sa.losses.sparsemax_loss(model(numbers), numbers.argsort(-1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    numbers = torch.rand(1000, LENGTH)
    with torch.no_grad():
        pointers = sa.sparsemax(model(numbers))  # [B, step, n]
    right = (pointers.argmax(-1) == numbers.argsort(-1)).float().mean()
    support = (pointers > 0).sum(-1)
    sure = support == 1
    of_sure = (pointers.argmax(-1) == numbers.argsort(-1))[sure].float().mean()
    print(f"{100 * right:.1f} % of the pointers are right; {support.float().mean():.2f} numbers have weight on average")
    print(f"{100 * sure.float().mean():.0f} % point at one number alone: of these, {100 * of_sure:.1f} % are right")
    print("numbers  " + " ".join(f"{x:.2f}" for x in numbers[0]))
    for step, weights in enumerate(pointers[0]):
        print(f"step {step + 1}   " + " ".join(f"{w:.2f}" if w else "   ." for w in weights))


if __name__ == "__main__":
    main()
