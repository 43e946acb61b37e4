"""What part of an image was attended to: weights on the cells for heat maps, ellipses for figures."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_attention.mappings.continuous import MultivariateBetaGaussian, positions_2d
from tasks.vqa.mcan import ALPHAS, Reduced


def cell_weights(reduced: Reduced, reduction: str, grid: tuple[int, int]) -> Tensor:
    """Attention per cell [B, L]: the discrete weights, or the density at the cells' centres times a cell's area.

    The latter sums to about one where the density is wide against a cell. Exact zeros are cells outside the support.
    """
    if reduced.mu is None or reduced.sigma is None:
        return reduced.weights
    alpha = ALPHAS[reduction]
    assert alpha is not None
    mu, sigma = reduced.mu.double(), reduced.sigma.double()
    centres = positions_2d(*grid).double()  # [L, 2]
    density = MultivariateBetaGaussian(mu.unsqueeze(-2), sigma.unsqueeze(-3), alpha).pdf(centres) / (grid[0] * grid[1])
    if reduced.pi is not None:  # [B, K, L] -> [B, L]
        density = (reduced.pi.double().unsqueeze(-1) * density).sum(-2)
    weights = density.float()
    # a Gaussian is nowhere zero, but its tail underflows
    return weights.clamp(min=torch.finfo(weights.dtype).tiny) if alpha == 1 else weights


def ellipse(mu: Tensor, sigma: Tensor, alpha: float, points: int = 100) -> list[Tensor]:
    """Outlines in units of the image, first coordinate rows: [points, 2] each.

    The edge of the support for alpha > 1; one and two standard deviations for a Gaussian.
    """
    angle = torch.linspace(0, 2 * math.pi, points, dtype=torch.float64)
    circle = torch.stack((angle.cos(), angle.sin()), -1)  # [points, 2]
    mu, sigma = mu.double(), sigma.double()
    if alpha == 1:
        factor = torch.linalg.cholesky(sigma)
        return [mu + k * circle @ factor.mT for k in (1.0, 2.0)]
    return [mu + circle @ MultivariateBetaGaussian(mu, sigma, alpha).support_map().mT]
