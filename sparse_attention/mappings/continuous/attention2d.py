"""Continuous attention on the plane: rho(mu, Sigma)_j = E_p[psi_j], where p is a beta-Gaussian and psi_j are Gaussians.

Martins et al. 2020, Eq. 15, for alpha in {1, 4/3, 3/2, 2}. For alpha = 1, the result is N(mu; mu_j, Sigma + Sigma_j).
Otherwise, with t = mu + A y, y in the unit disk and A lower triangular (see `family`),

    rho_j = C int (1 - |y|^2)^k N(mu + A y; mu_j, Sigma_j) dy.

There are three rules for the integral:

slices      (the default for grid bases) y = (cos phi, sin phi q). For a fixed first coordinate, the rest is
            one-dimensional attention with half width sin(phi) A_22, which has a closed form. Since psi_j = psi_row
            psi_column, the slices of all columns are computed once per batch element and combined with the rows in
            one matrix product.
angular     (the default for all other bases) polar coordinates, with the radial integral in closed form.
paper-code  the authors' angular rule: 100 angles from 0 to 2 pi *with both ends*, so that angle 0 counts twice. The
            resulting error of r is up to 8 % for wide attention. Use it only to reproduce the authors' numbers.

Both integrands are periodic and entire in phi, so equally spaced angles converge faster than any power. `angles_needed`
turns this into a number of angles with a proven error bound. Cost per example with K angles: slices takes O(K (rows +
columns) + K N) multiplications but only O(K (rows + columns)) exponentials; angular takes O(K N) exponentials.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ...describe import Param
from ...rows import shape as row_shapes
from .attention1d import WithJacobian, _edge_constant, edge_expectation
from .bases import GaussianBasis2d
from .family import _det, closed_form_order, exponent, radius
from .polar import angular_expectation

QUADRATURES = ("auto", "slices", "angular", "paper-code")
QUADRATURE = Param("quadrature", choices=QUADRATURES, tensor=False, meaning="rule on the plane; no effect on the line")
_PAPER_CODE_ANGLES = 100
_MAX_ELEMENTS = 2**22  # float64 numbers in one working tensor, 32 MiB


@row_shapes.in_float64
def continuous_attention_2d(
    mu: Tensor,
    covariance: Tensor,
    basis: GaussianBasis2d,
    alpha: float = 2.0,
    *,
    quadrature: str = "auto",
    tolerance: float | None = None,
) -> Tensor:
    """Expected basis functions r [..., N] under the density with mu [..., 2] and Sigma = covariance [..., 2, 2].

    The number of points on the circle is what the error bound requires for an error of `tolerance` relative to the largest
    r; by default, 1e-7 for float32 inputs and 1e-12 for float64.
    Gradients with respect to mu and Sigma (taken as symmetric) are exact: `slices` differentiates the rule, and the
    angular rules use the closed-form derivative of the integral. Sigma is the covariance only for alpha = 1
    (`family.matched_covariance` converts a covariance). Raises ValueError if alpha or quadrature is unknown, if
    `slices` is used with a basis that is not a grid, if Sigma is not positive definite, or if the shapes do not fit.
    """
    if mu.shape[-1:] != (2,) or covariance.shape[-2:] != (2, 2) or basis.dim != 2:
        given = f"{tuple(mu.shape)}, {tuple(covariance.shape)} and {basis!r}; on a line, use continuous_attention_1d"
        raise ValueError(f"on the plane, mu [..., 2], sigma [..., 2, 2] and a GaussianBasis2d are needed, got {given}")
    order = closed_form_order(alpha)
    rule = check_quadrature(quadrature, basis, alpha)
    dtype = torch.promote_types(mu.dtype, covariance.dtype)
    batch = torch.broadcast_shapes(mu.shape[:-1], covariance.shape[:-2])
    loc = mu.double().expand(*batch, 2).reshape(-1, 2)
    sigma = covariance.double().expand(*batch, 2, 2).reshape(-1, 2, 2)
    sigma = _checked_positive_definite(sigma)
    if order == 0:
        r = gaussian_expectation_2d(loc, sigma, basis)
    else:
        shape = _support_map(0.5 * (sigma + sigma.mT), alpha)
        tolerance = tolerance if tolerance is not None else 1e-7 if dtype != torch.float64 else 1e-12
        r = _truncated(loc, shape, basis, order, rule, tolerance)
    return r.reshape(*batch, len(basis)).to(dtype)


def gaussian_expectation_2d(mu: Tensor, sigma: Tensor, basis: GaussianBasis2d) -> Tensor:
    """N(mu; mu_j, Sigma + Sigma_j) [B, N] for mu [B, 2] and sigma [B, 2, 2], in float64."""
    centres, covariances = basis.tensors(mu.device)
    if covariances.ndim > 2:
        total = 0.5 * (sigma + sigma.mT).unsqueeze(-3) + covariances  # [B, N, 2, 2]
        d = mu.unsqueeze(-2) - centres
        energy = torch.einsum("bni,bnij,bnj->bn", d, _inverse(total), d)
        return torch.exp(-0.5 * energy) / (2 * math.pi * _det(total).sqrt())
    origin, features = _monomials(basis, mu.device)
    inputs = mu - origin, sigma + covariances, features
    return WithJacobian.apply(_shared_gaussian, _shared_gradients, *inputs)  # type: ignore[no-any-return]


def _shared_gradients(grad: Tensor, inputs: tuple[Tensor, ...], r: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Every gradient is a polynomial moment of grad * r over the basis functions."""
    mu, _, features = inputs
    sums = (grad * r) @ features.mT  # [B, 7] sums of grad r times 1, x and x x'
    zeroth, first, second = sums[:, :1], sums[:, 1:3], sums[:, 3:].unflatten(-1, (2, 2))
    centred = first - zeroth * mu  # centred at mu, [B, 2]
    cross = mu.unsqueeze(-1) * first.unsqueeze(-2)
    spread = second - cross.mT - centred.unsqueeze(-1) * mu.unsqueeze(-2)  # [B, 2, 2]
    by_mu = (precision @ centred.unsqueeze(-1)).squeeze(-1)
    return by_mu, 0.5 * (precision @ spread @ precision - zeroth.unsqueeze(-1) * precision)


def _shared_gaussian(mu: Tensor, total: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """N(mu; mu_j, S) [B, N] with one S = total [B, 2, 2] per example, and the precision S^-1 [B, 2, 2].

    The exponent is a polynomial in mu_j whose coefficients are computed once per example. Forward and backward are
    therefore one matrix product each with the monomials [7, N].
    """
    s11, s12, s21, s22 = total.flatten(1).unbind(-1)
    s12 = 0.5 * (s12 + s21)
    det = s11 * s22 - s12 * s12
    precision = (torch.stack([s22, -s12, -s12, s11], dim=-1) / det.unsqueeze(-1)).unflatten(-1, (2, 2))
    linear = (precision @ mu.unsqueeze(-1)).squeeze(-1)
    constant = -0.5 * (torch.linalg.vecdot(linear, mu) + torch.log(det)) - math.log(2 * math.pi)
    coefficients = torch.cat([constant.unsqueeze(-1), linear, -0.5 * precision.flatten(1)], dim=-1)  # [B, 7]
    return torch.exp(coefficients @ features), precision


@row_shapes.kept(32)
def _monomials(basis: GaussianBasis2d, device: torch.device) -> tuple[Tensor, Tensor]:
    """The mean of the centres [2], and the monomials 1, x, y, x x, x y, y x, y y of the centred centres, [7, N]."""
    # Centring keeps the terms of the polynomial small, so that little precision is lost by cancellation.
    centres, _ = basis.tensors(device)
    origin = centres.mean(0)
    x, y = (centres - origin).unbind(-1)
    return origin, torch.stack([torch.ones_like(x), x, y, x * x, x * y, x * y, y * y])


def _support_map(sigma: Tensor, alpha: float) -> Tensor:
    """The entries (a, c, b), [B, 3], of A = [[a, 0], [c, b]], for which the support is {mu + A y : |y| <= 1}."""
    s11, s12, s22 = sigma[:, 0, 0], sigma[:, 0, 1], sigma[:, 1, 1]
    det = s11 * s22 - s12 * s12
    root = s11.sqrt()
    factor = radius(alpha, 2) * det ** (-0.5 / (2 + 2 * exponent(alpha)))
    return torch.stack([root, s12 / root, (det / s11).sqrt()], dim=-1) * factor.unsqueeze(-1)


def _truncated(loc: Tensor, shape: Tensor, basis: GaussianBasis2d, order: int, rule: str, tolerance: float) -> Tensor:
    """rho [B, N] by the given rule. The batch is split into pieces so that no working tensor is large."""
    if len(loc) == 0:
        return loc.new_zeros(0, len(basis)) + 0.0 * (loc.sum() + shape.sum())
    paper = rule == "paper-code"
    count = _PAPER_CODE_ANGLES if paper else angles_needed(_sharpness(shape, basis), tolerance, order)
    angles, weights = _circle(rule, count, loc.device)
    width = len(basis) if rule != "slices" else 2 * max(len(axis[0]) for axis in basis.axes())
    rows = max(1, _MAX_ELEMENTS // (len(angles) * width))
    pieces = []
    for at, form in zip(loc.split(rows), shape.split(rows)):
        if rule == "slices":
            pieces.append(_by_slices(at, form, basis, order, angles, weights))
        else:
            # The authors map the disk by the symmetric root of Sigma, which is A times a rotation. The rotation matters
            # because the paper-code rule counts one angle twice.
            a, c, b = form.detach().unsqueeze(-1).unbind(1)
            turned = angles + torch.atan2(-c, a + b) if paper else angles
            pieces.append(angular_expectation(at, form, *basis.tensors(loc.device), order, turned, weights))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _by_slices(
    loc: Tensor, shape: Tensor, basis: GaussianBasis2d, order: int, angles: Tensor, weights: Tensor
) -> Tensor:
    """rho [B, N], the sum over slices of N(first coordinate; row) times one-dimensional attention over the columns."""
    (rows, row_width), (columns, column_width) = basis.axes(loc.device)
    cosine, sine = torch.cos(angles), torch.sin(angles)
    a, c, b = (x.unsqueeze(-1) for x in shape.unbind(-1))  # [B, 1]
    first = loc[:, :1] + a * cosine  # [B, K] first coordinates of the slices
    second = loc[:, 1:] + c * cosine  # [B, K] midpoints of the slices
    z = (first.unsqueeze(-1) - rows) / row_width  # [B, K, rows]
    # A slice has the mass sin^(2k+1) C_2 / C_1; d(cos phi) contributes one more sine.
    mass = weights * sine ** (2 * order + 2) * ((order + 1) / math.pi / _edge_constant(order))  # [K]
    at_rows = torch.exp(-0.5 * z.square()) * (mass.unsqueeze(-1) / (row_width * math.sqrt(2 * math.pi)))
    at_columns = edge_expectation(second, b * sine, columns, column_width, order)  # [B, K, columns]
    return (at_rows.mT @ at_columns).flatten(1)


def _sharpness(shape: Tensor, basis: GaussianBasis2d) -> float:
    """The largest singular value of Sigma_j^(-1/2) A over the batch, which measures the support in basis widths."""
    with torch.no_grad():
        a, c, b = shape.unbind(-1)
        covariances = basis.tensors(shape.device)[1]
        # The largest eigenvalue of A' P A. If the Sigma_j differ, P has the largest precision in every direction.
        if covariances.ndim == 2:
            p = _inverse(covariances)
        else:
            sharpest = torch.linalg.eigvalsh(covariances)[:, 0].min().reciprocal()
            p = sharpest * torch.eye(2, dtype=a.dtype, device=a.device)
        trace = p[0, 0] * a * a + 2 * p[0, 1] * a * c + p[1, 1] * (c * c + b * b)
        det = _det(p) * (a * b).square()
        largest = 0.5 * (trace + (trace.square() - 4 * det).clamp(min=0).sqrt())
        return math.sqrt(torch.nan_to_num(largest, nan=0.0, posinf=1e12).max().item())


def angles_needed(sharpness: float, tolerance: float, order: int = 1) -> int:
    """The number of points on the circle for an error below `tolerance`, relative to the largest possible r.

    Off the real axis the integrand grows at most like exp(kappa^2 sinh(eta)^2 / 2) cosh(eta)^(2k+2), kappa =
    `sharpness`, so the error of M equally spaced points is at most 2 exp(-M eta) times this bound for every eta; the
    best eta is found on a grid. An additional factor (1 + kappa^2) is included because r of a wide density is smaller
    than the peak of psi_j by this factor.
    """
    # Round the sharpness up to a coarse grid, so that similar batches share a cache entry and tensor shapes.
    step = math.ceil(12 * math.log2(max(sharpness, 0.1)))
    return _angles_for(2.0 ** (step / 12), tolerance, order)


@functools.lru_cache(maxsize=1024)
def _angles_for(kappa: float, tolerance: float, order: int) -> int:
    target = math.log(2 * (1 + kappa * kappa) / tolerance)
    eta = torch.logspace(-4, 1, 2000, dtype=torch.float64)
    growth = 0.5 * (kappa * torch.sinh(eta)).square() + (2 * order + 2) * torch.log(torch.cosh(eta))
    points = ((growth + target) / eta).min().item()
    return 2 * math.ceil(points / 2)


@row_shapes.kept(512)
def _circle(rule: str, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The angles of `count` points on the full circle, and their weights.

    Slices fold them onto (0, pi): their integrand is even, and 0 at both ends. In the authors' rule, the angles include
    both 0 and 2 pi, and every weight is 2 pi / count.
    """
    half = max(count // 2, 2)
    first, last, step = (1, half, math.pi / half) if rule == "slices" else (0, count, 2 * math.pi / count)
    angles = torch.arange(first, last, dtype=torch.float64, device=device) * step
    if rule == "paper-code":
        angles = torch.linspace(0.0, 2 * math.pi, count, dtype=torch.float64, device=device)
    return angles, torch.full_like(angles, step)


def check_quadrature(quadrature: str, basis: GaussianBasis2d, alpha: float) -> str:
    """The rule to use. Raises ValueError if it is unknown or cannot be used with the basis or with alpha."""
    QUADRATURE.check(quadrature)
    if quadrature == "slices" and not basis.separable:
        raise ValueError(
            "quadrature='slices' needs centres on a grid and one diagonal covariance (GaussianBasis2d.grid); use 'auto'"
        )
    if quadrature == "paper-code" and closed_form_order(alpha) > 1:
        raise ValueError("quadrature='paper-code' exists only for alpha 1 and 2, as in the authors' code; use 'auto'")
    if quadrature == "auto":
        return "slices" if basis.separable else "angular"
    return quadrature


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse of a matrix [..., D, D]; by the adjugate if D = 2."""
    if matrix.shape[-1] != 2:
        return torch.linalg.inv(matrix)
    (m11, m12), (m21, m22) = (row.unbind(-1) for row in matrix.unbind(-2))
    det = m11 * m22 - m12 * m21
    return torch.stack([m22, -m12, -m21, m11], dim=-1).unflatten(-1, (2, 2)) / det[..., None, None]


def _checked_positive_definite(sigma: Tensor) -> Tensor:
    """sigma [B, 2, 2], checked to be positive definite.

    Raises ValueError for a matrix that is not. On a GPU such a matrix becomes NaN instead; compiled code does not
    check.
    """
    if torch.compiler.is_compiling():
        return sigma
    s11, s12, s21, s22 = sigma.detach().flatten(1).unbind(-1)
    # NaN passes this check and stays NaN in its own row.
    bad = torch.minimum(s11 * s22 - (0.5 * (s12 + s21)).square(), s11) <= 0
    if row_shapes.asynchronous(sigma):
        return sigma.masked_fill(bad[:, None, None], torch.nan)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"covariance number {first} is not positive definite (read as symmetric): {sigma[first].tolist()}; "
            "add a multiple of the identity (the authors add 1e-6)"
        )
    return sigma
