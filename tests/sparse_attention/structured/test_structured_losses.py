"""SparseMAP's losses against the programme over all structures."""

import numpy as np
import pytest
import scipy.optimize
import structure_oracles as oracle
import torch
from structure_oracles import randn

import sparse_attention as sa

F64 = torch.float64


def test_sequences_against_all_of_them():
    T, S = 4, 3
    M, steps = oracle.sequences(T, S)
    x, t = randn(T, S).requires_grad_(), randn(S, S, seed=1).requires_grad_()
    y = torch.tensor([2, 0, 1, 1])
    theta, c = x.detach().numpy().ravel(), steps @ t.detach().numpy().ravel()
    # max of a concave function over the hull, from the oracle's marginals and the most that transitions can give them
    mu = oracle.sparsemap(M, theta, c)
    found = scipy.optimize.linprog(
        -c, A_eq=np.vstack((M.T, np.ones(len(M)))), b_eq=np.append(mu, 1.0), bounds=(0, None)
    )
    best = theta @ mu - found.fun - 0.5 * mu @ mu
    k = int((torch.nn.functional.one_hot(y, S).numpy().ravel() == M).all(1).nonzero()[0][0])
    expected = best - (theta @ M[k] + c[k] - 0.5 * T)
    loss = sa.losses.sparsemap_sequence_loss(x, t, y)
    assert abs(loss.item() - expected) < 1e-6
    dx, dt = torch.autograd.grad(loss, (x, t))
    assert np.abs(dx.numpy().ravel() - (mu - M[k])).max() < 1e-8
    assert np.abs(dt.numpy().ravel() - (steps.T @ found.x - steps[k])).max() < 1e-6


def test_gradients_masks_and_reductions():
    x, t = randn(2, 4, 3).requires_grad_(), randn(3, 3, seed=1).requires_grad_()
    start, y = randn(3, seed=2).requires_grad_(), torch.tensor([[0, 1, 2, 0], [2, 2, 7, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1]]).bool()

    def loss(x, t, start):
        return sa.losses.sparsemap_sequence_loss(x, t, y, start, mask=mask, reduction="none")

    assert torch.autograd.gradcheck(loss, (x, t, start), atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, t.detach(), start.detach()), (x,), atol=1e-5)
    (dt,) = torch.autograd.grad(loss(x, t, start).sum(), t, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative in the transitions"):
        torch.autograd.grad(dt.square().sum(), x)
    alone = sa.losses.sparsemap_sequence_loss(x[1, mask[1]], t, y[1, mask[1]], start)
    assert torch.allclose(loss(x, t, start)[1], alone) and (loss(x, t, start) >= 0).all()
    far = torch.nn.functional.one_hot(y.clamp(max=2), 3).to(F64) * 50
    assert sa.losses.sparsemap_sequence_loss(far, t, y.clamp(max=2)).item() == 0
    for wrong, message in (
        (y.float(), "must hold states"),
        (y[:, :3], "must hold states"),
        (y + 1, "contains 3; states are 0 to 2"),
        (y - 1, "contains -1; states are 0 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            sa.losses.sparsemap_sequence_loss(x, t, wrong)
    states = torch.ones(2, 4, 3).bool()
    states[0, 0, 0] = False
    with pytest.raises(ValueError, match="a state that is masked"):
        sa.losses.sparsemap_sequence_loss(x, t, y.clamp(max=2), mask=states)


@pytest.mark.parametrize("kind", ["matching", "tree"])
def test_matchings_and_trees_against_all_of_them(kind):
    n = 4 if kind == "matching" else 3
    M = oracle.matchings(3, 4) if kind == "matching" else oracle.trees(3)
    x, loss_of = randn(3, n).requires_grad_(), getattr(sa.losses, f"sparsemap_{kind}_loss")
    target = torch.tensor(0.3 * M[3] + 0.7 * M[10]).view(3, n)
    mu = torch.tensor(oracle.sparsemap(M, x.detach().numpy().ravel())).view(3, n)
    loss = loss_of(x, target)
    expected = ((x * mu).sum() - 0.5 * mu.square().sum()) - ((x * target).sum() - 0.5 * target.square().sum())
    assert torch.allclose(loss, expected, atol=1e-8)
    assert torch.autograd.gradcheck(lambda z: loss_of(z, target), (x,), atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda z: loss_of(z, target), (x,), atol=1e-5)
    with pytest.raises(ValueError, match="must have the shape of the scores"):
        loss_of(x, target[:2])
    with pytest.raises(ValueError, match="weight on a pair that is masked"):
        loss_of(x, target, mask=target == 0)
