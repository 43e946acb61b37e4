"""Building blocks of co-attention: multi-head attention, its layer, scores of words or image regions, a small CNN.

`ImageReduction` reduces the regions of an image to one vector (Martins et al. 2020, section 4):

    p = mapping(scores)                       weights of the regions [B, L], as a row or a grid; context sum_l p_l y_l
    p = discrete(scores), context B r         moments of p at the regions' centres -> density on [0, 1]^2
                                              -> r = E[psi(t)]; B the ridge regression of the regions' vectors on the
                                              basis functions psi

The second form is used if the mapping is a density; the continuous context then replaces the discrete one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Module

from sparse_attention.mappings.continuous import (
    ContinuousAttention2d,
    MultimodalAttention2d,
    MultivariateBetaGaussian,
    positions_2d,
)
from tasks.layers.words import density_alpha


class SmallCnn(nn.Module):
    """3 x 3 convolutions, batch norm and ReLU, trained with the rest: uint8 [U, h, w, 3] -> [U, L, channels[-1]]."""

    def __init__(self, channels: Sequence[int], strides: Sequence[int]) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for before, after, stride in zip([3, *channels], channels, strides):
            blocks += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)

    @staticmethod
    def grid(pixels: tuple[int, int], strides: Sequence[int]) -> tuple[int, int]:
        """(rows, columns) of the feature map for an image of size `pixels` = (height, width)."""
        rows, columns = pixels
        for stride in strides:
            rows, columns = -(-rows // stride), -(-columns // stride)
        return rows, columns

    def forward(self, pixels: Tensor) -> Tensor:
        kind = self.blocks[0].weight.dtype  # type: ignore[union-attr]
        x = pixels.permute(0, 3, 1, 2).to(kind) / 127.5 - 1.0  # [U, 3, h, w]
        return self.blocks(x).flatten(2).transpose(1, 2)


class Attend(nn.Module):
    """Scaled dot-product attention in `heads` subspaces (softmax): queries [B, T, H], states [B, S, H], mask [B, S]."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.both, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """The result [B, T, H]. Given `rows` [B], queries are [U, T, H], and row i uses queries[rows[i]]."""

        def split(x: Tensor) -> Tensor:  # [B, heads, length, dim / heads]
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        keys, values = self.both(states).chunk(2, -1)
        keep = None if mask is None else mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        asked = self.query(queries) if rows is None else self.query(queries)[rows]
        read = F.scaled_dot_product_attention(split(asked), split(keys), split(values), keep, dropout)
        return self.out(read.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Self-attention, attention to the other modality (if `guided`), and feed-forward, each with residual and norm."""

    def __init__(self, dim: int, heads: int, ff_dim: int, dropout: float, guided: bool) -> None:
        super().__init__()
        self.own = Attend(dim, heads, dropout)
        self.other = Attend(dim, heads, dropout) if guided else None
        self.feed = nn.Sequential(nn.Linear(dim, ff_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff_dim, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3 if guided else 2))
        self.dropout = nn.Dropout(dropout)

    def look_at_own(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Only the self-attention step: x [B, L, H], mask [B, L] -> [B, L, H]."""
        return self.norms[0](x + self.dropout(self.own(x, x, mask)))

    def finish(
        self, x: Tensor, other: Tensor | None = None, other_mask: Tensor | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """The steps after self-attention: x [B, L, H], other [B, S, H], other_mask [B, S] -> [B, L, H].

        Given `rows` [B], x is [U, L, H], and row i is x[rows[i]]; what depends on x alone is computed once per row of x.
        """
        if self.other is not None:
            read = self.dropout(self.other(x, other, other_mask, rows))
            x = self.norms[1]((x if rows is None else x[rows]) + read)
        return self.norms[-1](x + self.dropout(self.feed(x)))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply an unguided layer."""
        return self.finish(self.look_at_own(x, mask))


class Scorer(nn.Sequential):
    """Computes one score per word or image region with a small MLP: [B, L, H] -> [B, L]."""

    def __init__(self, dim: int, mlp_dim: int, dropout: float) -> None:
        super().__init__(nn.Linear(dim, mlp_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(mlp_dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


class QuestionReduction(nn.Module):
    """Softmax attention over the words, the same in every row of the paper's table."""

    def __init__(self, scorer: Scorer, dim: int, out_dim: int) -> None:
        super().__init__()
        self.score, self.merge = scorer, nn.Linear(dim, out_dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Reduce the words to one vector: x [B, T, H], mask [B, T] -> [B, D]."""
        p = self.score(x).masked_fill(~mask, float("-inf")).softmax(-1)
        return self.merge((p.unsqueeze(1) @ x).squeeze(1))


Grid = tuple[int, int]


class Reduced(NamedTuple):
    """The context [B, D] of an image and the attention from which it was computed.

    weights [B, L]: discrete weights of the regions. mu, sigma: parameters of the density; None for discrete attention.
    A mixture has K components with shares pi [B, K].
    """

    context: Tensor
    weights: Tensor
    mu: Tensor | None = None
    sigma: Tensor | None = None
    pi: Tensor | None = None


class ImageReduction(nn.Module):
    """The attention layer over image regions; the rows of the paper's table differ only in this layer.

    Args:
        mapping: a mapping over rows (scores [B, L] -> weights [B, L]), over grids ([B, rows, columns]), or a density.
        discrete: the mapping over rows that provides the moments of a density; softmax in the paper.
        grid: (rows, columns) of the regions.
        fit: basis, ridge, pad_positions and moment_match of `ContinuousAttention2d`.
    """

    def __init__(
        self, scorer: Scorer, dim: int, out_dim: int, mapping: Module, discrete: Module, grid: Grid, fit: dict[str, Any]
    ) -> None:
        super().__init__()
        self.score, self.merge, self.grid = scorer, nn.Linear(dim, out_dim), grid
        self.alpha = density_alpha(mapping)
        self.mapping = mapping if self.alpha is None else discrete
        self.continuous: ContinuousAttention2d | None = None
        if self.alpha is not None:
            components = getattr(mapping, "max_components", None)
            if components is not None:
                self.continuous = MultimodalAttention2d(grid, alpha=self.alpha, max_components=components, **fit)
            else:
                quadrature = getattr(mapping, "quadrature", "auto")
                self.continuous = ContinuousAttention2d(grid, alpha=self.alpha, quadrature=quadrature, **fit)

    def forward(self, y: Tensor) -> Reduced:
        """Reduce the vectors y [B, L, H] of the regions to a context."""
        scores = self.score(y)
        p = self.mapping(scores.unflatten(1, self.grid) if self.mapping.spec.over == "grid" else scores).flatten(1)
        if self.continuous is None:
            return Reduced(self.merge((p.unsqueeze(1) @ y).squeeze(1)), p)
        context, info = self.continuous(y, weights=p)
        pi = info.mixture.pi if info.mixture is not None else None
        return Reduced(self.merge(context.to(y.dtype)), p, info.mu, info.sigma, pi)


def cell_weights(reduced: Reduced, alpha: float | None, grid: tuple[int, int]) -> Tensor:
    """Attention per image region [B, L]: the discrete weights, or the density at a region's centre times its area.

    The latter sums to about one if the density is wide compared with a region. Regions outside the support get exactly
    zero; a Gaussian gives no zeros, even where it underflows.
    """
    if alpha is None or reduced.mu is None or reduced.sigma is None:
        return reduced.weights
    mu, sigma = reduced.mu.double(), reduced.sigma.double()
    centres = positions_2d(*grid).double().to(mu.device)  # [L, 2]
    density = MultivariateBetaGaussian(mu.unsqueeze(-2), sigma.unsqueeze(-3), alpha).pdf(centres) / (grid[0] * grid[1])
    if reduced.pi is not None:  # [B, K, L] -> [B, L]
        density = (reduced.pi.double().unsqueeze(-1) * density).sum(-2)
    weights = density.float()
    return weights.clamp(min=torch.finfo(weights.dtype).tiny) if alpha == 1 else weights
