"""The registered continuous mappings: from the parameters of a quadratic score to the expected basis functions.

A discrete mapping turns scores into weights. A continuous mapping turns theta, here (mu, sigma), into r = E_p[psi]
(Martins et al. 2020, Def. 2). There is one function per alpha, for bases on the line and on the plane, and one for a
mixture of Gaussians that is fitted to discrete weights. The attention layers that use them are `ContinuousAttention1d`,
`ContinuousAttention2d` and `MultimodalAttention2d`; see [continuous attention](../../guides/continuous.md).

Forward and backward: ``mappings/continuous/attention1d.py`` and ``mappings/continuous/attention2d.py``; the mixture is
in ``mappings/continuous/mixture.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...registry import register, spec
from .attention1d import continuous_attention_1d
from .attention2d import QUADRATURE, continuous_attention_2d
from .bases import GaussianBasis1d, GaussianBasis2d
from .mixture import COMPONENTS, mixture_expectation, select_mixture

Basis = GaussianBasis1d | GaussianBasis2d


def continuous_entmax(mu: Tensor, sigma: Tensor, basis: Basis, alpha: float, quadrature: str = "auto") -> Tensor:
    """r [..., N] = E_p[psi] for f = -(t - mu)' Sigma^-1 (t - mu) / 2 and alpha in {1, 4/3, 3/2, 2}.

    On the line, mu is [...] and sigma [...] holds sigma^2. On the plane, mu is [..., 2] and sigma [..., 2, 2] holds
    Sigma. `quadrature` has an effect only on the plane. Raises ValueError if alpha is unknown, sigma is not positive
    (definite), or the shapes do not fit the basis.
    """
    if isinstance(basis, GaussianBasis1d):
        return continuous_attention_1d(mu, sigma, basis, alpha)
    return continuous_attention_2d(mu, sigma, basis, alpha, quadrature=quadrature)


def continuous_softmax(mu: Tensor, sigma: Tensor, basis: Basis) -> Tensor:
    """Continuous softmax (alpha = 1): expected basis functions r [..., N] under a Gaussian."""
    return continuous_entmax(mu, sigma, basis, 1.0)


def continuous_triweight(mu: Tensor, sigma: Tensor, basis: Basis, quadrature: str = "auto") -> Tensor:
    """Continuous 4/3-entmax: expected basis functions r [..., N] under a triweight density."""
    return continuous_entmax(mu, sigma, basis, 4.0 / 3.0, quadrature)


def continuous_biweight(mu: Tensor, sigma: Tensor, basis: Basis, quadrature: str = "auto") -> Tensor:
    """Continuous 3/2-entmax: expected basis functions r [..., N] under a biweight density."""
    return continuous_entmax(mu, sigma, basis, 1.5, quadrature)


def continuous_sparsemax(mu: Tensor, sigma: Tensor, basis: Basis, quadrature: str = "auto") -> Tensor:
    """Continuous sparsemax (alpha = 2): expected basis functions r [..., N] under a truncated parabola (paraboloid)."""
    return continuous_entmax(mu, sigma, basis, 2.0, quadrature)


def continuous_mixture(weights: Tensor, positions: Tensor, basis: Basis, max_components: int = 4) -> Tensor:
    """Expected basis functions r [B, N] under a mixture of Gaussians, selected for the weights by penalised likelihood.

    weights [B, L] belong to the positions [L, n]; see `select_mixture`. In training, the layer `MultimodalAttention2d`
    instead draws the number of components at random.
    """
    mixture = select_mixture(weights, positions, max_components, generator=torch.Generator().manual_seed(0))
    return mixture_expectation(mixture, basis).to(torch.promote_types(weights.dtype, torch.float32))


_INTEGRAL, _EM = "adaptive quadrature of p psi_j", "scikit-learn's GaussianMixture on repeated points"

for _function, _alpha, _params, _paper, _oracle in (
    (continuous_softmax, 1.0, (), "Martins et al. 2020, Eq. 15", _INTEGRAL),
    (continuous_triweight, 4.0 / 3.0, (QUADRATURE,), "Martins et al. 2022, beta-Gaussians", _INTEGRAL),
    (continuous_biweight, 1.5, (QUADRATURE,), "Martins et al. 2022, beta-Gaussians", _INTEGRAL),
    (continuous_sparsemax, 2.0, (QUADRATURE,), "Martins et al. 2020, Eq. 15", _INTEGRAL),
    (continuous_mixture, 1.0, (COMPONENTS,), "Farinhas, Martins & Aguiar 2021", _EM),
):
    _name = _function.__name__
    register(_name, kind="continuous", over="density", params=_params, paper=_paper, oracle=_oracle)(_function)
    spec(_name).module.alpha = _alpha  # type: ignore[attr-defined]  # the alpha of its density, for layers built on it
