"""The continuous mappings by name: from the parameters of a quadratic score to the expected basis functions.

Where a discrete mapping takes scores to weights, a continuous one takes theta, here as (mu, sigma), to r = E_p[psi]
(Martins et al. 2020, Def. 2). One function per alpha, for bases on the line and on the plane.
"""

from __future__ import annotations

from torch import Tensor, nn

from .attention1d import continuous_attention_1d
from .attention2d import QUADRATURES, continuous_attention_2d
from .bases import GaussianBasis1d, GaussianBasis2d

Basis = GaussianBasis1d | GaussianBasis2d


def continuous_entmax(mu: Tensor, sigma: Tensor, basis: Basis, alpha: float, quadrature: str = "auto") -> Tensor:
    """r [..., N] = E_p[psi] for f = -(t - mu)' Sigma^-1 (t - mu) / 2 and alpha in {1, 4/3, 3/2, 2}.

    On the line mu [...], sigma [...] holds sigma^2; on the plane mu [..., 2], sigma [..., 2, 2] holds Sigma.
    `quadrature` matters on the plane only. Raises ValueError for an unknown alpha, sigma that is not positive
    (definite), shapes that do not fit the basis.
    """
    if isinstance(basis, GaussianBasis1d):
        return continuous_attention_1d(mu, sigma, basis, alpha)
    if mu.shape[-1:] != (2,) or sigma.shape[-2:] != (2, 2):
        raise ValueError(
            f"a basis on the plane needs mu [..., 2] and sigma [..., 2, 2], got {tuple(mu.shape)}, {tuple(sigma.shape)}"
        )
    return continuous_attention_2d(mu, sigma, basis, alpha, quadrature=quadrature)


def continuous_softmax(mu: Tensor, sigma: Tensor, basis: Basis) -> Tensor:
    """Continuous softmax (alpha = 1): r [..., N] under a Gaussian."""
    return continuous_entmax(mu, sigma, basis, 1.0)


def continuous_triweight(mu: Tensor, sigma: Tensor, basis: Basis, quadrature: str = "auto") -> Tensor:
    """Continuous 4/3-entmax: r [..., N] under a triweight density."""
    return continuous_entmax(mu, sigma, basis, 4.0 / 3.0, quadrature)


def continuous_biweight(mu: Tensor, sigma: Tensor, basis: Basis, quadrature: str = "auto") -> Tensor:
    """Continuous 3/2-entmax: r [..., N] under a biweight density."""
    return continuous_entmax(mu, sigma, basis, 1.5, quadrature)


def continuous_sparsemax(mu: Tensor, sigma: Tensor, basis: Basis, quadrature: str = "auto") -> Tensor:
    """Continuous sparsemax (alpha = 2): r [..., N] under a truncated parabola or paraboloid."""
    return continuous_entmax(mu, sigma, basis, 2.0, quadrature)


class _Transform(nn.Module):
    alpha: float

    def __init__(self, quadrature: str = "auto") -> None:
        super().__init__()
        if quadrature not in QUADRATURES:
            raise ValueError(f"quadrature={quadrature!r} is unknown; allowed: {', '.join(QUADRATURES)}")
        self.quadrature = quadrature

    def forward(self, mu: Tensor, sigma: Tensor, basis: Basis) -> Tensor:
        """r [..., N]; see `continuous_entmax`."""
        return continuous_entmax(mu, sigma, basis, self.alpha, self.quadrature)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.4g}, quadrature={self.quadrature!r}"


class ContinuousSoftmax(_Transform):
    """Module twin of `continuous_softmax`."""

    alpha = 1.0

    def __init__(self) -> None:
        super().__init__()


class ContinuousTriweight(_Transform):
    """Module twin of `continuous_triweight`."""

    alpha = 4.0 / 3.0


class ContinuousBiweight(_Transform):
    """Module twin of `continuous_biweight`."""

    alpha = 1.5


class ContinuousSparsemax(_Transform):
    """Module twin of `continuous_sparsemax`."""

    alpha = 2.0


def register_all() -> None:
    """Make the four mappings known to `sparse_attention.registry`, kind "continuous"; a second call changes nothing."""
    from sparse_attention.registry import Param, register, set_module

    quadrature = Param(
        "quadrature", "auto", choices=QUADRATURES, tensor=False, meaning="rule on the plane; no effect on the line"
    )
    paper = "Martins et al. 2020, Eq. 15"
    follow_up = "Martins et al. 2022, beta-Gaussians"
    for function, module, params, source in (
        (continuous_softmax, ContinuousSoftmax, (), paper),
        (continuous_triweight, ContinuousTriweight, (quadrature,), follow_up),
        (continuous_biweight, ContinuousBiweight, (quadrature,), follow_up),
        (continuous_sparsemax, ContinuousSparsemax, (quadrature,), paper),
    ):
        register(
            function.__name__,
            kind="continuous",
            params=params,
            paper=source,
            oracle="adaptive quadrature of p psi_j",
            replace=True,
            complete=True,
        )(function)
        set_module(function.__name__, module)
