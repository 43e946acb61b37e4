"""Densities of the alpha-regularized prediction map (alpha-RPM) on the line.

These are p = argmax E_p[f] + H_alpha(p) (Martins et al. 2020, section 2; beta-Gaussians of Martins et al. 2022):

    f = -(t - mu)^2 / (2 sigma^2)      Gaussian (alpha 1), triweight (4/3), biweight (3/2), truncated parabola (2), and
                                       any other alpha > 1
    f = -|t - mu| / b                  Laplace (1), triangular (2)
    f = -g'(|t - mu| / sigma) / sigma  location-scale family (2), Eq. 13

Parameters are tensors that broadcast to one shape [...]. Every method is differentiable in the parameters; `rsample` is
reparametrised. Entropies, in nats, are the Tsallis entropy H_alpha = (1 - int p^alpha) / (alpha (alpha - 1)) and, for
alpha = 1, the Shannon entropy -int p log p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .family import check_alpha, entropy, exponent, gammas, half_width, jacobi, log_power_constant, positive, threshold

_SQRT_2PI = math.sqrt(2 * math.pi)


class Density:
    """A batch of densities on the line, with batch shape [...].

    `alpha` is the parameter of the entropy that defines this regularized prediction map. Raises ValueError if a scale
    is not positive. (On a GPU, that density is NaN instead.)
    """

    alpha: float

    def __init__(self, loc: Tensor, scale: Tensor, scale_name: str) -> None:
        device = next((x.device for x in (loc, scale) if isinstance(x, Tensor) and x.ndim), None)
        # one number may be elsewhere
        loc, scale = (
            x if isinstance(x, Tensor) and x.ndim else torch.as_tensor(x, device=device) for x in (loc, scale)
        )
        scale = positive(scale, f"{type(self).__name__}: {scale_name}")
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)

    def pdf(self, t: Tensor) -> Tensor:
        """p(t); t and the batch shape [...] broadcast."""
        raise NotImplementedError

    def half_width(self) -> Tensor:
        """Half the length of the support [...]; inf if the support is the whole line."""
        return torch.full_like(self.loc, math.inf)

    def support(self) -> tuple[Tensor, Tensor]:
        """The ends (low [...], high [...]) of the support."""
        return self.loc - self.half_width(), self.loc + self.half_width()

    @property
    def mean(self) -> Tensor:
        """E[t], [...]; the same as the location, because all these densities are symmetric."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance E[(t - mean)^2], [...]."""
        raise NotImplementedError

    def entropy(self, alpha: float | None = None) -> Tensor:
        """H_alpha [...]; alpha = 1 gives the Shannon entropy, and None the entropy that defines this density."""
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Samples [*sample_shape, ...] with gradients with respect to the parameters."""
        noise = self._unit_sample(torch.Size(sample_shape) + self.loc.shape, generator)
        return self.loc + self._unit_scale() * noise

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Samples [*sample_shape, ...] without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def _unit_scale(self) -> Tensor:
        return self.half_width()

    def _unit_sample(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        raise NotImplementedError

    def _uniform(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device, generator=generator)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha:.4g}, shape={tuple(self.loc.shape)})"


class BetaGaussian(Density):
    """p(t) = [(alpha - 1)(-tau - (t - mu)^2 / (2 sigma^2))]_+^(1/(alpha - 1)); alpha = 1 is N(mu, sigma^2).

    Takes mu [...], sigma_sq [...] > 0 and alpha >= 1, and raises ValueError for other values. sigma_sq is the variance
    only for alpha = 1.
    """

    def __init__(self, mu: Tensor, sigma_sq: Tensor, alpha: float = 2.0) -> None:
        self.alpha = check_alpha(alpha)
        super().__init__(mu, sigma_sq, "sigma_sq")

    @property
    def sigma_sq(self) -> Tensor:
        """The parameter sigma^2 [...]."""
        return self.scale

    def half_width(self) -> Tensor:
        return super().half_width() if self.alpha == 1 else half_width(self.scale, self.alpha)

    @property
    def tau(self) -> Tensor:
        """The threshold tau = -a^2 / (2 sigma^2) [...]; for alpha = 2, this is the lambda of Eq. 10.

        Raises ValueError for alpha = 1.
        """
        return threshold(self.scale.log(), self.alpha, 1)

    def pdf(self, t: Tensor) -> Tensor:
        if self.alpha == 1:
            return torch.exp(-0.5 * (t - self.loc).square() / self.scale) / (_SQRT_2PI * self.scale.sqrt())
        a, k = self.half_width(), exponent(self.alpha)
        rest = (1 - ((t - self.loc) / a).square()).clamp(min=0)
        return math.exp(log_power_constant(k, 1)) / a * rest**k

    @property
    def variance(self) -> Tensor:
        if self.alpha == 1:
            return self.scale
        return self.half_width().square() / (1 + 2 * self.alpha * exponent(self.alpha))

    def entropy(self, alpha: float | None = None) -> Tensor:
        return entropy(self.alpha, alpha, 1, self.scale.log())

    def _unit_scale(self) -> Tensor:
        return self.scale.sqrt() if self.alpha == 1 else self.half_width()

    def _unit_sample(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        if self.alpha == 1:
            return torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device, generator=generator)
        # not torch's Beta(c, c), which does not accept a generator
        first, second = (gammas(exponent(self.alpha) + 1, shape, self.loc, generator) for _ in range(2))
        return 2 * first / (first + second) - 1


class Gaussian(BetaGaussian):
    """The Gaussian N(mu, sigma^2), alpha = 1."""

    def __init__(self, mu: Tensor, sigma_sq: Tensor) -> None:
        super().__init__(mu, sigma_sq, 1.0)


class TruncatedParabola(BetaGaussian):
    """The truncated parabola TP(t; mu, sigma^2), alpha = 2 (Eq. 10). sigma^2 = 2/3 gives the Epanechnikov kernel."""

    def __init__(self, mu: Tensor, sigma_sq: Tensor) -> None:
        super().__init__(mu, sigma_sq, 2.0)


class Biweight(BetaGaussian):
    """The beta-Gaussian with alpha = 3/2."""

    def __init__(self, mu: Tensor, sigma_sq: Tensor) -> None:
        super().__init__(mu, sigma_sq, 1.5)


class Triweight(BetaGaussian):
    """The beta-Gaussian with alpha = 4/3."""

    def __init__(self, mu: Tensor, sigma_sq: Tensor) -> None:
        super().__init__(mu, sigma_sq, 4.0 / 3.0)


class Laplace(Density):
    """The Laplace density exp(-|t - mu| / b) / (2 b), alpha = 1, with mu [...] and b [...] > 0."""

    alpha = 1.0

    def __init__(self, mu: Tensor, b: Tensor) -> None:
        super().__init__(mu, b, "b")

    def pdf(self, t: Tensor) -> Tensor:
        return torch.exp(-(t - self.loc).abs() / self.scale) / (2 * self.scale)

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    def entropy(self, alpha: float | None = None) -> Tensor:
        alpha = self.alpha if alpha is None else check_alpha(alpha)
        if alpha == 1:
            return 1 + torch.log(2 * self.scale)
        return (1 - (2 * self.scale) ** (1 - alpha) / alpha) / (alpha * (alpha - 1))

    def _unit_scale(self) -> Tensor:
        return self.scale

    def _unit_sample(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        u = 2 * self._uniform(shape, generator) - 1  # in [-1, 1)
        return -torch.sign(u) * torch.log1p(-u.abs().clamp(max=1 - torch.finfo(u.dtype).eps))


class Triangular(Density):
    """The triangular density [1 / sqrt(b) - |t - mu| / b]_+, alpha = 2 (Eq. 12), with mu [...] and b [...] > 0.

    Its half width is sqrt(b).
    """

    alpha = 2.0

    def __init__(self, mu: Tensor, b: Tensor) -> None:
        super().__init__(mu, b, "b")

    def half_width(self) -> Tensor:
        return self.scale.sqrt()

    def pdf(self, t: Tensor) -> Tensor:
        a = self.half_width()
        return (1 - (t - self.loc).abs() / a).clamp(min=0) / a

    @property
    def variance(self) -> Tensor:
        return self.scale / 6

    def entropy(self, alpha: float | None = None) -> Tensor:
        alpha = self.alpha if alpha is None else check_alpha(alpha)
        a = self.half_width()
        if alpha == 1:
            return torch.log(a) + 0.5
        return (1 - 2 / (alpha + 1) * a ** (1 - alpha)) / (alpha * (alpha - 1))

    def _unit_sample(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self._uniform(shape, generator) - self._uniform(shape, generator)


class LocationScale(Density):
    """[-lambda - g'(|t - mu| / sigma) / sigma]_+, alpha = 2 (Eq. 13), for a convex g on [0, inf) and its derivative.

    The half width is a sigma, where a solves a g'(a) - g(a) + g(0) = 1/2, and lambda = -g'(a) / sigma. g(t) = t^2 / 2
    gives the triangular density with b = sigma^2; g(t) = t^3 / 6 gives the truncated parabola with parameter sigma^3.
    Raises ValueError if the left side stays below 1/2 up to a = 1e12 (g is nearly linear).
    """

    alpha = 2.0

    def __init__(self, mu: Tensor, sigma: Tensor, g: Callable[[Tensor], Tensor], g_prime: Callable[[Tensor], Tensor]):
        super().__init__(mu, sigma, "sigma")
        self.g, self.g_prime = g, g_prime
        self.a = self._edge()
        self._slope = float(g_prime(torch.tensor(self.a, dtype=torch.float64)))

    def _edge(self) -> float:
        def excess(a: float) -> float:
            x = torch.tensor(a, dtype=torch.float64)
            return float(x * self.g_prime(x) - self.g(x) + self.g(torch.zeros_like(x))) - 0.5

        high = 1.0
        while excess(high) < 0:
            high *= 2
            if high > 1e12:
                raise ValueError("g is too nearly linear: a g'(a) - g(a) + g(0) < 1/2 up to a = 1e12; choose another g")
        low = 0.0
        for _ in range(200):
            middle = 0.5 * (low + high)
            if middle in (low, high):
                break
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        return high

    def half_width(self) -> Tensor:
        return self.a * self.scale

    @property
    def threshold(self) -> Tensor:
        """The threshold lambda [...] of Eq. 13."""
        return -self._slope / self.scale

    def pdf(self, t: Tensor) -> Tensor:
        z = (t - self.loc).abs() / self.scale
        # Do not evaluate g' outside the support, where it may be undefined.
        return (self._slope - self.g_prime(z.clamp(max=self.a))).clamp(min=0) / self.scale

    @property
    def variance(self) -> Tensor:
        return self._integral(lambda z, p: z.square() * p) * self.scale.square()

    def entropy(self, alpha: float | None = None) -> Tensor:
        alpha = self.alpha if alpha is None else check_alpha(alpha)
        if alpha == 1:
            return torch.log(self.scale) - self._integral(lambda z, p: torch.special.xlogy(p, p))
        power = self._integral(lambda z, p: p**alpha) * self.scale ** (1 - alpha)
        return (1 - power) / (alpha * (alpha - 1))

    def _integral(self, integrand: Callable[[Tensor, Tensor], Tensor]) -> float:
        """The integral of integrand(|z|, p(z)) over [-a, a] for sigma = 1.

        Uses 200 Gauss points; the error is at most 1e-12 for smooth g.
        """
        nodes, weights = jacobi(200, 0)
        z = 0.5 * self.a * (nodes + 1)
        p = (self._slope - self.g_prime(z)).clamp(min=0)
        return float((integrand(z, p) * weights).sum() * self.a)

    def _unit_scale(self) -> Tensor:
        return self.scale

    def _unit_sample(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        # P(|z| <= x) = 2 (g'(a) x - g(x) + g(0)) is concave and increasing on [0, a], so bisect.
        u = 2 * self._uniform(shape, generator).double() - 1
        low, high = torch.zeros_like(u), torch.full_like(u, self.a)
        at_zero = self.g(torch.zeros((), dtype=u.dtype, device=u.device))
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = 2 * (self._slope * middle - self.g(middle) + at_zero) < u.abs()
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (torch.sign(u) * high).to(self.loc.dtype)
