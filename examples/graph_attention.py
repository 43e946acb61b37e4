"""Graph attention (Velickovic et al. 2018) with sparsemax over the edges of each node: some neighbours get exactly 0.

    python examples/graph_attention.py   # seconds

`segments` says to which node an edge leads. PyTorch Geometric and DGL hold edges in the same form, `edge_index` [2, E].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparse_attention as sa

NODES, CLASSES = 400, 4


def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Noisy features ``[NODES, 8]``, edges ``[2, E]`` of which a third leads from other classes, and classes ``[NODES]``."""
    classes = torch.randint(CLASSES, (NODES,))
    source, target = torch.randint(NODES, (2, 60 * NODES))
    kept = (classes[source] == classes[target]) | (torch.rand(len(source)) < 0.17)
    kept &= torch.rand(len(source)) < 0.3
    loops = torch.arange(NODES).expand(2, -1)
    features = F.one_hot(classes, 8).float() + 0.7 * torch.randn(NODES, 8)
    return features, torch.cat((torch.stack((source, target))[:, kept], loops), 1), classes


class Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int, heads: int):
        super().__init__()
        self.shape = heads, outputs
        self.value, self.source, self.target = (nn.Linear(inputs, heads * n) for n in (outputs, 8, 8))

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        heads, outputs = self.shape
        scores = (self.source(x)[source] * self.target(x)[target]).unflatten(-1, (heads, 8)).sum(-1)  # [E, heads]
        weights = sa.sparsemax(scores, dim=0, segments=target)  # the edges that lead to a node sum to 1
        values = self.value(x).unflatten(-1, (heads, outputs))[source] * weights.unsqueeze(-1)
        return torch.zeros(len(x), heads, outputs).index_add(0, target, values).mean(1), weights


def main(steps: int = 200) -> None:
    torch.manual_seed(0)
    features, edges, classes = graph()
    known = torch.rand(NODES) < 0.5  # the classes of the other nodes are predicted
    layer = Layer(8, CLASSES, heads=2)
    optimiser = torch.optim.Adam(layer.parameters(), 0.01, weight_decay=1e-3)
    for _ in range(steps):
        loss = F.cross_entropy(layer(features, edges)[0][known], classes[known])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        logits, weights = layer(features, edges)
    right = (logits.argmax(-1) == classes)[~known].float().mean()
    alike = classes[edges[0]] == classes[edges[1]]
    used = (weights > 0).float().mean(-1)
    print(f"{edges.shape[1]} edges; {100 * right:.1f} % of the other nodes are right")
    print(
        f"with weight: {100 * used[alike].mean():.0f} % of the edges within a class, {100 * used[~alike].mean():.0f} % between classes"
    )


if __name__ == "__main__":
    main()
