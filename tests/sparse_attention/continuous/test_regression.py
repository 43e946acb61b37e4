"""Ridge value regression against scikit-learn, and the authors' padding slip."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from sparse_attention.mappings import continuous as ct
from sparse_attention.mappings.continuous.regression import _padded_line


@pytest.mark.parametrize(("length", "n"), [(280, 32), (40, 64), (1, 4), (7, 8)])
def test_value_function_equals_sklearn(length, n):
    basis = ct.GaussianBasis1d.linspaced(n)
    h = np.random.default_rng(0).normal(size=(length, 3))
    features = basis.evaluate((torch.arange(length, dtype=torch.float64) + 0.5) / length).numpy()
    coefficients = Ridge(alpha=0.01, fit_intercept=False, solver="svd").fit(features, h).coef_  # [D, N]
    g = ct.ridge_matrix_1d(length, basis, ridge=0.01)
    assert g.dtype == torch.float64 and g.shape == (length, n)
    assert np.allclose(h.T @ g.numpy(), coefficients, atol=1e-7 * np.abs(coefficients).max())


def test_planar_regression_recovers_a_smooth_image():
    basis = ct.GaussianBasis2d.grid(10, 10, 0.01)
    x, y = torch.meshgrid(ct.positions_1d(14), ct.positions_1d(14), indexing="ij")
    image = torch.sin(3 * x) * torch.cos(2 * y)
    coefficients = ct.ridge_matrix_2d(14, 14, basis, 1e-4, "none").mT @ image.flatten()
    fitted = basis.evaluate(torch.stack([x, y], -1)) @ coefficients
    assert (fitted - image).square().mean().sqrt() < 0.01
    reference = Ridge(alpha=1e-4, fit_intercept=False, solver="svd")
    reference.fit(basis.evaluate(torch.stack([x, y], -1).flatten(0, 1)).numpy(), image.flatten().numpy())
    assert np.allclose(coefficients, reference.coef_, atol=1e-6 * np.abs(reference.coef_).max())


def test_planar_padding_is_zero_outside():
    basis = ct.GaussianBasis2d.grid(20, 20, 0.01, low=-0.5, high=1.5)
    ones = torch.ones(14 * 14, dtype=torch.float64)
    t = torch.linspace(1.25, 1.45, 8, dtype=torch.float64)
    outside = basis.evaluate(torch.cartesian_prod(t, t - 0.75))  # beside the image
    padded = outside @ (ct.ridge_matrix_2d(14, 14, basis, 1e-3, "correct").mT @ ones)
    free = outside @ (ct.ridge_matrix_2d(14, 14, basis, 1e-3, "none").mT @ ones)
    assert padded.square().mean() < 0.1 * free.square().mean()
    inside = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert (
        abs(float(basis.evaluate(inside) @ (ct.ridge_matrix_2d(14, 14, basis, 1e-3, "correct").mT @ ones)) - 1) < 0.02
    )


def test_padded_positions_and_the_precedence_slip():
    """`1. / 2 * L` for 1 / (2 L): L = 40 puts the words at 9.9 .. -8.9; the fit of sin 3t is .905 off instead of
    .003.
    """
    line, real = _padded_line(40, "correct")
    assert torch.allclose(line[real], ct.positions_1d(40)) and len(line) == 80
    assert float(line[0]) == pytest.approx(-0.5 + 1 / 80) and float(line[-1]) == pytest.approx(1.5 - 1 / 80)
    slipped, kept = _padded_line(40, "legacy_even")
    assert float(slipped[kept][0]) == pytest.approx(9.9, abs=0.05)
    assert float(slipped[kept][-1]) == pytest.approx(-8.9, abs=0.05)
    for odd in (1, 7, 41):
        line, real = _padded_line(odd, "legacy_even")
        assert torch.allclose(line[real], ct.positions_1d(odd)) and len(line) == (1 if odd == 1 else 2 * odd - 1)

    basis = ct.GaussianBasis1d.linspaced(64)
    t = ct.positions_1d(40)
    target = torch.sin(3 * t)
    errors = {}
    for pad in ("correct", "legacy_even"):
        fitted = basis.evaluate(t) @ (ct.ridge_matrix_1d(40, basis, 0.01, pad).mT @ target)
        errors[pad] = float((fitted - target).square().mean().sqrt())
    assert errors["correct"] < 0.02 and errors["legacy_even"] > 0.5


def test_position_weights_ignore_the_batch():
    basis = ct.GaussianBasis1d.linspaced(8)
    r = torch.rand(4, 8, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([9, 4, 1, 0])[:, None]
    w = ct.position_weights(r, mask, basis)
    for i, length in enumerate((9, 4, 1)):
        assert torch.allclose(w[i, :length], ct.ridge_matrix_1d(length, basis) @ r[i], atol=1e-13)
        assert (w[i, length:] == 0).all()
    assert (w[3] == 0).all()
    # words masked inside the document: the kept ones are placed one after another
    holes = torch.tensor([[True, False, True, True, False, True]])
    assert torch.allclose(ct.position_weights(r[:1], holes, basis)[holes], ct.ridge_matrix_1d(4, basis) @ r[0])
    several = ct.position_weights(r.unsqueeze(1).expand(4, 3, 8), mask, basis)
    assert torch.allclose(several, w.unsqueeze(1).expand(4, 3, 9))
    assert ct.position_weights(r[:0], mask[:0], basis).shape == (0, 9)


def test_equal_bases_share_what_is_kept():
    basis = ct.GaussianBasis1d.linspaced(8)
    same = ct.GaussianBasis1d.linspaced(8)
    assert ct.ridge_matrix_1d(12, basis) is ct.ridge_matrix_1d(12, same)
    assert ct.ridge_matrix_1d(12, basis) is not ct.ridge_matrix_1d(12, basis, ridge=0.1)
