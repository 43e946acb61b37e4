"""Attention layers over a continuous domain, from values to a context vector.

All layers take `values` [B, L, D] and a boolean `mask` [B, L] (True = keep) and return (context [B, D],
ContinuousInfo). The density is predicted from a query vector, given by its parameters, or matched to discrete weights.
A fully masked row gives a zero context and no gradient. The layers have no trainable parameters except those of the
predictor of (mu, sigma^2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...rows.shape import constant, in_float64, not_boolean
from .attention1d import continuous_attention_1d
from .attention2d import QUADRATURE, check_quadrature, continuous_attention_2d
from .bases import GaussianBasis1d, GaussianBasis2d
from .family import closed_form_order
from .mixture import COMPONENTS, Mixture, fit_mixture, mixture_expectation, select_mixture
from .moments import MATCH, PLACES, document_positions, match_moments_1d, match_moments_2d
from .regression import PADDING, RIDGE, position_weights, positions_2d, ridge_matrix_2d


class ContinuousInfo(NamedTuple):
    """The density and the weights with which a layer attended.

    mu: [B] or [B, 2].
    sigma: [B] (holding sigma^2) or [B, 2, 2].
    r: [B, N], the expected basis functions.
    position_weights: [B, L], the weights on the values that give the context; they may be negative.
    discrete: [B, L], the discrete weights from which the moments were computed, if any.
    mixture: the mixture of the multimodal layer; mu and sigma are then per component.

    With T queries per example, all of these have an additional dimension T after B.
    """

    mu: Tensor
    sigma: Tensor
    r: Tensor
    position_weights: Tensor
    discrete: Tensor | None = None
    mixture: Mixture | None = None


class DensityPredictor(nn.Module):
    """Predicts mu = sigmoid(w_1' v) and sigma^2 = softplus(w_2' v) >= 1e-6, each [...], from v [..., Q]."""

    def __init__(self, query_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(query_dim, 2)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        out = self.linear(query)
        # Use at least float32, because 1e-6 is nearly zero in float16.
        location, spread = out.to(torch.promote_types(out.dtype, torch.float32)).unbind(-1)
        return torch.sigmoid(location), F.softplus(spread).clamp(min=1e-6)


class ContinuousAttention1d(nn.Module):
    """Continuous attention over a document (Martins et al. 2020, sections 3 and 4).

    basis: by default 64 functions with widths .1 and .5. alpha: 1, 4/3, 3/2 or 2. query_dim: size of the query for the
    predictor; None means no predictor. ridge and pad_positions: see `regression`. moment_match and positions: see
    `moments`; the authors use "paper-code" and "linspace". A single ValueError reports all invalid options.
    """

    def __init__(
        self,
        basis: GaussianBasis1d | None = None,
        alpha: float = 2.0,
        *,
        query_dim: int | None = None,
        ridge: float = 0.01,
        pad_positions: str = "none",
        moment_match: str = "exact",
        positions: str = "cell_centre",
    ) -> None:
        super().__init__()
        _check_options(alpha, ridge=ridge, pad_positions=pad_positions, moment_match=moment_match, positions=positions)
        self.basis = basis if basis is not None else GaussianBasis1d.linspaced(64)
        self.alpha, self.ridge, self.pad_positions = alpha, ridge, pad_positions
        self.moment_match, self.positions = moment_match, positions
        self.predictor = DensityPredictor(query_dim) if query_dim is not None else None

    def forward(
        self,
        values: Tensor,
        mask: Tensor | None = None,
        *,
        query: Tensor | None = None,
        params: tuple[Tensor, Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, ContinuousInfo]:
        """Attend to values [B, L, D] with a density from exactly one source.

        The source is query [B, Q], params (mu [B], sigma_sq [B]) or weights [B, L]; with T queries, each is [B, T,
        ...]. Returns (context [B, D] or [B, T, D], info). Raises ValueError if not exactly one source is given, or if a
        query is given to a layer without query_dim.
        """
        _check_one_source(query=query, params=params, weights=weights)
        mask = _checked_mask(mask, values, weights)
        mask = values.new_ones(values.shape[:2], dtype=torch.bool) if mask is None else mask
        if params is not None:
            mu, sigma_sq = params
        elif query is not None:
            if self.predictor is None:
                raise ValueError("query is given, but this layer has no predictor; build the layer with query_dim")
            mu, sigma_sq = self.predictor(query)
        else:
            assert weights is not None
            at = document_positions(mask, self.positions)
            at = at.unsqueeze(1) if weights.ndim == 3 else at
            mu, sigma_sq = match_moments_1d(weights, at, self.alpha, self.moment_match)
        r = continuous_attention_1d(mu, sigma_sq, self.basis, self.alpha)
        on_positions = position_weights(r, mask, self.basis, self.ridge, self.pad_positions)
        context = _weighted_sum(on_positions, values, mask)
        return context, ContinuousInfo(mu, sigma_sq, r, on_positions, weights)

    def extra_repr(self) -> str:
        return f"{self.basis!r}, alpha={self.alpha:.4g}, ridge={self.ridge}, moment_match={self.moment_match!r}"


class DiscreteContinuousAttention1d(nn.Module):
    """Discrete and continuous attention combined (section 4, "combined").

    The density has the moments of the discrete weights, and the two contexts are summed. mapping(scores, mask=...,
    dim=-1) gives the discrete weights: `sa.make("softmax")`, which the authors use in every row, or any other mapping.
    Options are those of ContinuousAttention1d.
    """

    def __init__(
        self, mapping: Callable[..., Tensor], basis: GaussianBasis1d | None = None, alpha: float = 2.0, **options
    ) -> None:
        super().__init__()
        self.mapping = mapping
        self.continuous = ContinuousAttention1d(basis, alpha, **options)

    def forward(self, values: Tensor, mask: Tensor | None, scores: Tensor) -> tuple[Tensor, ContinuousInfo]:
        """Attend to values [B, L, D] by scores [B, L] or [B, T, L]; mask is [B, L] or None.

        Returns (context [B, D] or [B, T, D], info).
        """
        mask = values.new_ones(values.shape[:2], dtype=torch.bool) if mask is None else mask
        p = self.mapping(scores, mask=mask if scores.ndim == 2 else mask.unsqueeze(1).expand_as(scores), dim=-1)
        continuous, info = self.continuous(values, mask, weights=p)
        return _weighted_sum(p, values, mask) + continuous, info


class ContinuousAttention2d(nn.Module):
    """Continuous attention over an image of rows x columns positions (section 4, visual question answering).

    basis: by default the 10 x 10 grid with Sigma_j = .001 I. pad_positions: "correct" also fits zeros on [-1/2, 3/2]^2,
    as the paper's model does. quadrature: see `attention2d`; "paper-code" is the authors' rule with its duplicate
    angle. A single ValueError reports all invalid options.
    """

    def __init__(
        self,
        grid: tuple[int, int] = (14, 14),
        basis: GaussianBasis2d | None = None,
        alpha: float = 2.0,
        *,
        ridge: float = 0.01,
        pad_positions: str = "correct",
        moment_match: str = "exact",
        quadrature: str = "auto",
    ) -> None:
        super().__init__()
        _check_options(
            alpha, ridge=ridge, pad_positions=pad_positions, moment_match=moment_match, quadrature=quadrature
        )
        self.grid = (int(grid[0]), int(grid[1]))
        self.basis = basis if basis is not None else GaussianBasis2d.grid()
        check_quadrature(quadrature, self.basis, alpha)
        self.alpha, self.ridge, self.pad_positions = alpha, ridge, pad_positions
        self.moment_match, self.quadrature = moment_match, quadrature
        self._positions = constant(positions_2d, *self.grid)

    @in_float64
    def forward(
        self,
        values: Tensor,
        mask: Tensor | None = None,
        *,
        params: tuple[Tensor, Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, ContinuousInfo]:
        """Attend to values [B, rows * columns, D], stored row by row, with a density from exactly one source.

        The source is params (mu [B, 2], Sigma [B, 2, 2]) or weights [B, L]. mu and Sigma are in units of the image, and
        the first coordinate is the row. A masked position is treated as a zero value. Returns (context [B, D], info).
        Raises ValueError if the number of positions is not rows * columns, or if not exactly one source is given.
        """
        _check_one_source(params=params, weights=weights)
        mask = self._checked(mask, values, weights)
        tolerance = None
        if params is not None:
            mu, sigma = params
        else:
            assert weights is not None
            tolerance = 1e-12 if weights.dtype == torch.float64 else 1e-7
            # Stay in float64 until r is computed: for attention along a line, rounding Sigma would lose |Sigma|.
            at = self._positions.to(weights.device, non_blocking=True)
            mu, sigma = match_moments_2d(weights.double(), at, self.alpha, self.moment_match)
        r = continuous_attention_2d(mu, sigma, self.basis, self.alpha, quadrature=self.quadrature, tolerance=tolerance)
        if weights is not None:
            dtype = torch.promote_types(weights.dtype, torch.float32)
            mu, sigma, r = mu.to(dtype), sigma.to(dtype), r.to(dtype)
        context, on_positions = self._read(r, values, mask)
        return context, ContinuousInfo(mu, sigma, r, on_positions, weights)

    def _read(self, r: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The context [B, D], and the weights of the positions [B, L]."""
        g = ridge_matrix_2d(*self.grid, self.basis, self.ridge, self.pad_positions, device=values.device)
        on_positions = r @ g.to(r.dtype).mT
        on_positions = on_positions if mask is None else on_positions * mask
        return _weighted_sum(on_positions, values, mask), on_positions

    def _checked(self, mask: Tensor | None, values: Tensor, weights: Tensor | None) -> Tensor | None:
        if values.shape[1] != self.grid[0] * self.grid[1]:
            raise ValueError(
                f"values have {values.shape[1]} positions, but the layer was built for {self.grid[0]} x {self.grid[1]}; "
                "build it with grid=(rows, columns) of the feature map"
            )
        return _checked_mask(mask, values, weights)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, {self.basis!r}, alpha={self.alpha:.4g}, quadrature={self.quadrature!r}"


class MultimodalAttention2d(ContinuousAttention2d):
    """Image attention by a mixture of Gaussians fitted to discrete weights (Farinhas, Martins and Aguiar 2021).

    In training, the number of components is drawn from 1 .. max_components for each batch, and EM runs for 5
    iterations. In evaluation, the number is selected per example by penalised likelihood (10 iterations, 3 restarts).
    The starting points are random in training (pass a generator to reproduce them) and always the same in evaluation.
    alpha > 1 replaces every Gaussian by the truncated density with the same moments.
    """

    def __init__(
        self,
        grid: tuple[int, int] = (14, 14),
        basis: GaussianBasis2d | None = None,
        alpha: float = 1.0,
        *,
        max_components: int = 4,
        generator: torch.Generator | None = None,
        **options,
    ) -> None:
        super().__init__(grid, basis, alpha, **options)
        self.max_components, self.generator = COMPONENTS.check(max_components), generator

    @in_float64
    def forward(  # type: ignore[override]
        self, values: Tensor, mask: Tensor | None = None, *, weights: Tensor
    ) -> tuple[Tensor, ContinuousInfo]:
        """Attend to values [B, rows * columns, D] by weights [B, rows * columns].

        Returns (context [B, D], info); info contains the mixture.
        """
        mask = self._checked(mask, values, weights)
        positions = self._positions.to(weights.device, non_blocking=True)
        if self.training:
            device = self.generator.device if self.generator is not None else None
            k = int(torch.randint(1, self.max_components + 1, (), generator=self.generator, device=device))
            mixture = fit_mixture(weights, positions, k, 5, generator=self.generator)
        else:
            same = torch.Generator().manual_seed(0)
            mixture = select_mixture(weights, positions, self.max_components, generator=same)
        dtype = torch.promote_types(weights.dtype, torch.float32)
        r = mixture_expectation(mixture, self.basis, self.alpha).to(dtype)
        context, on_positions = self._read(r, values, mask)
        return context, ContinuousInfo(mixture.mu, mixture.covariance, r, on_positions, weights, mixture)


def _weighted_sum(weights: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Weights [B, L] or [B, T, L] times values [B, L, D]. Masked values become 0, so NaN padding has no effect."""
    if mask is not None:
        values = values.masked_fill(~mask.unsqueeze(-1), 0.0)
    weights = weights.to(values.dtype)
    if weights.ndim == 3:
        return weights @ values
    return (weights.unsqueeze(1) @ values).squeeze(1)


def _check_one_source(**sources: object) -> None:
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of {', '.join(sources)}; got {', '.join(given) or 'none'}")


def _checked_mask(mask: Tensor | None, values: Tensor, weights: Tensor | None) -> Tensor | None:
    """The mask [B, L] of values [B, L, D], or None. Raises TypeError or ValueError that names what does not fit."""
    allowed = tuple(values.shape[:2])
    if weights is not None and (weights.shape[0], weights.shape[-1]) != allowed:
        raise ValueError(f"weights {tuple(weights.shape)} must have the batch and positions {allowed} of the values")
    if mask is not None and mask.dtype != torch.bool:
        raise not_boolean(mask)
    if mask is not None and mask.shape != allowed:
        raise ValueError(f"mask of shape {tuple(mask.shape)} must have the shape {allowed} of the values")
    return mask


_OPTIONS = {param.name: param for param in (RIDGE, PADDING, MATCH, PLACES, QUADRATURE)}


def _check_options(alpha: float, **options: Any) -> None:
    """Raises a single ValueError that reports all invalid options."""
    mistakes = []
    for check, value in ((closed_form_order, alpha), *((_OPTIONS[name].check, v) for name, v in options.items())):
        try:
            check(value)
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValueError("\n".join(mistakes))
