"""sparsemap_matching against all matchings: values, gradients, ties, masks."""

import pytest
import scipy.optimize
import torch
from structure_oracles import randn

import sparse_attention as sa
from sparse_attention.structured.factors import assignment

F64 = torch.float64


def face_projection(mu, n, m):
    """The projection on the directions in which a point of the transport polytope can move without leaving its face:
    0 off the support, sums that are exactly 1 stay."""
    mu = mu.reshape(n, m)
    rows = []
    for i in range(n):
        if n <= m or mu[i].sum() > 1 - 1e-9:
            rows.append(torch.zeros(n, m, dtype=F64).index_fill(0, torch.tensor(i), 1.0).flatten())
    for j in range(m):
        if m <= n or mu[:, j].sum() > 1 - 1e-9:
            rows.append(torch.zeros(n, m, dtype=F64).index_fill(1, torch.tensor(j), 1.0).flatten())
    rows += list(torch.eye(n * m, dtype=F64)[(mu == 0).flatten()])
    A = torch.stack(rows)
    return torch.eye(n * m, dtype=F64) - torch.linalg.pinv(A) @ A


@pytest.mark.parametrize("n, m", [(2, 2), (3, 3), (3, 4), (5, 3), (4, 4)])
def test_jacobians_of_matchings_also_with_ties(kernel, n, m):
    generator = torch.Generator().manual_seed(n * m)
    cases = [torch.zeros(n, m), torch.ones(1, m).expand(n, m), randn(1, m, scale=0.1).expand(n, m), randn(n, m)]
    cases += [randn(n, m, seed=2, scale=0.1), torch.randint(0, 2, (n, m), generator=generator) * 0.1]
    cases.append(torch.cat((randn(1, m), randn(1, m), randn(n - 2, m, seed=4))))  # two rows that are equal
    for x in cases:
        x = x.to(F64).contiguous()
        mu = sa.sparsemap_matching(x)
        J = torch.autograd.functional.jacobian(sa.sparsemap_matching, x).view(n * m, n * m)
        assert torch.allclose(J, face_projection(mu, n, m), atol=1e-8)


def test_masks_of_matchings(kernel):
    x, g = randn(3, 4, 5), randn(3, 4, 5, seed=8)
    rows = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    columns = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]]).bool()
    mask = rows.unsqueeze(-1) & columns.unsqueeze(-2)
    x.requires_grad_()
    found = sa.sparsemap_matching(x, mask, return_structures=True)
    (dx,) = torch.autograd.grad(found.marginals, x, g)
    assert (found.marginals[~mask] == 0).all() and (dx[~mask] == 0).all()
    y = x[1][rows[1]][:, columns[1]].detach().requires_grad_()  # 3 x 2: columns take rows
    alone = sa.sparsemap_matching(y)
    alone.backward(g[1][rows[1]][:, columns[1]])
    assert torch.allclose(found.marginals[1][rows[1]][:, columns[1]], alone, atol=1e-12)
    assert torch.allclose(dx[1][rows[1]][:, columns[1]], y.grad, atol=1e-10)
    assert (found.structures[1][found.weights[1] > 0][:, 1] == -1).all()
    pairs = torch.eye(4, 5).bool()
    assert torch.equal(sa.sparsemap_matching(x[0], pairs), pairs.to(F64))
    pairs[0], pairs[2] = pairs[1].clone(), True  # rows 0 and 1 have column 1 alone
    with pytest.raises(ValueError, match=r"row 1 of 2: no (structure|matching) is allowed"):
        sa.sparsemap_matching(torch.stack((x[0], x[0])), torch.stack((torch.ones(4, 5).bool(), pairs)))


@pytest.mark.parametrize("n, m", [(1, 1), (3, 3), (7, 7), (5, 9), (20, 20), (40, 40), (30, 40)])
def test_assignments_against_scipy(n, m):
    """The reference's oracle, and the native one: without regularisation (large scores) SparseMAP is the assignment."""
    for seed in range(4):
        x = randn(n, m, seed=seed)
        if seed % 2:
            x = (x * 2).round()  # ties
        best = x[scipy.optimize.linear_sum_assignment(x.numpy(), maximize=True)].sum()
        if n <= 20:
            assert abs(sum(x[i, j] for i, j in enumerate(assignment((-x).tolist()))) - best) < 1e-9
        mu = sa.sparsemap_matching(x * 1e4)
        assert abs((mu * x).sum() - best) < 1e-3


@pytest.mark.parametrize("n, scale", [(12, 0.05), (12, 1.0), (25, 0.2), (40, 1.0)])
def test_larger_matchings_fulfil_the_optimality_conditions(n, scale):
    """scipy finds no assignment that is better under the scores minus the marginals; they are doubly stochastic."""
    for x in (randn(n, n, scale=scale), (randn(n, n, seed=1) * 2).round() * scale):
        found = sa.sparsemap_matching(x, return_structures=True)
        slope = (x - found.marginals).numpy()
        best = slope[scipy.optimize.linear_sum_assignment(slope, maximize=True)].sum()
        assert best - (slope * found.marginals.numpy()).sum() < 1e-10
        ones = torch.ones(n, dtype=F64)
        assert torch.allclose(found.marginals.sum(0), ones) and torch.allclose(found.marginals.sum(1), ones)
        assert (found.weights > 0).sum() <= (n - 1) ** 2 + 1
