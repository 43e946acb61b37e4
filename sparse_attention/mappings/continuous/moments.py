"""Moment matching: the density with the same mean and (co)variance as discrete attention weights.

The combined model of Martins et al. 2020, section 4, takes mu = E_p[l / L] and the variance V of l / L from discrete
attention p. The parameter sigma^2 of a truncated parabola is not its variance, so mode="exact" converts V. For alpha =
2, it uses 2/3 (5 V)^(3/2) on the line and 9 pi sqrt(|V|) V on the plane. mode="paper-code" uses V directly as sigma^2,
as the authors' IMDB scripts do: the support then has half width .500 instead of .645 for V = 1/12, and .114 instead of
.071 for V = .001.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...describe import Param
from ...rows.shape import in_float64
from .family import matched_covariance, matched_sigma_sq

MOMENT_MATCHES = ("exact", "paper-code")
POSITIONS = ("cell_centre", "linspace", "right_edge")
MATCH = Param("moment_match", choices=MOMENT_MATCHES)
PLACES = Param("positions", choices=POSITIONS)


@in_float64
def document_positions(mask: Tensor, positions: str = "cell_centre") -> Tensor:
    """Positions [B, L] in [0, 1], float64, of the words that mask [B, L] keeps; 0 for masked words.

    "cell_centre" is (l - 1/2) / L, the points of the value regression; "linspace" is (l - 1) / (L - 1), as in the
    authors' code; "right_edge" is l / L, as in the text of the paper. Raises ValueError for any other name.
    """
    PLACES.check(positions)
    rank = mask.cumsum(-1).double()  # 1 .. L on the kept words
    length = rank[..., -1:]
    if positions == "cell_centre":
        t = (rank - 0.5) / length.clamp(min=1)
    elif positions == "linspace":
        t = (rank - 1) / (length - 1).clamp(min=1)
    else:
        t = rank / length.clamp(min=1)
    return t.masked_fill(~mask, 0.0)


@in_float64
def match_moments_1d(
    weights: Tensor, positions: Tensor, alpha: float = 2.0, mode: str = "exact"
) -> tuple[Tensor, Tensor]:
    """(mu [B], sigma_sq [B]) from weights [B, L], which sum to one, at positions [L] or [B, L].

    The variance is at least 1e-6, in case all attention is on one word. If all weights are 0, mu is 0 and sigma_sq is the
    value for that variance.
    """
    MATCH.check(mode)
    p = weights.double()
    mu = (p * positions).sum(-1)
    # The centred form, because E[t^2] - mu^2 cancels for peaked attention.
    variance = (p * (positions - mu.unsqueeze(-1)).square()).sum(-1).clamp(min=1e-6)
    sigma_sq = matched_sigma_sq(variance, alpha) if mode == "exact" else variance
    # sigma^2 of a peaked parabola is about V^(3/2), which is below the smallest float16 number.
    dtype = torch.promote_types(weights.dtype, torch.float32)
    return mu.to(dtype), sigma_sq.to(dtype)


@in_float64
def match_moments_2d(
    weights: Tensor, positions: Tensor, alpha: float = 2.0, mode: str = "exact", floor: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """(mu [B, 2], Sigma [B, 2, 2]) from weights [B, L] at positions [L, 2].

    `floor` is added to the diagonal of the covariance. mode="exact" converts the covariance V, as the authors' VQA code
    also does (9 pi sqrt(|V|) V); "paper-code" uses V as Sigma.
    """
    MATCH.check(mode)
    if positions.shape[-1:] != (2,):
        raise ValueError(f"positions on the plane are [L, 2], got {tuple(positions.shape)}")
    p, t = weights.double(), positions.double()
    mu = p @ t  # [B, 2]
    d = t - mu.unsqueeze(-2)  # [B, L, 2]
    eye = torch.eye(2, dtype=p.dtype, device=p.device)
    covariance = (p.unsqueeze(-1) * d).mT @ d + floor * eye
    sigma = matched_covariance(covariance, alpha) if mode == "exact" else covariance
    dtype = torch.promote_types(weights.dtype, torch.float32)
    return mu.to(dtype), sigma.to(dtype)
