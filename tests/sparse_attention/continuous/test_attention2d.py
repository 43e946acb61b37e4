"""The planar transform against two-dimensional quadrature, its two rules against each other, and finite differences."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integrals import plane, t64
from scipy.stats import multivariate_normal

from sparse_attention.mappings import continuous as ct

ALPHAS = [1.0, 4 / 3, 1.5, 2.0]
GRID = ct.GaussianBasis2d.grid()  # the published setting: 10 x 10, Sigma_j = .001 I
SMALL = ct.GaussianBasis2d.grid(3, 2, (0.02, 0.05))
MIXED = ct.GaussianBasis2d(
    torch.tensor([[0.1, 0.2], [0.8, 0.4], [0.5, 0.5]], dtype=torch.float64),
    torch.tensor(
        [[[0.02, 0.01], [0.01, 0.03]], [[0.5, 0.0], [0.0, 0.01]], [[4.0, 1.0], [1.0, 9.0]]], dtype=torch.float64
    ),
)


def covariances(count, scale, seed=0):
    """Random covariances of attention, anisotropic and tilted."""
    rng = torch.Generator().manual_seed(seed)
    m = 0.4 * torch.randn(count, 2, 2, dtype=torch.float64, generator=rng) + torch.eye(2)
    return scale * (m @ m.mT), torch.rand(count, 2, dtype=torch.float64, generator=rng)


RULES = [(1e-5, (24, 60)), (1e-3, (24, 60)), (0.01, (60, 200)), pytest.param(0.08, (120, 400), marks=pytest.mark.slow)]


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize(("scale", "points"), RULES)
def test_both_rules_equal_a_brute_force_rule(alpha, scale, points):
    """The brute-force rule itself errs by less than 1e-13 of the largest r with these points."""
    v, mu = covariances(2, scale)
    sigma = ct.matched_covariance(v, alpha)
    slices = ct.continuous_attention_2d(mu, sigma, GRID, alpha, quadrature="slices")
    angular = ct.continuous_attention_2d(mu, sigma, GRID, alpha, quadrature="angular")
    single = ct.continuous_attention_2d(mu.float(), sigma.float(), GRID, alpha)
    assert single.dtype == torch.float32
    for i in range(2):
        exact = plane(ct.MultivariateBetaGaussian(mu[i], sigma[i], alpha), GRID, points=points)
        assert np.allclose(slices[i].numpy(), exact, rtol=0, atol=1e-10 * exact.max())
        assert np.allclose(angular[i].numpy(), exact, rtol=0, atol=1e-10 * exact.max())
        rounded = ct.MultivariateBetaGaussian(mu[i].float().double(), sigma[i].float().double(), alpha)
        assert np.allclose(single[i].numpy(), plane(rounded, GRID, points=points), rtol=0, atol=1e-6 * exact.max())


@pytest.mark.parametrize(("alpha", "basis"), [(1.0, GRID), *((alpha, MIXED) for alpha in ALPHAS)])
def test_any_basis(alpha, basis):
    v, mu = covariances(4, 0.05, seed=2)
    sigma = ct.matched_covariance(v, alpha)
    r = ct.continuous_attention_2d(mu, sigma, basis, alpha)
    r32 = ct.continuous_attention_2d(mu.float(), sigma.float(), basis, alpha)
    centres, spread = basis.tensors()
    close = {"rtol": 1e-11, "atol": 1e-12} if alpha == 1 else {"rtol": 1e-9, "atol": 1e-11}
    for i in range(4):
        if alpha == 1:
            around = (spread + sigma[i]).expand(len(centres), 2, 2)
            exact = [multivariate_normal.pdf(mu[i], c, s) for c, s in zip(centres, around)]
        else:
            exact = plane(ct.MultivariateBetaGaussian(mu[i], sigma[i], alpha), basis)
        assert np.allclose(r[i].numpy(), exact, **close)
        assert np.allclose(r32[i].numpy(), exact, rtol=1e-4, atol=1e-6 * np.max(exact))  # the inputs' own rounding


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("rule", ["slices", "angular"])
def test_finite_differences(alpha, rule):
    rng = torch.Generator().manual_seed(5)
    mu = torch.rand(2, 2, dtype=torch.float64, generator=rng).requires_grad_()
    root = torch.randn(2, 2, 2, dtype=torch.float64, generator=rng).requires_grad_()
    basis = SMALL if rule == "slices" else MIXED

    def f(m, root):
        sigma = 0.05 * root @ root.mT + 0.02 * torch.eye(2)
        return ct.continuous_attention_2d(m, sigma, basis, alpha, quadrature=rule, tolerance=1e-14)

    assert torch.autograd.gradcheck(f, (mu, root))
    if alpha in (1.0, 2.0):
        assert torch.autograd.gradgradcheck(f, (mu[:1], root[:1]))


def test_the_authors_angle_zero_lies_along_the_symmetric_root():
    """Their rule, written out: t = mu + u S^(1/2) (cos v, sin v), 100 angles with both ends. The root matters: one counts twice."""
    v = t64([[[0.03, 0.015], [0.015, 0.03]], [[0.02, -0.008], [-0.008, 0.01]]])
    mu, sigma = t64([[0.4, 0.7], [0.5, 0.45]]), ct.matched_covariance(v, 2.0)
    values, vectors = torch.linalg.eigh(v)
    root = vectors @ torch.diag_embed(values.sqrt()) @ vectors.mT
    root = math.sqrt(6) * root  # the covariance of the disk's density is I / 6
    u, weight = (t64(x) for x in np.polynomial.legendre.leggauss(80))
    u, weight = (u + 1) / 2, weight / 2
    angles = torch.linspace(0, 2 * math.pi, 100, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()])  # [2, K]
    t = mu[:, None, None] + u[None, None, :, None] * (root @ circle).mT[:, :, None]  # [B, K, U, 2]
    psi = GRID.evaluate(t)  # [B, K, U, N]
    expected = torch.einsum("bkun,u->bn", psi, weight * u * (1 - u**2)) * (2 / math.pi) * (2 * math.pi / 100)
    found = ct.continuous_sparsemax(mu, sigma, GRID, quadrature="paper-code")
    assert torch.allclose(found, expected, rtol=0, atol=1e-8 * expected.abs().max().item())


@settings(max_examples=40, deadline=None)
@given(st.floats(-6, -1), st.floats(-1, 1), st.floats(0.2, 1.0), st.sampled_from(ALPHAS[1:]))
def test_error_bound_of_the_angles_holds(log_scale, correlation, ratio, alpha):
    off = 0.98 * correlation * math.sqrt(ratio)
    v = 10**log_scale * t64([[1.0, off], [off, ratio]])
    mu, sigma = t64([0.31, 0.77]), ct.matched_covariance(v, alpha)
    exact = ct.continuous_attention_2d(mu, sigma, GRID, alpha, tolerance=1e-200)
    chosen = ct.continuous_attention_2d(mu, sigma, GRID, alpha)
    assert (chosen - exact).abs().max() < 1e-11 * exact.abs().max()


def test_a_grid_is_recognised():
    centres, spread = GRID.tensors()
    assert ct.GaussianBasis2d(centres, spread).separable and not ct.GaussianBasis2d(centres[:99], spread).separable
    assert not ct.GaussianBasis2d(centres, spread + 0.0001).separable
    v, mu = covariances(3, 0.05)
    shuffled = ct.GaussianBasis2d(centres.flip(0), spread)  # takes the angular rule
    expected = ct.continuous_sparsemax(mu, v, GRID).flip(-1)
    assert torch.allclose(ct.continuous_sparsemax(mu, v, shuffled), expected, atol=1e-10)


def test_density_far_away_or_enormous():
    far = ct.continuous_sparsemax(t64([30.0, -20.0]), 0.01 * torch.eye(2, dtype=torch.float64), GRID)
    assert far.abs().max() < 1e-300
    wide = ct.continuous_sparsemax(t64([0.5, 0.5]), 1e4 * torch.eye(2, dtype=torch.float64), GRID)
    peak = float(ct.TruncatedParaboloid(t64([0.5, 0.5]), 1e4 * torch.eye(2, dtype=torch.float64)).pdf(t64([0.5, 0.5])))
    assert torch.allclose(wide, torch.full_like(wide, peak), rtol=1e-2)


def test_shapes_nan_rows_and_errors():
    eye = torch.eye(2)
    assert ct.continuous_sparsemax(torch.rand(3, 1, 2), 0.1 * eye.expand(4, 2, 2), GRID).shape == (3, 4, 100)
    assert ct.continuous_sparsemax(torch.zeros(0, 2), torch.zeros(0, 2, 2), GRID).shape == (0, 100)
    for basis in (SMALL, MIXED):
        r = ct.continuous_sparsemax(t64([[0.5, 0.5], [math.nan, 0.5]]), 0.1 * eye.double(), basis)
        assert r[0].isfinite().all() and r[1].isnan().all()
    with pytest.raises(ValueError, match="number 1 is not positive definite"):
        ct.continuous_sparsemax(torch.zeros(2, 2), torch.stack([eye, -eye]), GRID)
    with pytest.raises(ValueError, match="quadrature='polar' is not one of auto, slices, angular, paper-code"):
        ct.continuous_sparsemax(torch.zeros(2), eye, GRID, quadrature="polar")
    with pytest.raises(ValueError, match="needs centres on a grid"):
        ct.continuous_sparsemax(torch.zeros(2), eye, MIXED, quadrature="slices")
    with pytest.raises(ValueError, match=r"mu \[..., 2\]"):
        ct.continuous_sparsemax(torch.zeros(3), eye, GRID)
    with pytest.raises(ValueError, match="symmetric positive definite"):
        ct.GaussianBasis2d(torch.zeros(1, 2), -eye)


def test_what_is_not_on_the_plane_is_refused():
    eye, mu = torch.eye(3), torch.rand(2, 3)
    mixture = ct.Mixture(torch.ones(2, 1), mu[:, None], eye.expand(2, 1, 3, 3), mu[:, 0], mu[:, 0])
    for call in (
        lambda: ct.GaussianBasis2d(torch.rand(4, 3), eye),
        lambda: ct.continuous_softmax(mu, eye, GRID),
        lambda: ct.continuous_softmax(mu, eye, ct.GaussianBasis1d.linspaced(16)),
        lambda: ct.match_moments_2d(torch.ones(2, 4) / 4, torch.rand(4, 3)),
        lambda: ct.mixture_expectation(mixture, GRID),
    ):
        with pytest.raises(ValueError, match=r"on the plane|for the plane|as many"):
            call()
