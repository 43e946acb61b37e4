"""A Vision Transformer of timm with sparsemax: where each patch looks, and where it does not.

    python examples/vision_transformer.py     # seconds; timm is used if it is installed

timm's models call torch.nn.functional.scaled_dot_product_attention, which `sa.integrations.sdpa.use` replaces inside a block.
Without timm, a stand-in of one layer that calls the same function is trained.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparse_attention as sa


class StandIn(nn.Module):
    """Patches of 4 x 4 pixels, one layer of attention with 2 heads, the mean of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 32, 4, 4), nn.Parameter(0.1 * torch.randn(16, 32))
        self.qkv, self.mix, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT + self.places
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


def made() -> tuple[str, nn.Module]:
    try:
        import timm
    except ImportError:
        return "a stand-in for timm", StandIn()
    size = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 2}
    return f"timm {timm.__version__}", timm.create_model("vit_tiny_patch16_224", **size)


def images(count: int) -> tuple[Tensor, Tensor]:
    """Noise ``[count, 3, 16, 16]`` with two bright patches, and classes ``[count]``: 1 if both have the same colour."""
    x, colours = 0.1 * torch.randn(count, 3, 16, 16), torch.randint(3, (count, 2))
    at = torch.rand(count, 16).argsort(-1)[:, :2]
    for i in range(count):
        for colour, place in zip(colours[i], at[i]):
            row, column = 4 * (place // 4), 4 * (place % 4)
            x[i, colour, row : row + 4, column : column + 4] += 1
    return x, (colours[:, 0] == colours[:, 1]).long()


def main(steps: int = 400) -> None:
    torch.manual_seed(0)
    name, model = made()
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    with sa.integrations.sdpa.use("sparsemax"):
        for _ in range(steps):
            x, classes = images(64)
            loss = F.cross_entropy(model(x), classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        x, classes = images(500)
        with torch.no_grad():
            right = (model.eval()(x).argmax(-1) == classes).float().mean()
    with torch.no_grad():
        softmax = (model(x).argmax(-1) == classes).float().mean()  # outside the block, the same model has softmax again
    print(f"{name}: {100 * right:.1f} % right with sparsemax, {100 * softmax:.1f} % if softmax then replaces it")


if __name__ == "__main__":
    main()
