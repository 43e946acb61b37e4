"""Continuous attention on the line: rho(mu, sigma^2)_j = E_p[psi_j], where p is a beta-Gaussian and psi_j are
Gaussians.

Martins et al. 2020, Eq. 15. There are closed forms for alpha in {1, 4/3, 3/2, 2}. With k = 1 / (alpha - 1) and half
width a,

    rho_j    = C int (1 - y^2)^k N(mu + a y; mu_j, s_j^2) dy  over [-1, 1],
    d/d mu   = (C / a) int 2 k y (1 - y^2)^(k-1) N dy,
    d/d a    = (C / a) int [2 k y^2 - (1 - y^2)] (1 - y^2)^(k-1) N dy       (both by integration by parts),

so one set of integrals S_i = int (1 - y^2)^(k-1) y^i N dy, i = 0, 1, 2, gives both the value and the gradient. These
integrals are expectations under the escort density p^(2 - alpha): this is the generalised covariance of Eq. 18 in the
coordinates (mu, a). The S_i are sums of truncated normal moments. These moments cancel when psi_j is much wider than
the support; in that case, a ten-point Gauss-Jacobi rule is used, which is exact to machine precision there. The
computation is in float64 and is rounded once. Cost O(N) per example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...rows import shape as row_shapes
from .bases import GaussianBasis1d
from .family import closed_form_order, half_width, jacobi, positive

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1.0 / math.sqrt(2 * math.pi)
# The moment sums lose a factor (width / half width)^(2k + 2) of the float64 precision. Below these ratios of half
# width to basis width (by order k), quadrature is used instead, so that at most about 1e-11 is lost.
_NARROW = {1: 0.1, 2: 0.25, 3: 0.5}
_NODES = 10


@row_shapes.in_float64
def continuous_attention_1d(mu: Tensor, sigma_sq: Tensor, basis: GaussianBasis1d, alpha: float = 2.0) -> Tensor:
    """Expected basis functions r [..., N] under the density with location mu [...] and parameter sigma_sq [...].

    Gradients of any order with respect to mu and sigma_sq are exact. sigma_sq is the variance only for alpha = 1
    (`family.matched_sigma_sq` converts a variance). Raises ValueError if alpha is not in {1, 4/3, 3/2, 2}, the shapes
    do not broadcast, or sigma_sq <= 0. (On a GPU, a row with sigma_sq <= 0 becomes NaN instead.)
    """
    order = closed_form_order(alpha)
    try:
        torch.broadcast_shapes(mu.shape, sigma_sq.shape)
    except RuntimeError:
        raise ValueError(
            f"mu {tuple(mu.shape)} and sigma^2 {tuple(sigma_sq.shape)} must broadcast for a basis on the line; "
            "for the plane use GaussianBasis2d"
        ) from None
    sigma_sq = positive(sigma_sq, "sigma_sq")
    centres, widths = basis.tensors(mu.device)
    loc, variance = torch.broadcast_tensors(mu.double(), sigma_sq.double())
    if order == 0:  # the product of two Gaussians integrates to a Gaussian: N(mu; mu_j, sigma^2 + s_j^2)
        total, d = variance.unsqueeze(-1) + widths.square(), loc.unsqueeze(-1) - centres
        r = torch.exp(-0.5 * d.square() / total) * torch.rsqrt(total) * _INV_SQRT_2PI
    else:
        r = edge_expectation(loc, half_width(variance, alpha), centres, widths, order)
    dtype = torch.promote_types(mu.dtype, sigma_sq.dtype)
    return r.to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def edge_expectation(loc: Tensor, scale: Tensor, centres: Tensor, widths: Tensor, order: int) -> Tensor:
    """rho [..., N] in float64 for a density C (1 - y^2)^order with location loc [...] and half width scale [...].

    The two-dimensional transform calls this function for every slice of the support.
    """
    rule = partial(_value_and_jacobian, k=order)
    return WithJacobian.apply(rule, _by_parts, loc, scale, centres, widths)  # type: ignore[no-any-return]


def _by_parts(grad: Tensor, inputs: Any, value: Tensor, *parts: Tensor) -> list[Tensor]:
    return [torch.linalg.vecdot(grad, part) for part in parts]


class WithJacobian(torch.autograd.Function):
    """A value that is computed together with what its gradient needs, so that backward is a product.

    ``rule(*inputs)`` returns the value and tensors to keep; ``product(grad, inputs, value, *kept)`` returns the gradients
    of the first two inputs. Other inputs are constants.
    """

    @staticmethod
    def forward(ctx: Any, rule: Callable[..., Any], product: Callable[..., Any], *inputs: Tensor) -> Tensor:
        value, *kept = rule(*inputs)
        ctx.save_for_backward(*inputs, value, *kept)
        ctx.rule, ctx.product, ctx.count = rule, product, len(inputs)
        return value  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, found = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():  # double backward: recompute differentiably
            found = ctx.rule(*inputs)
        return None, None, *ctx.product(grad, inputs, *found), *[None] * (ctx.count - 2)


def _value_and_jacobian(
    loc: Tensor, scale: Tensor, centres: Tensor, widths: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(rho, d rho / d loc, d rho / d scale), each [..., N], computed by differentiable torch operations."""
    a = scale.unsqueeze(-1)
    inverse = a.reciprocal()
    m = (centres - loc.unsqueeze(-1)) * inverse  # [..., N] centres in the coordinates of the interval [-1, 1]
    narrow = a < _NARROW[k] * widths  # [..., N]
    everywhere = row_shapes.asynchronous(narrow)  # compute both rules everywhere, to avoid a synchronisation
    some_narrow = everywhere or bool(narrow.any())
    # The closed form is also evaluated where it is not used; a width of 1 there keeps its gradient finite.
    s = torch.where(narrow, 1.0, widths * inverse) if some_narrow else widths * inverse
    s0, s1, s2 = _moment_sums(m, s, k)
    if everywhere:
        exact = _quadrature_sums(m, widths * inverse, k)
        s0, s1, s2 = (torch.where(narrow, e, closed) for closed, e in zip((s0, s1, s2), exact))
    elif some_narrow:
        exact = _quadrature_sums(m[narrow], (widths * inverse)[narrow], k)
        s0, s1, s2 = (closed.masked_scatter(narrow, e) for closed, e in zip((s0, s1, s2), exact))
    per_length = _edge_constant(k) * inverse
    per_area = per_length * inverse
    value = per_length * (s0 - s2)
    return value, (2 * k) * per_area * s1, per_area * torch.sub((2 * k + 1) * s2, s0)


def _edge_constant(k: int) -> float:
    """The constant C that makes C (1 - y^2)^k a density on [-1, 1]: 3/4, 15/16, 35/32."""
    return math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))


def _moment_sums(m: Tensor, s: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """S_0, S_1, S_2 of N(y; m, s^2), each [..., N], from the moments M_i = int_{-1}^{1} y^i N dy.

    M_i = h M_{i-1} + (i-1) s^2 M_{i-2} - s [y^(i-1) phi]. By symmetry, the centre can be moved to h = |m|. Both ends
    are then below the centre when psi_j is outside the support, and erfc gives M_0 with full relative precision.
    """
    sign = torch.copysign(torch.ones((), dtype=m.dtype, device=m.device), m.detach())
    h = sign * m
    # Standardised distances (over sqrt 2) from the centre down to y = -1 and to y = 1, in one tensor [2, ..., N].
    z = torch.stack([h + 1, h - 1]) * (_SQRT_HALF / s)
    below = torch.special.erfc(z)
    phi = torch.exp(-z.square()) * (_INV_SQRT_2PI * s)
    odd_edge, even_edge = phi[1] - phi[0], phi[1] + phi[0]
    moments = [0.5 * (below[1] - below[0])]
    moments.append(h * moments[0] - odd_edge)
    variance = s.square()
    for i in range(2, 2 * k + 1):
        edge = odd_edge if i % 2 else even_edge
        moments.append(h * moments[-1] + (i - 1) * variance * moments[-2] - edge)
    s0, s1, s2 = (_against_power(moments[i:], k - 1) for i in range(3))
    return s0, sign * s1, s2


def _against_power(moments: list[Tensor], power: int) -> Tensor:
    """int (1 - y^2)^power g, computed from the moments int y^(2i) g = moments[2i]."""
    total = moments[0]
    for i in range(1, power + 1):
        total = total + ((-1) ** i * math.comb(power, i)) * moments[2 * i]
    return total


def _quadrature_sums(m: Tensor, s: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """S_0, S_1, S_2 [M] for functions much wider than the support (s >= 2), where the rule is exact up to rounding."""
    y, weight = jacobi(_NODES, k - 1, m.device)
    density = torch.exp(-0.5 * ((y - m.unsqueeze(-1)) / s.unsqueeze(-1)).square()) * (_INV_SQRT_2PI / s.unsqueeze(-1))
    sums = density @ torch.stack([weight, weight * y, weight * y.square()], dim=-1)  # [M, 3]
    return sums[..., 0], sums[..., 1], sums[..., 2]
