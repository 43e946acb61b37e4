"""Beta-Gaussians in n dimensions, from the Gaussian to the truncated paraboloid (Martins et al. 2020, Eq. 11).

    p(t) = [(alpha - 1)(-tau - (t - mu)' Sigma^-1 (t - mu) / 2)]_+^(1/(alpha - 1))

Eq. 11 is printed with (t - mu) Sigma^-1 (t - mu), without the transpose. For alpha > 1, a diagonal Sigma does not make
the coordinates independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .densities import standard_gamma
from .family import check_alpha, entropy, exponent, threshold


class MultivariateBetaGaussian:
    """A batch of beta-Gaussians with mu [..., n], Sigma = covariance [..., n, n] and alpha >= 1.

    Sigma is symmetric positive definite; it is the covariance of p only for alpha = 1. Raises ValueError if the shapes
    do not fit or Sigma is not positive definite.
    """

    def __init__(self, mu: Tensor, covariance: Tensor, alpha: float = 2.0) -> None:
        self.alpha = check_alpha(alpha)
        n = mu.shape[-1] if mu.ndim else 0
        if n == 0 or covariance.shape[-2:] != (n, n):
            raise ValueError(f"mu {tuple(mu.shape)} needs covariance [..., {n}, {n}], got {tuple(covariance.shape)}")
        factor, info = torch.linalg.cholesky_ex(covariance)
        if bool((info > 0).any()):
            raise ValueError("covariance is not positive definite; add a multiple of the identity")
        batch = torch.broadcast_shapes(mu.shape[:-1], covariance.shape[:-2])
        self.n = n
        self.loc = mu.expand(*batch, n)
        self.sigma = covariance.expand(*batch, n, n)
        self._cholesky = factor.expand(*batch, n, n)

    @property
    def _log_det(self) -> Tensor:
        return 2 * self._cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    def tau(self) -> Tensor:
        """The threshold [...]; for alpha = 2, this is the lambda of Eq. 11. Raises ValueError for alpha = 1."""
        return threshold(self._log_det, self.alpha, self.n)

    def support_map(self) -> Tensor:
        """The lower triangular A [..., n, n] for which the support is {mu + A y : |y| <= 1}."""
        return torch.sqrt(-2 * self.tau)[..., None, None] * self._cholesky

    def pdf(self, t: Tensor) -> Tensor:
        """p(t) [...] for t [..., n]."""
        d = (t - self.loc).unsqueeze(-1)
        energy = torch.linalg.solve_triangular(self._cholesky, d, upper=False).square().sum((-2, -1))
        if self.alpha == 1:
            return torch.exp(-0.5 * (energy + self._log_det) - self.n / 2 * math.log(2 * math.pi))
        rest = (-self.tau - 0.5 * energy).clamp(min=0)
        return ((self.alpha - 1) * rest) ** exponent(self.alpha)

    @property
    def mean(self) -> Tensor:
        """E[t] [..., n]."""
        return self.loc

    @property
    def covariance(self) -> Tensor:
        """Cov[t] [..., n, n]; for alpha = 2, it is -2 tau / (n + 4) Sigma."""
        if self.alpha == 1:
            return self.sigma
        factor = -2 * self.tau / (self.n + 2 * self.alpha * exponent(self.alpha))
        return factor[..., None, None] * self.sigma

    def entropy(self, alpha: float | None = None) -> Tensor:
        """H_alpha [...] in nats; alpha = 1 gives the Shannon entropy, None the entropy that defines this density."""
        return entropy(self.alpha, alpha, self.n, self._log_det)

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Samples [*sample_shape, ..., n] with gradients with respect to mu and Sigma."""
        shape = torch.Size(sample_shape) + self.loc.shape
        z = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device, generator=generator)
        if self.alpha == 1:
            return self.loc + (self._cholesky @ z.unsqueeze(-1)).squeeze(-1)
        direction = z / z.norm(dim=-1, keepdim=True)
        # |y|^2 ~ Beta(n / 2, k + 1)
        inner = standard_gamma(self.n / 2, shape[:-1], self.loc, generator)
        outer = standard_gamma(exponent(self.alpha) + 1, shape[:-1], self.loc, generator)
        y = direction * torch.sqrt(inner / (inner + outer)).unsqueeze(-1)
        return self.loc + (self.support_map() @ y.unsqueeze(-1)).squeeze(-1)

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Samples [*sample_shape, ..., n] without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha:.4g}, n={self.n}, shape={tuple(self.loc.shape[:-1])})"


class TruncatedParaboloid(MultivariateBetaGaussian):
    """The beta-Gaussian with alpha = 2 (Eq. 11)."""

    def __init__(self, mu: Tensor, covariance: Tensor) -> None:
        super().__init__(mu, covariance, 2.0)


class MultivariateGaussian(MultivariateBetaGaussian):
    """The Gaussian N(mu, Sigma), alpha = 1."""

    def __init__(self, mu: Tensor, covariance: Tensor) -> None:
        super().__init__(mu, covariance, 1.0)
