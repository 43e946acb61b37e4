"""Factors given by an oracle: one of n, at most k, trees, a user's own; the same solver for all."""

import entmax
import numpy as np
import pytest
import qpsolvers
import structure_oracles as oracle
import torch
from structure_oracles import differentiated, randn

import sparse_attention as sa
from sparse_attention.structured import Budget, Matching, Sequence, Xor, sparsemap

F64 = torch.float64


def test_one_of_n_is_sparsemax_and_its_jacobian():
    for x in (randn(3, 6), torch.zeros(1, 4, dtype=F64), torch.tensor([[1.0, 0.0, 0.5, 1.0]], dtype=F64)):
        x.requires_grad_()
        g = randn(*x.shape, seed=3)
        p, q = sparsemap(Xor(), x), entmax.sparsemax(x, dim=-1)
        assert torch.allclose(p, q, atol=1e-12)
        assert torch.allclose(*(torch.autograd.grad(v, x, g)[0] for v in (p, q)), atol=1e-10)


@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("n, k", [(1, 1), (5, 1), (5, 2), (6, 4), (4, 9)])
def test_budgets_are_a_box_and_a_plane(kernel, n, k, exactly):
    def f(z, **given):
        return sa.sparsemap_budget(z, k=k, **given) if exactly else sparsemap(Budget(k), z, **given)

    least, row = min(n, k), np.ones((1, n))
    plane = {"A": row, "b": np.array([float(least)])} if exactly else {"G": row, "h": np.array([float(k)])}
    M = oracle.subsets(n, least if exactly else k)
    M = M[M.sum(1) == least] if exactly else M
    for seed in range(4):
        x = randn(n, seed=seed, scale=1.0 + seed * exactly) + 0.3
        x = x.round() if seed == 3 else x
        mu = f(x)
        box = qpsolvers.solve_qp(np.eye(n), -x.numpy(), **plane, lb=np.zeros(n), ub=np.ones(n), solver="daqp")
        assert np.abs(mu.numpy() - box).max() < 1e-10
        assert np.abs(mu.numpy() - oracle.sparsemap(M, x.numpy())).max() < 1e-9
        assert torch.allclose(sparsemap(Budget(k, exactly), x), mu, atol=1e-10)
        if seed < 3:
            assert differentiated(f, x)
    mask = torch.arange(n) < 3
    assert torch.allclose(f(x, mask=mask)[:3], f(x[:3]))
    if not exactly:
        inside = torch.full((n,), 0.3, dtype=F64)  # ties; free in every direction while the budget is not used up
        moves = torch.eye(n, dtype=F64) if 0.3 * n < k else torch.eye(n, dtype=F64) - 1 / n
        assert torch.allclose(torch.autograd.functional.jacobian(f, inside), moves, atol=1e-8)


def test_budgets_out_of_range():
    for call in (lambda: sa.sparsemap_budget(torch.zeros(3), k=0), lambda: Budget(0)):
        with pytest.raises(ValueError, match="k=0 is out of range: a whole number, k >= 1"):
            call()


class Segment:
    """A user's own: one contiguous segment of a row, with a score for its length as an input."""

    dims, inputs = 1, (1,)

    def highest(self, scores, lengths):
        n = len(scores)
        total = torch.cat((scores.new_zeros(1), scores.clamp(min=-1e9).cumsum(0)))
        ends = [(a, b) for a in range(n) for b in range(a + 1, n + 1) if (scores[a:b] > -torch.inf).all()]
        if not ends:
            raise ValueError("no segment is allowed")
        a, b = max(ends, key=lambda e: float(total[e[1]] - total[e[0]] + lengths[e[1] - e[0] - 1]))
        m, count = torch.zeros_like(scores), torch.zeros_like(lengths)
        m[a:b], count[b - a - 1] = 1.0, 1.0
        return m, count


def test_a_factor_of_ones_own():
    n = 4
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n + 1)]
    M = np.array([[float(a <= i < b) for i in range(n)] for a, b in pairs])
    x, lengths = randn(2, n), randn(n, seed=1)
    c = np.array([lengths[b - a - 1].item() for a, b in pairs])
    found = sparsemap(Segment(), x, lengths, return_structures=True)
    for r in range(2):
        assert np.abs(found.marginals[r].numpy() - oracle.sparsemap(M, x[r].numpy(), c)).max() < 1e-9
        average = (found.weights[r].unsqueeze(-1) * found.structures[r]).sum(0)
        assert torch.allclose(average, found.marginals[r], atol=1e-12)
    x.requires_grad_(), lengths.requires_grad_()

    def f(x, lengths):
        return sparsemap(Segment(), x, lengths)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(f, (x, lengths), atol=1e-5)
    mask = torch.tensor([True, True, False, True])
    assert (f(x.masked_fill(~mask, -torch.inf), lengths)[:, 2] == 0).all()
    assert torch.equal(sparsemap(Segment(), x, lengths, mask=mask), f(x.masked_fill(~mask, -torch.inf), lengths))


def test_a_wrong_oracle_is_named():
    class Wrong:
        dims = 1

        def highest(self, scores):
            return torch.ones(2)

    with pytest.raises(ValueError, match=r"Wrong.highest returned \[\(2,\)\]; expected the indicator \(3,\)"):
        sparsemap(Wrong(), torch.zeros(3))


def test_factors_and_functions_agree():
    x, t = randn(2, 4, 3), randn(3, 3, seed=1)
    assert torch.allclose(sparsemap(Sequence(), x, t), sa.sparsemap_sequence(x, t), atol=1e-10)
    assert torch.allclose(sparsemap(Matching(), x), sa.sparsemap_matching(x), atol=1e-10)
    square = randn(3, 4, 3)  # as many sequences as states: shapes alone do not tell whose transitions they are
    assert torch.allclose(sparsemap(Sequence(), square, t), sa.sparsemap_sequence(square, t), atol=1e-10)
    with pytest.raises(ValueError, match=r"Sequence takes inputs of \[2\] dimensions each .*; got shapes \[\]"):
        sparsemap(Sequence(), x)
    per_row = torch.stack((t, 2 * t))
    assert torch.allclose(sparsemap(Sequence(), x, per_row), sa.sparsemap_sequence(x, per_row), atol=1e-10)
