"""sparsemap_tree against all trees and networkx: values, gradients, ties, masks."""

import networkx as nx
import pytest
import torch
from structure_oracles import differentiated, randn

import sparse_attention as sa
from sparse_attention.structured import Tree, sparsemap

F64 = torch.float64


def best(x):
    """The highest score of a tree, by networkx, of scores ``[word, head]``."""
    n = len(x)
    arcs = [(n if h == w else h, w, x[w, h].item()) for w in range(n) for h in range(n) if x[w, h] > -torch.inf]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(arcs)
    return nx.maximum_spanning_arborescence(graph).size(weight="weight")


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
        assert abs((mu * finite).sum() - best(x)) < 1e-3
        assert abs((Tree().highest(x.mT).mT * finite).sum() - best(x)) < 1e-9  # the reference's oracle


@pytest.mark.parametrize("n, scale", [(12, 0.05), (25, 0.2), (40, 1.0)])
def test_larger_trees_fulfil_the_optimality_conditions(n, scale):
    """networkx finds no tree that is better under the scores minus the marginals."""
    for x in (randn(n, n, scale=scale), (randn(n, n, seed=1) * 2).round() * scale):
        mu = sa.sparsemap_tree(x)
        slope = x - mu
        assert best(slope) - (slope * mu).sum() < 1e-10
        assert torch.allclose(mu.sum(-1), torch.ones(n, dtype=F64))


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


def test_what_is_refused():
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"scores \(3, 4\) are not square; to align two texts use sparsemap_matching"):
        sa.sparsemap_tree(x)
    with pytest.raises(ValueError, match="sparsemap_tree works over a tree; attention needs a mapping"):
        sa.sparse_attention(x, x, x, "sparsemap_tree")
    with pytest.raises(TypeError, match="scores is a nested tensor"):
        sa.sparsemap_tree(torch.nested.nested_tensor([torch.randn(2, 2)], layout=torch.jagged))
