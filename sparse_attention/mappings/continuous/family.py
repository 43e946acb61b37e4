"""The beta-Gaussian family: the densities that the alpha-regularized prediction map gives for a quadratic score.

    p = argmax_p  E_p[f] + H_alpha(p),   f(t) = -1/2 (t - mu)' Sigma^-1 (t - mu),   t in R^n

has the solution (Martins et al. 2020, Prop. 1 and Eqs. 10-11; beta-Gaussians of Martins et al. 2022)

    p(t) = [(alpha - 1) (-tau + f(t))]_+ ^ k,      k = 1 / (alpha - 1),
    support  { mu + A y : |y| <= 1 },   A A' = R^2 |Sigma|^(-2 / (2n + 4k)) Sigma,

with a radius R that depends only on n and alpha. On the unit ball, the family has a single shape, C (1 - |y|^2)^k, with
location mu and scale A. The rest of this package builds on this property. alpha = 1 gives the Gaussian (with unbounded
support), 4/3 the triweight, 3/2 the biweight, and 2 the truncated parabola or paraboloid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...describe import Param
from ...rows import shape as row_shapes

_ALPHA = Param("alpha", low=1.0, closed_low=True, tensor=False, meaning="1 is the Gaussian, 2 sparsemax")
# Maps alpha to the exponent k of (1 - |y|^2)^k. Attention with Gaussian RBFs has a closed form only for integer k.
_CLOSED_FORM_ORDERS = {1.0: 0, 2.0: 1, 1.5: 2, 4.0 / 3.0: 3}


def closed_form_order(alpha: float) -> int:
    """Exponent k of the density (1 - |y|^2)^k, or 0 for the Gaussian.

    Raises ValueError if alpha is not one of 1, 4/3, 3/2, 2.
    """
    for value, order in _CLOSED_FORM_ORDERS.items():
        if abs(float(alpha) - value) < 1e-6:
            return order
    allowed = "1 (Gaussian), 4/3 (triweight), 3/2 (biweight), 2 (truncated parabola)"
    said = f"alpha={alpha!r} has no closed-form continuous attention; allowed: {allowed}. "
    raise ValueError(f"{said}For the density alone use BetaGaussian(alpha=...).")


def check_alpha(alpha: float) -> float:
    """alpha as a float. Raises ValueError below 1, where the tails are heavy and the support is the whole line."""
    return _ALPHA.check(float(alpha))


def positive(x: Tensor, name: str) -> Tensor:
    """x, checked to be positive. Raises ValueError if it is not; on a GPU, it becomes NaN instead."""
    if row_shapes.asynchronous(x):
        return x.masked_fill(x <= 0, torch.nan)
    if not torch.compiler.is_compiling() and bool((x <= 0).any()):  # NaN passes this check and stays NaN in its own row
        said = f"{name} must be positive, got {x.min().item()}"
        raise ValueError(f"{said}; clamp it (the authors use 1e-6) or use softplus")
    return x


def exponent(alpha: float) -> float:
    """k = 1 / (alpha - 1), the power of the truncated quadratic."""
    return 1.0 / (alpha - 1.0)


def radius(alpha: float, n: int = 1) -> float:
    """The radius R of the support ellipsoid for |Sigma| = 1 in n dimensions; alpha > 1."""
    k = exponent(alpha)
    return math.exp((log_power_constant(k, n) + k * math.log(2 * k)) / (2 * k + n))


def log_power_constant(k: float, n: int) -> float:
    """log C, for the constant C that makes C (1 - |y|^2)^k a density on the unit ball of R^n."""
    return math.lgamma(n / 2 + k + 1) - math.lgamma(k + 1) - n / 2 * math.log(math.pi)


def threshold(log_det: Tensor, alpha: float, n: int) -> Tensor:
    """The threshold tau [...] from log |Sigma| [...]; for alpha = 2, this is the lambda of Eqs. 10 and 11.

    Raises ValueError for alpha = 1.
    """
    if alpha == 1:
        raise ValueError("the Gaussian (alpha=1) has no threshold; use alpha > 1")
    return -0.5 * radius(alpha, n) ** 2 * torch.exp(-log_det / (n + 2 * exponent(alpha)))


def entropy(of: float, alpha: float | None, n: int, log_det: Tensor) -> Tensor:
    """H_alpha [...] of the density for ``of`` in n dimensions from log |Sigma| [...], in nats; None: alpha is ``of``."""
    alpha = of if alpha is None else check_alpha(alpha)
    if of == 1:
        log_volume = 0.5 * (n * math.log(2 * math.pi) + log_det)
        log_power = -0.5 * n * math.log(alpha)  # of int p^alpha for log_volume = 0
        shannon = 0.5 * n
    else:
        k = exponent(of)
        log_c = log_power_constant(k, n)
        log_volume = 0.5 * n * torch.log(-2 * threshold(log_det, of, n)) + 0.5 * log_det  # log |A|
        log_power = alpha * log_c - log_power_constant(k * alpha, n)
        # E[log(1 - |y|^2)], |y|^2 ~ Beta(n / 2, k + 1)
        low, high = torch.digamma(torch.tensor([k + 1, n / 2 + k + 1], dtype=torch.float64)).tolist()
        shannon = -log_c - k * (low - high)
    if alpha == 1:
        return log_volume + shannon
    return (1 - torch.exp(log_power + (1 - alpha) * log_volume)) / (alpha * (alpha - 1))


def half_width(sigma_sq: Tensor, alpha: float) -> Tensor:
    """The half width a = R sigma^(2 / (alpha + 1)) [...] of the support in one dimension; alpha > 1."""
    return radius(alpha) * sigma_sq ** (1.0 / (alpha + 1.0))


def matched_sigma_sq(variance: Tensor, alpha: float) -> Tensor:
    """sigma^2 [...] of the 1-D density whose *variance* is `variance` [...].

    sigma^2 is the variance only for the Gaussian; for alpha = 2 and variance V, it is 2/3 (5 V)^(3/2).
    """
    if check_alpha(alpha) == 1.0:
        return variance
    width_over_radius = torch.sqrt(variance * (1 + 2 * alpha * exponent(alpha))) / radius(alpha)
    return width_over_radius ** (alpha + 1)


def matched_covariance(covariance: Tensor, alpha: float) -> Tensor:
    """Sigma [..., n, n] of the n-D density whose covariance is `covariance` [..., n, n].

    For alpha = 2, n = 2 and covariance V, Sigma = 9 pi sqrt(|V|) V.
    """
    if check_alpha(alpha) == 1.0:
        return covariance
    n, k = covariance.shape[-1], exponent(alpha)
    power = (n + 2 * k) / (2 * k)
    factor = ((n + 2 * alpha * k) / radius(alpha, n) ** 2) ** power * _det(covariance) ** (1 / (2 * k))
    return factor[..., None, None] * covariance


def _det(matrix: Tensor) -> Tensor:
    # The explicit 2 x 2 formula: torch.linalg.det runs a batched LU, which is 20 times slower at these sizes.
    if matrix.shape[-1] == 2:
        return matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
    return torch.linalg.det(matrix)


class MultivariateBetaGaussian:
    """A batch of beta-Gaussians with mu [..., n], Sigma = covariance [..., n, n] and alpha >= 1 (Eq. 11).

        p(t) = [(alpha - 1)(-tau - (t - mu)' Sigma^-1 (t - mu) / 2)]_+^(1/(alpha - 1))

    Eq. 11 is printed without the transpose. For alpha > 1, a diagonal Sigma does not make the coordinates independent.
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
        inner = gammas(self.n / 2, shape[:-1], self.loc, generator)
        outer = gammas(exponent(self.alpha) + 1, shape[:-1], self.loc, generator)
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


def gammas(concentration: float, shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gamma(concentration, 1) samples with the dtype and device of `like`."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    parameter = torch.full(shape, concentration, dtype=dtype, device=like.device)
    return torch._standard_gamma(parameter, generator=generator).to(like.dtype)


@row_shapes.kept()
def jacobi(count: int, power: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Nodes and weights, [count] each, on [-1, 1] for the weight function (1 - y^2)^power, in float64.

    They come from the eigenvalues of the Jacobi matrix (Golub & Welsch 1969), in torch to avoid a dependency.
    They are copied to a device only once, because every copy forces a synchronisation.
    """
    i = torch.arange(1, count, dtype=torch.float64)
    lam = power + 0.5
    off_diagonal = (i * (i + 2 * lam - 1) / (4 * (i + lam) * (i + lam - 1))).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    mass = math.sqrt(math.pi) * math.gamma(power + 1) / math.gamma(power + 1.5)
    return nodes.to(device), (mass * vectors[0] ** 2).to(device)
