"""The angular rule: rho(mu, A) on the plane for Gaussian functions with any centres and covariances.

In polar coordinates y = u a with a = (cos v, sin v), the basis function is Gaussian along each ray:

    N(mu + A y; mu_j, Sigma_j) = exp(-(e - u_0^2 / s^2) / 2 - (u - u_0)^2 / (2 s^2)) / Z,
    s^2 = 1 / (a' P a),   u_0 = s^2 a' q,   P = A' Sigma_j^-1 A,   q = A' Sigma_j^-1 (mu_j - mu),
    e = |mu_j - mu|^2 in the metric Sigma_j^-1,   Z = 2 pi sqrt(|Sigma_j|),

so rho_j and its gradient are sums over v of the radial moments m_i = int_0^1 u^i exp(...) du (Martins et al. 2020,
App. G):

    rho_j      = C int (m_1 - m_3) dv                             for k = 1, and with (1 - u^2)^k in general,
    d / d mu   = C A^-T int 2 k a (m_2 (1 - u^2)^(k-1)) dv,
    d / d A    = C A^-T int (2 k a a' [m_3 (1 - u^2)^(k-1)] - I [m_1 (1 - u^2)^k]) dv.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...rows import shape as row_shapes
from .attention1d import _SQRT_HALF, WithJacobian, _against_power
from .family import jacobi

# The radial moments lose a factor s^(2k + 2) of the float64 precision when the function is wider than the disk. From
# this width on, twelve Gauss points are exact, so quadrature is used instead.
_WIDE = 1.5


def angular_expectation(
    loc: Tensor, shape: Tensor, centres: Tensor, covariances: Tensor, order: int, angles: Tensor, weights: Tensor
) -> Tensor:
    """rho [B, N] in float64.

    loc is [B, 2]; shape [B, 3] holds (a, c, b) of A = [[a, 0], [c, b]]; angles are [K] or [B, K], with weights [K].
    """
    inputs = loc, shape, centres, covariances, angles, weights
    return WithJacobian.apply(partial(_value_and_jacobian, k=order), _product, *inputs)  # type: ignore[no-any-return]


def _product(grad: Tensor, inputs: Any, value: Tensor, jacobian: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.einsum("bn,bnp->bp", grad, jacobian)
    return both[:, :2], both[:, 2:]


def _value_and_jacobian(
    loc: Tensor, shape: Tensor, centres: Tensor, covariances: Tensor, angles: Tensor, weights: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """rho [B, N] and its derivatives [B, N, 5] with respect to (mu_1, mu_2, a, c, b)."""
    a, c, b = (x.unsqueeze(-1) for x in shape.unbind(-1))  # [B, 1]
    precision = torch.linalg.inv(covariances)  # [2, 2] or [N, 2, 2]
    p11, p12, p22 = precision[..., 0, 0], precision[..., 0, 1], precision[..., 1, 1]
    d1, d2 = centres[:, 0] - loc[:, :1], centres[:, 1] - loc[:, 1:]  # [B, N]
    w1, w2 = p11 * d1 + p12 * d2, p12 * d1 + p22 * d2
    q1, q2 = a * w1 + c * w2, b * w2
    energy = d1 * w1 + d2 * w2
    f11 = a * a * p11 + 2 * a * c * p12 + c * c * p22  # A' P A, [B, N] or [B, 1]
    f12 = b * (a * p12 + c * p22)
    f22 = b * b * p22
    cosine, sine = torch.cos(angles), torch.sin(angles)
    circle = torch.stack([cosine, sine, cosine**2, cosine * sine, sine**2], dim=-1)  # [K, 5] or [B, K, 5]
    circle = circle * weights.unsqueeze(-1)
    if angles.ndim == 2:
        cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)  # [B, 1, K]

    f11, f12, f22, q1, q2, energy = (x.unsqueeze(-1) for x in (f11, f12, f22, q1, q2, energy))
    s_sq = 1.0 / (f11 * cosine**2 + 2 * f12 * (cosine * sine) + f22 * sine**2)  # [B, N or 1, K]
    u0 = s_sq * (q1 * cosine + q2 * sine)  # [B, N, K]
    s_sq = s_sq.expand_as(u0)
    # The squared distance of the ray's line from the centre; clamp it, so that rounding cannot make it negative.
    away = (energy - u0.square() / s_sq).clamp(min=0.0)
    mass, first, second = _radial(u0, s_sq.sqrt(), away, k)

    norm = (k + 1) / math.pi / (2 * math.pi) * precision.det().sqrt()  # [] or [N]
    value = (mass @ weights) * norm  # also the trace in d / d A
    g1, g2 = (2 * k * (first @ circle[..., :2]) * norm.unsqueeze(-1)).unbind(-1)  # [B, N]
    h11, h12, h22 = (2 * k * (second @ circle[..., 2:]) * norm.unsqueeze(-1)).unbind(-1)
    # A^-T = [[1/a, -c/(a b)], [0, 1/b]] applied on the left.
    d_mu = torch.stack([g1 / a - c / (a * b) * g2, g2 / b], dim=-1)
    d_shape = torch.stack([(h11 - value) / a - c / (a * b) * h12, h12 / b, (h22 - value) / b], dim=-1)
    return value, torch.cat([d_mu, d_shape], dim=-1)


def _radial(u0: Tensor, s: Tensor, away: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The integrals over [0, 1] of g(u) exp(-away / 2 - (u - u0)^2 / (2 s^2)) for three functions g.

    With w = 1 - u^2, these are g = u w^k, u^2 w^(k-1) and u^3 w^(k-1).
    """
    wide = s > _WIDE
    everywhere = row_shapes.asynchronous(wide)  # compute both rules everywhere, to avoid a synchronisation
    some_wide = everywhere or bool(wide.any())
    moments = _radial_moments(u0, torch.where(wide, 1.0, s) if some_wide else s, 2 * k + 1)
    mass = _against_power(moments[1:], k)
    first = _against_power(moments[2:], k - 1)
    second = _against_power(moments[3:], k - 1)
    if some_wide:
        nodes, weight = jacobi(12, 0, u0.device)
        u, weight = (nodes + 1) / 2, weight / 2
        at, width = (u0, s) if everywhere else (u0[wide], s[wide])
        z = (u - at.unsqueeze(-1)) / width.unsqueeze(-1)
        w = 1 - u.square()
        rule = torch.stack([u * w**k, u**2 * w ** (k - 1), u**3 * w ** (k - 1)], dim=-1) * weight.unsqueeze(-1)
        exact = (torch.exp(-0.5 * z.square()) @ rule).unbind(-1)
        merge = torch.where if everywhere else lambda where, e, x: x.masked_scatter(where, e)
        mass, first, second = (merge(wide, e, x) for x, e in zip((mass, first, second), exact))
    far = torch.exp(-0.5 * away)
    return far * mass, far * first, far * second


def _radial_moments(u0: Tensor, s: Tensor, highest: int) -> list[Tensor]:
    """The integrals int_0^1 u^i exp(-(u - u0)^2 / (2 s^2)) du for i = 0 .. highest."""
    # Measure both ends outwards, on the side of [0, 1] where the centre is, so that erfc stays precise in the tail.
    right = u0 > 0.5
    near = torch.where(right, u0 - 1, -u0) / s
    far = torch.where(right, u0, 1 - u0) / s
    scale = s * math.sqrt(math.pi / 2)
    moments = [scale * (torch.special.erfc(_SQRT_HALF * near) - torch.special.erfc(_SQRT_HALF * far))]
    s_sq = s.square()
    at_one = s_sq * torch.exp(-0.5 * ((1 - u0) / s).square())
    at_zero = s_sq * torch.exp(-0.5 * (u0 / s).square())
    moments.append(u0 * moments[0] + at_zero - at_one)
    for i in range(2, highest + 1):
        moments.append(u0 * moments[-1] + (i - 1) * s_sq * moments[-2] - at_one)
    return moments
