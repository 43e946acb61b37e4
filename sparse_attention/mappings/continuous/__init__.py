# the imports are the public names of the package
"""Continuous attention (Martins et al. 2020 and follow-ups): densities, transforms, value regression and layers."""

from __future__ import annotations

from .attention1d import continuous_attention_1d
from .attention2d import angles_needed, continuous_attention_2d
from .bases import GaussianBasis1d, GaussianBasis2d
from .densities import (
    BetaGaussian,
    Biweight,
    Density,
    Gaussian,
    Laplace,
    LocationScale,
    Triangular,
    Triweight,
    TruncatedParabola,
)
from .family import (
    MultivariateBetaGaussian,
    MultivariateGaussian,
    TruncatedParaboloid,
    half_width,
    matched_covariance,
    matched_sigma_sq,
)
from .mixture import Mixture, fit_mixture, mixture_expectation, select_mixture
from .modules import (
    ContinuousAttention1d,
    ContinuousAttention2d,
    ContinuousInfo,
    DensityPredictor,
    DiscreteContinuousAttention1d,
    MultimodalAttention2d,
)
from .moments import MOMENT_MATCHES, POSITIONS, document_positions, match_moments_1d, match_moments_2d
from .regression import position_weights, positions_1d, positions_2d, ridge_matrix_1d, ridge_matrix_2d, solve_ridge
from .transforms import (
    continuous_biweight,
    continuous_entmax,
    continuous_mixture,
    continuous_softmax,
    continuous_sparsemax,
    continuous_triweight,
)
