"""sparsemap_matching and sparsemap_tree against scipy's assignments and networkx's arborescences: gradients, ties."""

import networkx as nx
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from structure_oracles import differentiated, randn

import sparse_attention as sa
from sparse_attention.structured import Matching, Tree

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


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_gradients_of_trees_by_differences_also_with_ties(kernel, n):
    roots = (torch.eye(n, dtype=F64) * root for root in (0.2, -0.2))
    for x in (*(scale * randn(n, n) for scale in (0.1, 1, 4)), *roots):
        assert differentiated(sa.sparsemap_tree, x)


SIZES = [
    (sa.sparsemap_matching, *size) for size in ((12, 12, 0.05), (7, 7, 1.0), (5, 9, 1.0), (25, 25, 0.2), (40, 40, 1.0))
]
SIZES += [(sa.sparsemap_tree, *size) for size in ((6, 6, 1.0), (12, 12, 0.05), (25, 25, 0.2), (40, 40, 1.0))]


@pytest.mark.parametrize("mapping, n, m, scale", SIZES)
def test_larger_ones_fulfil_the_optimality_conditions(mapping, n, m, scale):
    """No structure is better under the scores minus the marginals, whose rows sum to one, and columns of matchings; the
    reference's oracle finds the best one, and so does the mapping without a regulariser (large scores)."""
    best, oracle = (best_matching, Matching().highest) if mapping is sa.sparsemap_matching else (best_tree, _heads)
    for x in (randn(n, m, scale=scale), (randn(n, m, seed=1) * 2).round() * scale):  # ties, and more cycles
        if best is best_tree and n < 30:
            some = torch.rand(n, n) < 0.5
            x = x.masked_fill(~(some | torch.eye(n, dtype=torch.bool)), -torch.inf)
        found, ones = mapping(x, return_structures=True), torch.ones(n, dtype=F64)
        slope, finite = x - found.marginals, x.masked_fill(x == -torch.inf, 0.0)
        assert best(slope) - (slope.masked_fill(x == -torch.inf, 0.0) * found.marginals).sum() < 1e-10
        assert torch.allclose(found.marginals.sum(1), ones)
        if n == m and best is best_matching:
            assert torch.allclose(found.marginals.sum(0), ones) and (found.weights > 0).sum() <= (n - 1) ** 2 + 1
        assert abs((mapping(x / scale * 1e4) * finite).sum() - best(x)) < 1e-3
        if n <= 25:
            assert abs((oracle(x) * finite).sum() - best(x)) < 1e-9


def _heads(x):
    return Tree().highest(x.mT).mT


def test_scores_that_are_no_tree_s_are_refused():
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"scores \(3, 4\) are not square; to align two texts use sparsemap_matching"):
        sa.sparsemap_tree(x)
