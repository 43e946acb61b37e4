"""Moment matching against the densities' own moments; weighted EM against scikit-learn on repeated points."""

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from sparse_attention.mappings import continuous as ct


def random_weights(batch, length, seed=0):
    logits = 2 * torch.randn(batch, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.softmax(logits, -1)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 1.5, 2.0, 3.0])
def test_matched_densities_have_the_moments(alpha):
    p = random_weights(5, 12)
    t = ct.positions_1d(12)
    mu, sigma_sq = ct.match_moments_1d(p, t, alpha)
    d = ct.BetaGaussian(mu, sigma_sq, alpha)
    mean = np.array([np.average(t.numpy(), weights=w) for w in p.numpy()])
    variance = np.array([np.cov(t.numpy(), aweights=w, ddof=0) for w in p.numpy()])
    assert np.allclose(d.mean.numpy(), mean, atol=1e-13) and np.allclose(d.variance.numpy(), variance, rtol=1e-10)
    grid = ct.positions_2d(3, 4)
    mu2, sigma2 = ct.match_moments_2d(p, grid, alpha, floor=0.0)
    d2 = ct.MultivariateBetaGaussian(mu2, sigma2, alpha)
    for i, w in enumerate(p.numpy()):
        assert np.allclose(d2.covariance[i].numpy(), np.cov(grid.numpy().T, aweights=w, ddof=0), rtol=1e-9)


def test_paper_code_takes_the_variance_for_the_parameter():
    p, t = random_weights(3, 9), ct.positions_1d(9)
    _, exact = ct.match_moments_1d(p, t, 2.0)
    _, paper = ct.match_moments_1d(p, t, 2.0, mode="paper-code")
    assert torch.allclose(exact, 2 / 3 * (5 * paper) ** 1.5)
    with pytest.raises(ValueError, match="is not one of exact, paper-code"):
        ct.match_moments_1d(p, t, 2.0, mode="tp")


def test_peaked_and_empty_weights_stay_positive_definite():
    one_hot = torch.zeros(2, 12)
    one_hot[0, 5] = 1.0
    mu, sigma_sq = ct.match_moments_1d(one_hot.half(), ct.positions_1d(12), 2.0)
    assert mu.dtype == torch.float32 and (sigma_sq > 0).all()
    _, sigma = ct.match_moments_2d(one_hot, ct.positions_2d(3, 4), 2.0)
    assert (torch.linalg.eigvalsh(sigma.double()) > 0).all()


def test_document_positions():
    mask = torch.tensor([[True, True, False, True], [True, False, False, False], [False] * 4])
    assert ct.document_positions(mask).tolist()[0] == pytest.approx([1 / 6, 0.5, 0, 5 / 6])
    assert ct.document_positions(mask, "linspace").tolist()[0] == [0, 0.5, 0, 1]
    assert ct.document_positions(mask, "right_edge").tolist()[0] == pytest.approx([1 / 3, 2 / 3, 0, 1])
    for kind in ("cell_centre", "linspace", "right_edge"):
        at = ct.document_positions(mask, kind)
        assert at.isfinite().all() and (at[2] == 0).all()
    with pytest.raises(ValueError, match="is not one of cell_centre"):
        ct.document_positions(mask, "centre")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weighted_em_equals_sklearn_on_repeated_points(n):
    rng = np.random.default_rng(n)
    t = rng.random((30, n))
    counts = rng.integers(1, 9, size=30)
    start = t[:3]
    begin = {"weights_init": np.full(3, 1 / 3), "precisions_init": np.repeat(np.eye(n)[None] / 0.02, 3, axis=0)}
    reference = GaussianMixture(3, max_iter=7, tol=0.0, reg_covar=1e-6, means_init=start, **begin)
    reference.fit(np.repeat(t, counts, axis=0))
    p = torch.from_numpy(counts / counts.sum()).unsqueeze(0)
    m = ct.fit_mixture(
        p, torch.from_numpy(t), 3, iterations=7, initial_variance=0.02, means=torch.from_numpy(start).unsqueeze(0)
    )
    assert np.allclose(m.pi[0], reference.weights_, atol=1e-9)
    assert np.allclose(m.mu[0], reference.means_, atol=1e-9)
    assert np.allclose(m.covariance[0], reference.covariances_, atol=1e-9)
    assert float(m.log_likelihood[0]) == pytest.approx(reference.score(np.repeat(t, counts, axis=0)), abs=1e-9)
    assert np.allclose(m.pdf(torch.from_numpy(t))[0], np.exp(reference.score_samples(t)), rtol=1e-9)


def bump(centre, grid, width=0.05):
    return torch.exp(-0.5 * ((grid - torch.tensor(centre)) / width).square().sum(-1))


def test_selection_finds_the_number_of_modes():
    grid = ct.positions_2d(14, 14)
    one, two = bump([0.5, 0.5], grid, 0.1), bump([0.2, 0.2], grid) + bump([0.8, 0.7], grid)
    three = two + bump([0.2, 0.8], grid)
    p = torch.stack([one, two, three])
    p = p / p.sum(-1, keepdim=True)
    m = ct.select_mixture(p, grid, restarts=8, iterations=30, generator=torch.Generator().manual_seed(0))
    assert m.components.tolist() == [1, 2, 3]
    assert torch.allclose(m.pi.sum(-1), torch.ones(3, dtype=torch.float64))
    assert m.pi.shape == (3, 4) and (m.pi[0, 1:] == 0).all()
    # no penalty: more components never lose
    free = ct.select_mixture(
        p, grid, restarts=8, iterations=30, penalty=0.0, generator=torch.Generator().manual_seed(0)
    )
    assert (free.log_likelihood >= m.log_likelihood - 1e-12).all() and free.components[1] > 2


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_expectation_of_a_mixture_is_the_mixture_of_expectations(alpha):
    grid, basis = ct.positions_2d(5, 6), ct.GaussianBasis2d.grid(4, 4, 0.02)
    m = ct.fit_mixture(random_weights(2, 30), grid, 3, 4, generator=torch.Generator().manual_seed(0))
    f = ct.continuous_softmax if alpha == 1 else ct.continuous_sparsemax
    sigmas = [ct.matched_covariance(m.covariance[:, k], alpha) for k in range(3)]
    expected = sum(m.pi[:, k, None] * f(m.mu[:, k], sigmas[k], basis) for k in range(3))
    assert torch.allclose(ct.mixture_expectation(m, basis, alpha), expected, atol=1e-12)
    line = ct.fit_mixture(random_weights(2, 9), ct.positions_1d(9).unsqueeze(-1), 2, 4)
    assert ct.mixture_expectation(line, ct.GaussianBasis1d.linspaced(6), alpha).shape == (2, 6)


def test_em_is_differentiable_and_survives_empty_rows():
    grid = ct.positions_2d(3, 3)
    logits = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    start = grid[[0, 4]].expand(2, 2, 2)

    def f(z):
        m = ct.fit_mixture(torch.softmax(z, -1), grid, 2, 3, initial_variance=0.05, means=start)
        return ct.mixture_expectation(m, ct.GaussianBasis2d.grid(2, 2, 0.1))

    assert torch.autograd.gradcheck(f, logits)
    empty = ct.fit_mixture(torch.zeros(1, 9), grid, 2, 3)
    assert (empty.pi == 0).all() and empty.mu.isfinite().all()
    with pytest.raises(ValueError, match="components=10 must lie between 1 and the number of positions, 9"):
        ct.fit_mixture(torch.zeros(1, 9), grid, 10)
