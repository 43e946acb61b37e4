"""The closed forms on the line against adaptive quadrature, the generalised covariance and finite differences."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integrals import line, t64

from sparse_attention.mappings import continuous as ct

ALPHAS = [1.0, 4 / 3, 1.5, 2.0]
BASIS = ct.GaussianBasis1d(
    torch.tensor([0.0, 0.25, 0.5, 1.0, 0.1, 0.9, 0.5], dtype=torch.float64),
    torch.tensor([0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.03], dtype=torch.float64),
)


def bump(density, function, centre, width):
    """int function(t, p(t)) N(t; centre, width^2) dt."""

    def weighted(t, p):
        return function(t, p) * math.exp(-0.5 * ((t - centre) / width) ** 2) / (width * math.sqrt(2 * math.pi))

    return line(density, weighted, cuts=(centre - 9 * width, centre, centre + 9 * width))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    ("mu", "sigma_sq"), [(0.3, 0.04), (0.9, 0.5), (0.5, 1e-6), (0.1, 1e-3), (2.0, 0.01), (0.25, 30.0), (-0.4, 1e-9)]
)
def test_forward_equals_quadrature(alpha, mu, sigma_sq):
    r = ct.continuous_attention_1d(t64(mu), t64(sigma_sq), BASIS, alpha)
    d = ct.BetaGaussian(t64(mu), t64(sigma_sq), alpha)
    centres, widths = (x.tolist() for x in BASIS.tensors())
    exact = [bump(d, lambda t, p: p, c, w) for c, w in zip(centres, widths)]
    assert np.allclose(r.numpy(), exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha):
    mu = t64([0.3, 0.9, 0.5]).requires_grad_()
    sigma_sq = t64([0.04, 1.5, 1e-3]).requires_grad_()
    f = lambda m, s: ct.continuous_attention_1d(m, s, BASIS, alpha)  # noqa: E731
    assert torch.autograd.gradcheck(f, (mu, sigma_sq))
    assert torch.autograd.gradgradcheck(f, (mu[:2], sigma_sq[:2]))


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize("ratio", [0.02, 0.09, 0.11, 0.24, 0.26, 0.49, 0.51])
def test_no_seam_between_moments_and_quadrature(alpha, ratio):
    """Value and gradient stay 1e-9 right on both sides of the widths where the rule changes."""
    basis = ct.GaussianBasis1d(t64([0.2, 0.9]), t64([1.0, 1.0]))
    a = t64(ratio)
    # sigma^2 for this half width; then int C (1 - y^2)^k psi(mu + a y) dy by 60 Gauss points
    k = round(1 / (alpha - 1))
    constant = math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))
    unit = float(ct.BetaGaussian(t64(0.0), t64(1.0), alpha).half_width())
    sigma_sq = ((a / unit) ** (alpha + 1)).requires_grad_()
    mu = t64(0.35).requires_grad_()
    y, w = np.polynomial.legendre.leggauss(60)
    z = 0.35 + ratio * y[:, None] - np.array([[0.2, 0.9]])
    psi = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    weight = (w * constant * (1 - y**2) ** k)[:, None]
    r = ct.continuous_attention_1d(mu, sigma_sq, basis, alpha)
    assert np.allclose(r.detach().numpy(), (weight * psi).sum(0), rtol=1e-11)
    for j in range(2):
        by_mu, by_sigma = torch.autograd.grad(r[j], (mu, sigma_sq), retain_graph=True)
        assert float(by_mu) == pytest.approx((weight * -z * psi).sum(0)[j], rel=1e-9)
        by_a = (weight * -z * y[:, None] * psi).sum(0)[j]
        assert float(by_sigma) == pytest.approx(by_a * ratio / ((alpha + 1) * sigma_sq.item()), rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(st.floats(-0.5, 1.5), st.floats(-13, 2), st.sampled_from(ALPHAS))
def test_float32_input_loses_only_the_last_rounding(mu, log_sigma_sq, alpha):
    mu32 = torch.tensor(mu, dtype=torch.float32)
    s32 = torch.tensor(math.exp(log_sigma_sq), dtype=torch.float32)
    r32 = ct.continuous_attention_1d(mu32, s32, BASIS, alpha)
    r64 = ct.continuous_attention_1d(mu32.double(), s32.double(), BASIS, alpha)
    assert r32.dtype == torch.float32
    assert torch.allclose(r32.double(), r64, rtol=1e-7, atol=1e-12)
    assert (r64 >= -1e-12).all() and (r64 <= 1 / (0.03 * math.sqrt(2 * math.pi)) + 1e-9).all()


def test_shapes_and_nan_rows():
    mu = torch.rand(2, 3, 1)
    sigma_sq = torch.full((5,), 0.1)
    assert ct.continuous_sparsemax(mu, sigma_sq, BASIS).shape == (2, 3, 5, 7)
    assert ct.continuous_sparsemax(torch.zeros(0), torch.zeros(0), BASIS).shape == (0, 7)
    r = ct.continuous_sparsemax(t64([0.2, math.nan, 0.4]), t64([0.1, 0.1, math.nan]), BASIS)
    assert not r[0].isnan().any() and r[1:].isnan().all()


def test_errors_name_value_set_and_step():
    one = torch.ones(())
    with pytest.raises(ValueError, match=r"alpha=1.7 .*allowed: 1 .*4/3.*BetaGaussian"):
        ct.continuous_attention_1d(one, one, BASIS, 1.7)
    with pytest.raises(ValueError, match=r"sigma_sq must be positive, got -1.0"):
        ct.continuous_softmax(one, -one, BASIS)
    with pytest.raises(ValueError, match="multiple of 2"):
        ct.GaussianBasis1d.linspaced(33)
    with pytest.raises(ValueError, match="positive standard deviations"):
        ct.GaussianBasis1d([0.0], [0.0])
