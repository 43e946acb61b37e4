"""Densities on the line and in n dimensions against quadrature, root finding and sampling statistics."""

import math

import numpy as np
import pytest
import torch
from integrals import line, plane, t64
from scipy import optimize, stats
from scipy.integrate import quad
from torch._subclasses import FakeTensorMode

from sparse_attention.mappings import continuous as ct


def cosh_family(mu, sigma):
    return ct.LocationScale(t64(mu), t64(sigma), torch.cosh, torch.sinh)


LINE = {
    "gaussian": ct.Gaussian(t64(0.3), t64(0.04)),
    "parabola": ct.TruncatedParabola(t64(0.3), t64(0.04)),
    "biweight": ct.Biweight(t64(-0.2), t64(0.5)),
    "triweight": ct.Triweight(t64(1.0), t64(2.0)),
    "alpha1.2": ct.BetaGaussian(t64(0.0), t64(0.1), alpha=1.2),
    "alpha3": ct.BetaGaussian(t64(0.1), t64(0.7), alpha=3.0),
    "laplace": ct.Laplace(t64(0.4), t64(0.3)),
    "triangular": ct.Triangular(t64(0.4), t64(0.3)),
    "cosh": cosh_family(0.2, 0.6),
}


@pytest.mark.parametrize("name", LINE)
def test_moments_and_entropies_equal_quadrature(name):
    d = LINE[name]
    assert line(d, lambda t, p: p) == pytest.approx(1, abs=1e-9)
    assert line(d, lambda t, p: t * p) == pytest.approx(float(d.mean), abs=1e-9)
    variance = line(d, lambda t, p: (t - float(d.mean)) ** 2 * p)
    assert variance == pytest.approx(float(d.variance), rel=1e-8)
    shannon = line(d, lambda t, p: -p * math.log(p) if p > 0 else 0.0)
    assert shannon == pytest.approx(float(d.entropy(1)), abs=1e-7)
    for alpha in (4 / 3, 1.5, 2.0):
        tsallis = (1 - line(d, lambda t, p, alpha=alpha: p**alpha)) / (alpha * (alpha - 1))
        assert tsallis == pytest.approx(float(d.entropy(alpha)), abs=1e-8)
    assert float(d.entropy()) == float(d.entropy(d.alpha))


@pytest.mark.parametrize("name", [n for n in LINE if LINE[n].alpha > 1])
def test_nothing_outside_the_support(name):
    d = LINE[name]
    low, high = (float(x) for x in d.support())
    assert float(d.pdf(t64(low - 1e-9))) == 0 == float(d.pdf(t64(high + 1e-9)))
    assert float(d.pdf(t64(low + 1e-3 * (high - low)))) > 0


@pytest.mark.parametrize("alpha", [1.2, 4 / 3, 1.5, 2.0, 3.0])
def test_beta_gaussian_solves_the_regularised_prediction_map(alpha):
    """p = [(alpha - 1)(f - tau)]_+^(1/(alpha - 1)) with tau found by a root finder instead of a formula."""
    sigma_sq, k = 0.3, 1 / (alpha - 1)

    def mass(tau):
        a = math.sqrt(-2 * tau * sigma_sq)
        return quad(lambda t: ((alpha - 1) * max(-tau - t * t / (2 * sigma_sq), 0)) ** k, -a, a)[0] - 1

    tau = optimize.brentq(mass, -50, -1e-6, xtol=1e-14)
    d = ct.BetaGaussian(t64(0.0), t64(sigma_sq), alpha)
    assert float(d.tau) == pytest.approx(tau, rel=1e-8)
    assert float(d.half_width()) == pytest.approx(math.sqrt(-2 * tau * sigma_sq), rel=1e-8)
    # Prop. 1: tau = A_alpha - 1/(alpha - 1), with the printed A_alpha an escort expectation of f.
    escort = quad(lambda t: float(d.pdf(t64(t))) ** (2 - alpha), *map(float, d.support()))[0]
    scored = quad(lambda t: -t * t / (2 * sigma_sq) * float(d.pdf(t64(t))) ** (2 - alpha), *map(float, d.support()))[0]
    a_alpha = (1 / (1 - alpha) + scored) / escort - 1 / (1 - alpha)
    assert tau == pytest.approx(a_alpha - k, rel=1e-6)


def test_location_scale_contains_the_parabola_and_the_triangle():
    t = torch.linspace(-2, 2, 101, dtype=torch.float64)
    sigma = 0.7
    cubic = ct.LocationScale(t64(0.1), t64(sigma), lambda x: x**3 / 6, lambda x: x**2 / 2)
    assert cubic.a == pytest.approx(1.5 ** (1 / 3), abs=1e-14)
    # The parameter of the parabola is sigma^3, not sigma^2.
    assert torch.allclose(cubic.pdf(t), ct.TruncatedParabola(t64(0.1), t64(sigma**3)).pdf(t), atol=1e-13)
    square = ct.LocationScale(t64(0.1), t64(sigma), lambda x: x**2 / 2, lambda x: x)
    assert torch.allclose(square.pdf(t), ct.Triangular(t64(0.1), t64(sigma**2)).pdf(t), atol=1e-13)
    with pytest.raises(ValueError, match="too nearly linear"):
        ct.LocationScale(t64(0.0), t64(1.0), lambda x: x, torch.ones_like)


@pytest.mark.parametrize("name", LINE)
def test_samples_follow_the_density(name):
    d = LINE[name]
    x = d.sample((4000,), generator=torch.Generator().manual_seed(3)).numpy()
    low, high = (float(e) for e in d.support())
    if math.isinf(low):
        low, high = float(d.loc) - 5, float(d.loc) + 5
    assert low <= x.min() and x.max() <= high
    grid = np.linspace(low, high, 20001)
    cdf = np.concatenate([[0], np.cumsum(d.pdf(torch.from_numpy((grid[1:] + grid[:-1]) / 2)).numpy()) * np.diff(grid)])
    assert stats.kstest(x, lambda q: np.interp(q, grid, cdf)).pvalue > 1e-3


def test_samples_carry_gradients():
    mu, s2 = t64([0.1, 0.4]).requires_grad_(), t64([0.2, 0.3]).requires_grad_()
    x = ct.TruncatedParabola(mu, s2).rsample((50000,), generator=torch.Generator().manual_seed(0))
    by_mu, by_s2 = torch.autograd.grad(((x - mu.detach()) ** 2).mean(0).sum(), (mu, s2))
    # E (t - m)^2 = a^2 / 5, so d / d sigma^2 = 2/3 variance / sigma^2 and d / d mu = 0 at mu = m.
    expected = 2 / 3 * ct.TruncatedParabola(mu, s2).variance / s2
    assert torch.allclose(by_s2, expected.detach(), rtol=0.03)
    assert by_mu.abs().max() < 0.01


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_wrong_parameters_are_named(bad):
    with pytest.raises(ValueError, match=r"sigma_sq must be positive, got"):
        ct.TruncatedParabola(t64(0.0), t64(bad))
    with pytest.raises(ValueError, match=r"b must be positive"):
        ct.Triangular(t64(0.0), t64(bad))
    with pytest.raises(ValueError, match=r"alpha=0.5 is out of range: alpha >= 1"):
        ct.BetaGaussian(t64(0.0), t64(1.0), alpha=0.5)


SIGMA2 = [[0.09, 0.03], [0.03, 0.05]]


def polar(d, function):
    return plane(d, None, function, points=(200, 64))[0]


@pytest.mark.parametrize("alpha", [2.0, 1.5, 4 / 3, 1.25])
def test_planar_family_equals_quadrature(alpha):
    d = ct.MultivariateBetaGaussian(t64([0.2, 0.7]), t64(SIGMA2), alpha)
    assert polar(d, lambda t, p: p) == pytest.approx(1, abs=1e-10)
    centred = lambda t: t - d.loc.numpy()  # noqa: E731
    cov = polar(d, lambda t, p: p[..., None, None] * centred(t)[..., :, None] * centred(t)[..., None, :])
    assert np.allclose(cov, d.covariance.numpy(), atol=1e-10)
    for a in (1.5, 2.0):
        tsallis = (1 - polar(d, lambda t, p, a=a: p**a)) / (a * (a - 1))
        assert tsallis == pytest.approx(float(d.entropy(a)), abs=1e-9)
    shannon = polar(d, lambda t, p: -p * np.log(np.maximum(p, 1e-300)))
    assert shannon == pytest.approx(float(d.entropy(1)), abs=1e-5)
    matched = ct.MultivariateBetaGaussian(d.loc, ct.matched_covariance(d.covariance, alpha), alpha)
    assert torch.allclose(matched.sigma, d.sigma, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_sampled_moments(n, alpha):
    rng = torch.Generator().manual_seed(n)
    m = torch.randn(n, n, dtype=torch.float64, generator=rng)
    d = ct.MultivariateBetaGaussian(torch.ones(n, dtype=torch.float64), 0.2 * (m @ m.T) + 0.1 * torch.eye(n), alpha)
    x = d.sample((60000,), generator=rng)
    scale = d.covariance.diagonal().max()
    assert (x.mean(0) - d.mean).abs().max() < 5 * (scale / 60000).sqrt()
    assert (torch.cov(x.T) - d.covariance).abs().max() < 0.03 * scale
    if alpha > 1:
        y = torch.linalg.solve(d.support_map(), (x - d.loc).T)
        assert y.norm(dim=0).max() <= 1 + 1e-12


def test_multivariate_gaussian_equals_scipy():
    d = ct.MultivariateGaussian(t64([0.2, 0.7]), t64(SIGMA2))
    reference = stats.multivariate_normal([0.2, 0.7], SIGMA2)
    t = np.random.default_rng(0).normal(size=(7, 2))
    assert np.allclose(d.pdf(torch.from_numpy(t)).numpy(), reference.pdf(t), rtol=1e-12)
    assert float(d.entropy()) == pytest.approx(reference.entropy())
    with pytest.raises(ValueError, match="not positive definite"):
        ct.MultivariateGaussian(t64([0.0, 0.0]), -torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("number", [0.5, torch.tensor(0.5)], ids=str)
def test_one_number_may_be_on_another_device(number):
    """As in torch. Fake tensors are on devices that are not here."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.ones(3, device="cuda")
        for density in (ct.BetaGaussian(x, number), ct.BetaGaussian(number, x), ct.BetaGaussian(x, number, 1.0)):
            assert density.pdf(x).is_cuda and density.sample((2,)).is_cuda


def test_densities_are_differentiable():
    t = t64([0.1, 0.35, 0.6])
    mu, s2 = t64(0.3).requires_grad_(), t64(0.05).requires_grad_()
    for alpha in (1.0, 4 / 3, 2.0):
        assert torch.autograd.gradcheck(lambda m, s, a=alpha: ct.BetaGaussian(m, s, a).pdf(t), (mu, s2))
        assert torch.autograd.gradcheck(lambda m, s, a=alpha: ct.BetaGaussian(m, s, a).entropy(1), (mu, s2))
