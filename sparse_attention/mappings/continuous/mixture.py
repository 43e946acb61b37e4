"""Mixtures of Gaussians fitted to discrete attention weights, for attention with several modes.

They are fitted by weighted EM (Farinhas, Martins and Aguiar 2021). Positions t_l have the weights p_l, with sum_l p_l =
1:

    gamma_lk = p_l pi_k N(t_l; mu_k, Sigma_k) / sum_k',   pi_k = sum_l gamma_lk,
    mu_k = sum_l gamma_lk t_l / pi_k,   Sigma_k = sum_l gamma_lk (t_l - mu_k)(t_l - mu_k)' / pi_k + 1e-6 I,

The context is sum_k pi_k B E_k[psi]. The code is batched over examples and restarts; it loops only over the numbers of
components and the iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...describe import Param
from ...rows.shape import in_float64
from .attention1d import continuous_attention_1d
from .attention2d import _inverse, continuous_attention_2d
from .bases import GaussianBasis1d, GaussianBasis2d
from .family import _det, matched_covariance, matched_sigma_sq

COMPONENTS = Param(
    "max_components", low=1, closed_low=True, whole=True, tensor=False, meaning="most Gaussians of a mixture"
)
RESTARTS = Param("restarts", low=1, closed_low=True, whole=True, tensor=False)
VARIANCE = Param("initial_variance", low=0.0, tensor=False)
_FLOOR = 1e-6
_TINY = 1e-300


class Mixture(NamedTuple):
    """A batch of mixtures: pi [B, K], mu [B, K, n], covariance [B, K, n, n] and log_likelihood [B] = sum_l p_l log
    q(t_l).

    These are float64. Some of the K components may be unused, with pi = 0; components [B] is the number of used ones.
    """

    pi: Tensor
    mu: Tensor
    covariance: Tensor
    log_likelihood: Tensor
    components: Tensor

    def pdf(self, t: Tensor) -> Tensor:
        """The density q(t) [B, M] at points t [M, n]."""
        return torch.exp(_log_joint(t.to(self.mu.dtype), self.pi, self.mu, self.covariance)).sum(1)


@in_float64
def fit_mixture(
    weights: Tensor,
    positions: Tensor,
    components: int,
    iterations: int = 10,
    *,
    initial_variance: float = 0.001,
    means: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Mixture:
    """Weighted EM with a given number of components.

    weights [B, L] sum to one (a row of zeros gives pi = 0); positions are [L, n]. The means start at
    `means` [B, K, n], or else at positions drawn from the weights without replacement. All variances start at
    `initial_variance` and all pi at 1 / K. Differentiable in the weights through the iterations. Raises ValueError if
    components is not in 1 .. L.
    """
    length, n = positions.shape
    if not 1 <= components <= length:
        raise ValueError(f"components={components} must lie between 1 and the number of positions, {length}")
    VARIANCE.check(initial_variance)
    if weights.shape[-1] != length:
        raise ValueError(f"weights {tuple(weights.shape)} must have shape [B, {length}], one per position")
    p, t = weights.double(), positions.double()
    mu = _draw_means(p, t, components, _noise(p.shape, p, generator)) if means is None else means.double()
    eye = torch.eye(n, dtype=t.dtype, device=t.device)
    sigma = (initial_variance * eye).expand(len(p), components, n, n)
    pi = p.new_full((len(p), components), 1.0 / components)
    for _ in range(iterations):
        log_joint = _log_joint(t, pi, mu, sigma)  # [B, K, L]
        gamma = p.unsqueeze(1) * torch.softmax(log_joint, dim=1)
        pi = gamma.sum(-1)  # [B, K]
        share = gamma / pi.clamp(min=_TINY).unsqueeze(-1)
        mu = share @ t  # [B, K, n]
        d = t - mu.unsqueeze(-2)  # [B, K, L, n]
        sigma = (share.unsqueeze(-1) * d).mT @ d + _FLOOR * eye
    log_q = torch.logsumexp(_log_joint(t, pi, mu, sigma), dim=1)  # [B, L]
    used = torch.full((len(p),), components, device=p.device)
    return Mixture(pi, mu, sigma, (p * log_q).sum(-1), used)


@in_float64
def select_mixture(
    weights: Tensor,
    positions: Tensor,
    max_components: int = 4,
    iterations: int = 10,
    restarts: int = 3,
    penalty: float = 5.0,
    *,
    generator: torch.Generator | None = None,
) -> Mixture:
    """The mixture of up to max_components that minimises -2 L log-likelihood + penalty * (free parameters).

    A component has 1 + n + n (n + 1) / 2 parameters; the total is one less, because the pi sum to one. L is the
    perplexity of the weights, that is, the number of positions over which attention is effectively spread. It replaces
    the number of positions because weights are not counts: with the number of positions, many components would be
    fitted to a few positions. penalty = log L gives the BIC (5.3 for uniform weights on a 14 x 14 grid). For every
    number of components, the best of `restarts` random starts is used. All examples share the same random numbers, so
    that a result does not depend on the batch. weights are [B, L] and positions [L, n]. Raises ValueError if
    max_components or restarts is below 1.
    """
    COMPONENTS.check(max_components)
    RESTARTS.check(restarts)
    batch, n = len(weights), positions.shape[-1]
    sample_size = torch.exp(-torch.special.xlogy(weights.detach().double(), weights.detach().double()).sum(-1))  # [B]
    repeated = weights.repeat_interleave(restarts, dim=0)
    best: Mixture | None = None
    best_score = weights.new_full((batch,), math.inf, dtype=torch.float64)
    for k in range(1, min(max_components, len(positions)) + 1):
        noise = _noise((restarts, len(positions)), weights, generator).repeat(batch, 1)
        means = _draw_means(repeated.double(), positions.double(), k, noise)
        fits = fit_mixture(repeated, positions, k, iterations, means=means)
        start = fits.log_likelihood.view(batch, restarts).argmax(-1)
        chosen = torch.arange(batch, device=weights.device) * restarts + start
        fit = _pad(Mixture(*(part[chosen] for part in fits)), max_components)
        parameters = k * (1 + n + n * (n + 1) // 2) - 1
        score = (-2 * sample_size * fit.log_likelihood + penalty * parameters).detach()
        if best is not None:
            better = score < best_score
            fit = Mixture(*(torch.where(better.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(fit, best)))
        best, best_score = fit, torch.minimum(score, best_score)
    assert best is not None
    return best


def mixture_expectation(mixture: Mixture, basis: GaussianBasis1d | GaussianBasis2d, alpha: float = 1.0) -> Tensor:
    """r [B, N] = sum_k pi_k E_k[psi].

    alpha > 1 replaces every component by the beta-Gaussian with the same mean and covariance.
    """
    if mixture.mu.shape[-1] != basis.dim:
        raise ValueError(f"the mixture has {mixture.mu.shape[-1]} coordinates, the basis {basis.dim}; give as many")
    if isinstance(basis, GaussianBasis1d):
        sigma_sq = matched_sigma_sq(mixture.covariance[..., 0, 0], alpha)
        r = continuous_attention_1d(mixture.mu[..., 0], sigma_sq, basis, alpha)
    else:
        r = continuous_attention_2d(mixture.mu, matched_covariance(mixture.covariance, alpha), basis, alpha)
    return (mixture.pi.unsqueeze(-2) @ r).squeeze(-2)


def _log_joint(t: Tensor, pi: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """log pi_k + log N(t_l; mu_k, Sigma_k), [B, K, L]."""
    n = t.shape[-1]
    d = t - mu.unsqueeze(-2)  # [B, K, L, n]
    energy = ((d @ _inverse(sigma)) * d).sum(-1)
    log_weight = torch.log(pi.clamp(min=_TINY)) - 0.5 * torch.log(_det(sigma)) - 0.5 * n * math.log(2 * math.pi)
    return log_weight.unsqueeze(-1) - 0.5 * energy


def _noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Samples of the standard Gumbel distribution."""
    device = like.device if generator is None else generator.device
    uniform = torch.rand(tuple(shape), dtype=torch.float64, device=device, generator=generator)
    return -torch.log(-torch.log(uniform.clamp(min=_TINY))).to(like.device, non_blocking=True)


def _draw_means(p: Tensor, t: Tensor, components: int, noise: Tensor) -> Tensor:
    """Distinct positions [B, K, n] drawn from the weights: those with the largest log p + Gumbel noise [B, L].

    A small constant is added to the weights, so that K positions can be drawn even if fewer have nonzero weight.
    """
    with torch.no_grad():
        return t[(torch.log(p.clamp(min=0) + 1e-9) + noise).topk(components, dim=-1).indices]


def _pad(m: Mixture, components: int) -> Mixture:
    """The mixture padded with unused components, which copy a used one so that they are valid densities."""
    missing = components - m.pi.shape[1]
    if missing == 0:
        return m
    return Mixture(
        torch.cat([m.pi, m.pi.new_zeros(len(m.pi), missing)], dim=1),
        torch.cat([m.mu, m.mu[:, :1].expand(-1, missing, -1)], dim=1),
        torch.cat([m.covariance, m.covariance[:, :1].expand(-1, missing, -1, -1)], dim=1),
        m.log_likelihood,
        m.components,
    )
