"""Reduces the regions of an image to one vector by discrete or continuous attention (Martins et al. 2020, section 4).

    p = mapping(scores)                       weights of the regions [B, L], as a row or a grid; context sum_l p_l y_l
    p = discrete(scores), context B r         moments of p at the regions' centres -> density on [0, 1]^2
                                              -> r = E[psi(t)]; B the ridge regression of the regions' vectors on the
                                              basis functions psi

The second form is used if the mapping is a density; the continuous context then replaces the discrete one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module

from sparse_attention.mappings.continuous import (
    ContinuousAttention2d,
    MultimodalAttention2d,
    MultivariateBetaGaussian,
    positions_2d,
)
from tasks.layers.words import density_alpha
from tasks.vqa.models._layers import Scorer

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
