"""sparsemap_sequence against all sequences: values, gradients, ties; and its dense counterpart."""

import itertools

import entmax
import pytest
import structure_oracles as oracle
import torch
from structure_oracles import differentiated, randn

import sparse_attention as sa

F64 = torch.float64


def test_without_transitions_positions_are_sparsemax_with_its_jacobians(kernel):
    """Also at ties: 0 everywhere, equal positions, equal states. The hull of the structures with weight is then smaller than
    the face, and a gradient by them alone is wrong."""
    t = torch.zeros(3, 3, dtype=F64)
    alike = (torch.ones(1, 3), randn(1, 3), randn(4, 1))
    for x in (torch.zeros(4, 3), *(one.expand(4, 3) for one in alike), randn(4, 3)):
        x, g = x.to(F64).contiguous().requires_grad_(), randn(4, 3, seed=9)
        p, q = sa.sparsemap_sequence(x, t), entmax.sparsemax(x, dim=-1)
        assert torch.allclose(p, q, atol=1e-12)
        assert torch.allclose(*(torch.autograd.grad(v, x, g)[0] for v in (p, q)), atol=1e-9)


def test_gradients_along_ties_that_stay_by_differences(kernel):
    """Transitions a_x + b_y are scores in disguise: along them the solution is smooth at every tie of sequences."""
    T, S = 4, 3
    for x in (torch.zeros(T, S, dtype=F64), randn(1, S).expand(T, S).contiguous()):

        def f(v, x=x):
            return sa.sparsemap_sequence(x, v[:S, None] + v[S:])

        v = torch.zeros(2 * S, dtype=F64)
        assert differentiated(f, v)


def test_start_and_stop_are_scores_of_the_ends(kernel):
    x, t, start, stop = randn(2, 5, 3), randn(3, 3), randn(3, seed=3), randn(2, 3, seed=4)
    mask = torch.tensor([[True] * 5, [False, True, True, True, False]])
    moved = x.clone()
    moved[0, 0] += start
    moved[0, 4] += stop[0]
    moved[1, 1] += start
    moved[1, 3] += stop[1]
    found = sa.sparsemap_sequence(x, t, start, stop, mask)
    assert torch.equal(found, sa.sparsemap_sequence(moved, t, mask=mask))


def test_forbidden_transitions(kernel):
    x, t = randn(5, 3), torch.zeros(3, 3, dtype=F64)
    t[0, 1] = t[2, 2] = -torch.inf
    found = sa.sparsemap_sequence(x, t, return_structures=True)
    for y in found.structures.tolist():
        assert all(t[a, b] == 0 for a, b in itertools.pairwise(y))
    assert torch.allclose(found.marginals, sa.sparsemap_sequence(x, t.clamp(min=-1e3)), atol=1e-8)


@pytest.mark.parametrize("T, S, scale", [(40, 2, 0.3), (40, 5, 1.0), (25, 40, 1.0), (40, 40, 2.0), (200, 3, 1.0)])
def test_long_sequences_agree_with_their_certificate(T, S, scale):
    """The gap computed by another Viterbi, the reference's."""
    from sparse_attention.structured import Sequence

    x, t = randn(T, S, scale=scale), randn(S, S, seed=1)
    found = sa.sparsemap_sequence(x, t, return_structures=True)
    slope = x - found.marginals

    def score(y):
        return slope[range(T), y].sum() + t[y[:-1], y[1:]].sum()

    m, _ = Sequence().highest(slope, t)
    own = sum(w * score(y) for w, y in zip(found.weights, found.structures))
    assert score(m.argmax(-1)) - own < 1e-11 and found.gap < 1e-11


@pytest.mark.parametrize("T, S", [(1, 3), (4, 3), (6, 2)])
def test_softmax_over_sequences_against_all_of_them(T, S):
    M, steps = map(torch.tensor, oracle.sequences(T, S))
    x, t, start, stop = randn(T, S), randn(S, S, seed=1), randn(S, seed=2), randn(S, seed=3)
    first, last = torch.zeros(T, S, dtype=F64), torch.zeros(T, S, dtype=F64)
    first[0], last[-1] = 1, 1
    scores = M @ (x + first * start + last * stop).flatten() + steps @ t.flatten()
    expected = (M.T @ torch.softmax(scores, 0)).view(T, S)
    assert torch.allclose(sa.softmax_sequence(x, t, start, stop), expected, atol=1e-12)
    x.requires_grad_(), t.requires_grad_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(sa.softmax_sequence, (x, t))


def test_masks_of_the_softmax_over_sequences():
    x, t = randn(3, 5, 3), randn(3, 3, seed=1)
    mask = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    x.requires_grad_()
    p = sa.softmax_sequence(x, t, mask=mask)
    for b in range(2):
        assert torch.allclose(p[b, mask[b]], sa.softmax_sequence(x[b, mask[b]], t), atol=1e-12)
    assert (p[~mask] == 0).all()
    p.square().sum().backward()
    assert torch.isfinite(x.grad).all() and (x.grad[~mask] == 0).all()
    t[0, 1] = -torch.inf
    states = torch.ones(3, 5, 3).bool()
    states[:, 2, 1] = False
    q = sa.softmax_sequence(x, t, mask=states)
    assert (q[:, 2, 1] == 0).all() and torch.allclose(q.sum(-1), torch.ones(3, 5, dtype=F64))
