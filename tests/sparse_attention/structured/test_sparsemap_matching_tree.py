"""sparsemap_matching and sparsemap_tree against scipy's assignments and networkx's arborescences: gradients, ties, masks."""

import networkx as nx
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from structure_oracles import differentiated, randn

import sparse_attention as sa
from sparse_attention.structured import Tree, sparsemap
from sparse_attention.structured.factors import assignment

F64 = torch.float64


def best_matching(x):
    """The highest score of a matching, by scipy."""
    return x[linear_sum_assignment(x.numpy(), maximize=True)].sum()


def best_tree(x):
    """The highest score of a tree, by networkx, of scores ``[word, head]``."""
    n = len(x)
    arcs = [(n if h == w else h, w, x[w, h].item()) for w in range(n) for h in range(n) if x[w, h] > -torch.inf]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(arcs)
    return nx.maximum_spanning_arborescence(graph).size(weight="weight")


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
def test_without_a_regulariser_it_is_the_best_matching_of_scipy(n, m):
    """The reference's oracle, and the native one: without regularisation (large scores) SparseMAP is the assignment."""
    for seed in range(4):
        x = randn(n, m, seed=seed)
        if seed % 2:
            x = (x * 2).round()  # ties
        best = best_matching(x)
        if n <= 20:
            assert abs(sum(x[i, j] for i, j in enumerate(assignment((-x).tolist()))) - best) < 1e-9
        mu = sa.sparsemap_matching(x * 1e4)
        assert abs((mu * x).sum() - best) < 1e-3


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_gradients_of_trees_by_differences_also_with_ties(kernel, n):
    roots = (torch.eye(n, dtype=F64) * root for root in (0.2, -0.2))
    for x in (*(scale * randn(n, n) for scale in (0.1, 1, 4)), *roots):
        assert differentiated(sa.sparsemap_tree, x)


@pytest.mark.parametrize("n, kept", [(3, 1.0), (6, 1.0), (8, 0.6), (12, 1.0), (25, 0.3)])
def test_without_a_regulariser_it_is_the_best_tree_of_networkx(n, kept):
    for seed in range(12):
        x = randn(n, n, seed=seed)
        if seed % 2:
            x = (x * 2).round()  # ties, and more cycles
        torch.manual_seed(seed)
        allowed = (torch.rand(n, n) < kept) | torch.eye(n, dtype=torch.bool)
        x = x.masked_fill(~allowed, -torch.inf)
        mu = sa.sparsemap_tree(x * 1e4)
        finite = x.masked_fill(~allowed, 0.0)
        assert abs((mu * finite).sum() - best_tree(x)) < 1e-3
        assert abs((Tree().highest(x.mT).mT * finite).sum() - best_tree(x)) < 1e-9  # the reference's oracle


LARGER = [(sa.sparsemap_matching, best_matching, *size) for size in ((12, 0.05), (12, 1.0), (25, 0.2), (40, 1.0))]
LARGER += [(sa.sparsemap_tree, best_tree, *size) for size in ((12, 0.05), (25, 0.2), (40, 1.0))]


@pytest.mark.parametrize("mapping, best, n, scale", LARGER)
def test_larger_ones_fulfil_the_optimality_conditions(mapping, best, n, scale):
    """No structure is better under the scores minus the marginals, whose rows sum to one, and columns of matchings."""
    for x in (randn(n, n, scale=scale), (randn(n, n, seed=1) * 2).round() * scale):
        found, ones = mapping(x, return_structures=True), torch.ones(n, dtype=F64)
        slope = x - found.marginals
        assert best(slope) - (slope * found.marginals).sum() < 1e-10
        assert torch.allclose(found.marginals.sum(1), ones)
        if best is best_matching:
            assert torch.allclose(found.marginals.sum(0), ones) and (found.weights > 0).sum() <= (n - 1) ** 2 + 1


def test_masks_of_trees(kernel):
    x, words = randn(3, 4, 4).requires_grad_(), torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    found, g = sa.sparsemap_tree(x, words, return_structures=True), randn(3, 4, 4, seed=8)
    both = words.unsqueeze(-1) & words.unsqueeze(-2)
    assert torch.equal(found.marginals, sa.sparsemap_tree(x, both)) and (found.marginals[~both] == 0).all()
    y = x[1][words[1]][:, words[1]].detach().requires_grad_()
    alone = sa.sparsemap_tree(y)
    assert torch.allclose(found.marginals[1][both[1]], alone.flatten(), atol=1e-12)
    slopes = torch.autograd.grad(found.marginals, x, g)[0], torch.autograd.grad(alone, y, g[1][both[1]].view(3, 3))[0]
    assert torch.allclose(slopes[0][1][both[1]], slopes[1].flatten(), atol=1e-10) and (slopes[0][~both] == 0).all()
    assert (found.structures[1][:, 1] == -1).all() and (found.structures[2] == -1).all()
    assert torch.allclose(found.marginals, sparsemap(Tree(), x.mT, mask=both).mT, atol=1e-10)
    one_root = torch.ones(4, 4).bool() ^ torch.diag(torch.tensor([0, 1, 1, 1])).bool()
    heads = sa.sparsemap_tree(x, one_root.expand(3, 4, 4), return_structures=True).structures
    assert ((heads == torch.arange(4)).sum(-1)[heads[..., 0] >= 0] == 1).all()
    with pytest.raises(ValueError, match=r"row 0 of 3: no (structure|tree) is allowed"):
        sa.sparsemap_tree(x, ~torch.eye(4).bool().expand(3, 4, 4))


def test_scores_that_are_no_tree_s_are_refused():
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"scores \(3, 4\) are not square; to align two texts use sparsemap_matching"):
        sa.sparsemap_tree(x)
