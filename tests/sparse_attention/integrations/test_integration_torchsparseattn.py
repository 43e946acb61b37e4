"""torchsparseattn's names: row by row with the lengths cut off, beside other packages' solvers and automatic derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sparse_attention as sa
from sparse_attention.integrations import torchsparseattn as peer

torch.manual_seed(4)
X = torch.randn(6, 9, dtype=torch.float64)
LENGTHS = torch.tensor([9, 1, 4, 7, 2, 9])
ROW = {
    "Sparsemax": (peer.Sparsemax(), sa.sparsemax), "SparsemaxFunction": (peer.SparsemaxFunction(), sa.sparsemax),
    "Fusedmax": (peer.Fusedmax(0.2), lambda x: sa.fusedmax(x, lam=0.2)),
    "FusedProxFunction": (peer.FusedProxFunction(alpha=0.2), lambda x: sa.prox.tv1d(x, 0.2)),
    "Oscarmax": (peer.Oscarmax(0.03), lambda x: sa.oscarmax(x, lam=0.03)),
    "Oscarmax as theirs": (peer.Oscarmax(0.03, mode="paper"), lambda x: sa.sparsemax(sa.prox.oscar(x, 0.03))),
    "OscarProxFunction": (peer.OscarProxFunction(0.1, beta=0.03), lambda x: sa.prox.oscar(x, 0.03, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROW)
def test_rows_with_lengths(name):
    function, alone = ROW[name]
    for lengths in (LENGTHS, LENGTHS.tolist()):
        y = function(X, lengths)
        for row, found, n in zip(X, y, LENGTHS):
            torch.testing.assert_close(found[:n], alone(row[:n]))
            assert (found[n:] == 0).all()
    torch.testing.assert_close(function(X.view(2, 3, 9), LENGTHS.view(2, 3)), y.view(2, 3, 9))
    torch.testing.assert_close(function(X[0]), alone(X[0]))
    assert torch.autograd.gradcheck(lambda x: function(x, LENGTHS), (X.clone().requires_grad_(),))
    with pytest.raises(ValueError, match="one per row is needed"):
        function(X, LENGTHS[:3])


def test_jacobians_are_those_of_autograd():
    x, g = X.clone().requires_grad_(), torch.randn_like(X)
    for y, product in (
        (peer.FusedProxFunction(0.3)(x), peer.fused_prox_jv_fast), (peer.FusedProxFunction(0.3)(x), peer.fused_prox_jv_slow),
        (peer.OscarProxFunction(0.1, 0.08)(x), peer.oscar_prox_jv), (peer.Sparsemax()(x), peer.sparsemax_grad),
    ):  # fmt: skip
        torch.testing.assert_close(product(*((y.detach(), g) if product is not peer.sparsemax_grad else (g, y.detach()))), torch.autograd.grad(y, x, g)[0])  # fmt: skip


def test_isotonic_regression_is_scikit_learns():
    isotonic = pytest.importorskip("sklearn.isotonic", reason="scikit-learn is the oracle here")
    rng = np.random.default_rng(0)
    for increasing in (True, False):
        for weights in (None, rng.random(20) + 0.1):
            for bounds in ({}, {"y_min": -0.1, "y_max": 0.1}):
                y = rng.normal(size=20)
                found = peer.isotonic_regression(y, weights, increasing=increasing, **bounds)
                expected = isotonic.isotonic_regression(y, sample_weight=weights, increasing=increasing, **bounds)
                np.testing.assert_allclose(found, expected, atol=1e-12)
    y = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(peer.isotonic_regression, (y,))


def test_the_rest_of_its_names():
    np.testing.assert_allclose(peer.prox_owl(X[0].numpy(), np.linspace(0.8, 0, 9)), sa.prox.oscar(X[0], 0.1))
    p = peer.project_simplex(X, z=2.5)
    torch.testing.assert_close(p.sum(-1), torch.full((6,), 2.5).double())
    tau = (X - p)[p > 0]
    assert (p >= 0).all() and torch.allclose(
        tau, (X - p).masked_fill(p == 0, -9).amax(-1, keepdim=True).expand_as(X)[p > 0]
    )
    assert peer.Fusedmax().alpha == 1 and peer.Oscarmax().beta == 1
    assert (peer.OscarProxFunction().alpha, peer.OscarProxFunction().beta) == (0, 1)
    assert peer.fused.Fusedmax is peer.Fusedmax and all(hasattr(peer, name) for name in peer.__all__)
