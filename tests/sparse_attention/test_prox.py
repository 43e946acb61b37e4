"""Proximal operators against quadratic programmes, their conditions of optimality, and finite differences."""

import cvxpy
import pytest
import torch
from mapping_oracles import solved

from sparse_attention.prox import oscar, owl, tv1d

torch.manual_seed(5)
X = torch.cat((torch.randn(3, 7), 3 * torch.randn(2, 7))).double()


def solve(x, penalty):
    y = cvxpy.Variable(len(x))
    goal = cvxpy.Minimize(0.5 * cvxpy.sum_squares(y - x.numpy()) + penalty(y))
    return torch.as_tensor(solved(cvxpy.Problem(goal), y))


def ordered(weights):
    """sum_i weights_i |y|_(i) as sums of largest entries."""
    steps = [w - v for w, v in zip(weights, [*weights[1:], 0.0])]
    return lambda y: sum(s * cvxpy.sum_largest(cvxpy.abs(y), k + 1) for k, s in enumerate(steps) if s)


@pytest.mark.parametrize("lam", [0.0, 0.05, 0.4, 5.0, 1e4])
def test_total_variation_is_the_solution_of_its_programme(lam):
    y = tv1d(X, lam)
    for row, found in zip(X, y):
        assert (found - solve(row, lambda v: lam * cvxpy.tv(v))).abs().max() < 2e-5  # the oracle's own error
    # sum_{j<=i} (x - y)_j lies in [-lam, lam] and is +-lam where y steps up or down: necessary and sufficient.
    flow = (X - y).cumsum(-1)
    assert flow[:, -1].abs().max() < 1e-12 and flow.abs().max() < lam + 1e-12
    step = y.diff()
    assert torch.allclose(flow[:, :-1][step != 0], -lam * step.sign()[step != 0], atol=1e-12)


@pytest.mark.parametrize("l1", [0.0, 0.2])
@pytest.mark.parametrize("lam", [0.0, 0.03, 0.3, 20.0])
def test_oscar_is_the_solution_of_its_programme(lam, l1):
    weights = [l1 + lam * (7 - i) for i in range(1, 8)]
    y = oscar(X, lam, l1)
    torch.testing.assert_close(owl(X, torch.tensor(weights, dtype=X.dtype)), y, atol=1e-11, rtol=0)
    for row, found in zip(X[1:4], y[1:4]):
        assert (found - solve(row, ordered(weights))).abs().max() < 2e-5


def test_owl_takes_any_weights():
    weights = torch.tensor([2.0, 1.5, 1.5, 0.3, 0.0, 0.0, 0.0]).double()
    for row, found in zip(X, owl(X, weights)):
        assert (found - solve(row, ordered(weights.tolist()))).abs().max() < 2e-5
    soft = owl(X, torch.full((7,), 0.4).double())  # equal weights: soft thresholding
    torch.testing.assert_close(soft, torch.nn.functional.softshrink(X, 0.4))
    for wrong in (weights.flip(0), weights - 0.1):
        with pytest.raises(ValueError, match="must not be negative and must not increase"):
            owl(X, wrong)
    with pytest.raises(ValueError, match="must end in 7, the number of positions"):
        owl(X, weights[:3])


CASES = {
    "tv1d": lambda x, t: tv1d(x, t, dim=1),
    "oscar": lambda x, t: oscar(x, t / 8, t / 9, dim=1),
    "owl": lambda x, t: owl(x, t * torch.linspace(0.4, 0.1, 6, dtype=x.dtype), dim=1),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_twice_in_scores_and_weights(name):
    torch.manual_seed(2)
    x = torch.randn(2, 6, 2, dtype=torch.float64, requires_grad=True)
    lam = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(CASES[name], (x, lam))
    assert torch.autograd.gradgradcheck(lambda x: CASES[name](x, 0.3), (x,))


@pytest.mark.parametrize("name", CASES)
def test_dimension_mask_types_and_transforms(name):
    torch.manual_seed(3)
    prox = CASES[name]
    x = torch.randn(3, 6, 2)
    torch.testing.assert_close(prox(x, 0.3), prox(x.double(), 0.3).float())
    assert prox(x.bfloat16(), 0.3).dtype == torch.bfloat16 and prox(x[:0], 0.3).shape == (0, 6, 2)
    if name != "owl":
        torch.testing.assert_close(torch.vmap(lambda v: prox(v[None], 0.3)[0])(x), prox(x, 0.3))
    spoilt = x.clone()
    spoilt[1, 2, 0] = torch.nan
    y = prox(spoilt, 0.3)
    assert y[1, :, 0].isnan().all() and y.isnan().sum() == 6


def test_masked_positions_are_removed():
    x = torch.randn(4, 7)
    keep = torch.tensor([1, 1, 0, 1, 0, 1, 1]).bool()
    for whole, part in (
        (tv1d(x, 0.3, mask=keep), tv1d(x[:, keep], 0.3)),
        (oscar(x, 0.1, mask=keep), oscar(x[:, keep], 0.1)),
    ):
        torch.testing.assert_close(whole[:, keep], part)
        assert (whole[:, ~keep] == 0).all()
    weights = torch.linspace(1, 0.1, 7)
    torch.testing.assert_close(owl(x, weights, mask=keep)[:, keep], owl(x[:, keep], weights[:5]))
