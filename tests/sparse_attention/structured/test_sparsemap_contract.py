"""What the mappings keep in either kernels: shapes, types, NaN, far scores, second derivatives, transforms, errors."""

import itertools
import math

import numpy as np
import pytest
import structure_oracles as oracle
import torch
from structure_oracles import randn

import sparse_attention as sa

F64 = torch.float64
SIZES = {
    "sequence": [(1, 1), (1, 4), (2, 2), (3, 3), (5, 2), (6, 2), (3, 4), (6, 1)],
    "matching": [(1, 1), (1, 4), (4, 1), (2, 2), (3, 3), (2, 4), (4, 3), (3, 5), (4, 4)],
    "tree": [(1, 1), (2, 2), (3, 3), (4, 4)],
}


@pytest.mark.parametrize("kind, n, m", [(kind, *size) for kind, sizes in SIZES.items() for size in sizes])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_the_programme_over_all_structures_is_solved(kernel, kind, n, m, scale):
    if kind == "sequence":
        M, steps = oracle.sequences(n, m)
    else:
        M = oracle.trees(n) if kind == "tree" else oracle.matchings(n, m)
    for seed in range(3):
        x = randn(n, m, seed=seed, scale=scale)
        t = [randn(m, m, seed=seed + 50)] if kind == "sequence" else []
        x, *t = (one.round() if seed == 2 else one for one in (x, *t))  # dependent structures of equal score
        found = getattr(sa, f"sparsemap_{kind}")(x, *t, return_structures=True)
        mu = oracle.sparsemap(M, x.numpy().ravel(), steps @ t[0].numpy().ravel() if t else 0.0)
        assert np.abs(found.marginals.numpy().ravel() - mu).max() < 1e-8 and found.gap < 1e-12
        listed = oracle.held(found.structures, m)
        assert torch.allclose((found.weights.view(-1, 1, 1) * listed).sum(0), found.marginals, atol=1e-12)
        assert all((y.ravel() == M).all(1).any() for y in listed[found.weights > 0].numpy())


@pytest.mark.parametrize("kind", SIZES)
def test_what_is_masked_is_as_if_removed(kernel, kind):
    f, width = getattr(sa, f"sparsemap_{kind}"), {"sequence": 3, "matching": 4, "tree": 5}[kind]
    x, g = randn(3, 5, width).requires_grad_(), randn(3, 5, width, seed=8)
    t = [randn(3, width, width, seed=1)] if kind == "sequence" else []
    rows = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 0, 1, 1], [0] * 5]).bool()
    columns = rows if kind == "tree" else torch.ones(3, width, dtype=torch.bool)
    if kind == "matching":
        columns[1, ::2] = False  # fewer than rows, so that columns take rows
    both = rows.unsqueeze(-1) & columns.unsqueeze(-2)
    found = f(x, *t, mask=both if kind == "matching" else rows, return_structures=True)
    (dx,) = torch.autograd.grad(found.marginals, x, g)
    assert (found.marginals[~both] == 0).all() and (dx[~both] == 0).all() and dx.isfinite().all()
    for b in range(2):
        inside, slopes, given = (z[b][rows[b]][:, columns[b]] for z in (found.marginals, dx, g))
        y = x[b][rows[b]][:, columns[b]].detach().requires_grad_()
        alone = f(y, *(one[b] for one in t))
        assert torch.allclose(inside, alone, atol=1e-12)
        assert torch.allclose(slopes, torch.autograd.grad(alone, y, given)[0], atol=1e-10)
        assert (found.structures[b][:, ~rows[b]] == -1).all()
    assert (found.structures[2] == -1).all()


def test_a_row_without_a_structure_is_named(kernel):
    x, only = randn(3, 4, 4), torch.eye(4, dtype=torch.bool)
    assert torch.equal(sa.sparsemap_matching(x[0], only), only.to(F64))
    only[0], only[2] = only[1].clone(), True  # rows 0 and 1 have column 1 alone
    for f, row in (
        (lambda: sa.sparsemap_matching(x[:2], torch.stack((only | True, only))), "row 1 of 2"),
        (lambda: sa.sparsemap_tree(x, ~torch.eye(4).bool().expand(3, 4, 4)), "row 0 of 3"),
        (lambda: sa.sparsemap_sequence(x[0], torch.full((4, 4), -torch.inf, dtype=F64)), "row 0 of 1"),
    ):
        with pytest.raises(ValueError, match=rf"{row}: no (structure|matching|tree|sequence) is allowed"):
            f()


def test_leading_shapes_dtypes_and_empty_batches(kernel):
    x, t = randn(2, 3, 5, 2), randn(2, 2)
    whole = sa.sparsemap_sequence(x, t)
    assert whole.shape == x.shape
    for i, j in itertools.product(range(2), range(3)):
        assert torch.allclose(whole[i, j], sa.sparsemap_sequence(x[i, j], t), atol=1e-13)
    wide = sa.sparsemap_sequence(x[0], torch.stack((t, t * 2, t * 3)))
    assert torch.allclose(wide[1], sa.sparsemap_sequence(x[0, 1], 2 * t), atol=1e-13)
    spread = sa.sparsemap_sequence(x[0, 0], torch.stack((t, t * 2)))
    assert spread.shape == (2, 5, 2) and torch.allclose(spread[1], sa.sparsemap_sequence(x[0, 0], 2 * t), atol=1e-13)
    assert torch.allclose(sa.sparsemap_sequence(x.mT.contiguous().mT, t), whole)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        p = sa.sparsemap_sequence(x.to(dtype), t)
        assert p.dtype == dtype and torch.allclose(p.to(F64), whole, atol=tolerance)
    for shape in ((0, 3, 2), (2, 0, 2)):
        assert sa.sparsemap_sequence(torch.randn(shape), torch.zeros(2, 2)).shape == shape
    y = randn(2, 3, 4, 4)
    trees = sa.sparsemap_tree(y)
    assert torch.allclose(trees[1, 2], sa.sparsemap_tree(y[1, 2]), atol=1e-13)
    assert torch.allclose(sa.sparsemap_tree(y.mT.contiguous().mT), trees)
    assert sa.sparsemap_tree(y.half()).dtype == torch.half
    for shape in ((0, 3, 3), (2, 0, 0)):
        assert sa.sparsemap_tree(torch.randn(shape), return_structures=True).marginals.shape == shape
    assert sa.sparsemap_matching(torch.randn(0, 3, 2)).shape == (0, 3, 2)
    assert sa.sparsemap_matching(torch.randn(2, 0, 2), return_structures=True).weights.shape == (2, 1)


def test_nan_and_infinity_stay_in_their_row(kernel):
    for f in (
        lambda x: sa.sparsemap_sequence(x, torch.zeros(3, 3, dtype=F64)),
        sa.sparsemap_matching,
        sa.sparsemap_tree,
    ):
        x = randn(4, 3, 3)
        clean = f(x)
        x[1, 0, 0], x[2, 1, 1] = math.nan, math.inf
        x.requires_grad_()
        p = f(x)
        assert torch.isnan(p[1:3]).all() and torch.equal(p[[0, 3]], clean[[0, 3]])
        p[0].sum().backward()
        assert torch.isfinite(x.grad[[0, 3]]).all()
    t = torch.zeros(2, 3, 3, dtype=F64)
    t[0, 0, 0] = math.nan
    p = sa.sparsemap_sequence(randn(2, 4, 3), t)
    assert torch.isnan(p[0]).all() and torch.isfinite(p[1]).all()


def test_scores_far_apart(kernel):
    """A user's own -1e9 for masked scores does not cost the others their digits; nor do large common offsets."""
    x, t = randn(5, 3), randn(3, 3, seed=1)
    keep = torch.rand(5, 3, generator=torch.Generator().manual_seed(3)) > 0.3
    keep[:, 0] = True
    masked = sa.sparsemap_sequence(x, t, mask=keep)
    assert torch.allclose(sa.sparsemap_sequence(torch.where(keep, x, -1e9), t), masked, atol=1e-11)
    assert torch.allclose(sa.sparsemap_sequence(x + 1e6, t), sa.sparsemap_sequence(x, t), atol=1e-8)
    y = randn(4, 4)
    for f in (sa.sparsemap_matching, sa.sparsemap_tree):
        assert torch.allclose(f(y + 1e6), f(y), atol=1e-8)


def test_double_backward_is_that_of_a_linear_map(kernel):
    x, t = randn(2, 3, 2).requires_grad_(), randn(2, 2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(sa.sparsemap_sequence, (x, t), atol=1e-5)
    for steps in (t, t[0].detach().requires_grad_()):  # of each sequence, of both
        assert torch.autograd.gradcheck(sa.sparsemap_sequence, (x, steps), atol=1e-5)
    for f, shape in ((sa.sparsemap_matching, (2, 3, 3)), (sa.sparsemap_tree, (1, 3, 3))):
        z = randn(*shape).requires_grad_()
        assert torch.autograd.gradgradcheck(f, (z,), atol=1e-5)
        assert torch.autograd.gradcheck(f, (z,), check_forward_ad=True, check_batched_grad=True, atol=1e-5)


def test_transforms(kernel):
    x, t = randn(3, 4, 2), randn(3, 2, 2, seed=1)
    one = torch.func.vmap(sa.sparsemap_sequence)(x, t)
    assert torch.allclose(one, sa.sparsemap_sequence(x, t), atol=1e-13)
    shared = torch.func.vmap(sa.sparsemap_sequence, in_dims=(0, None))(x, t[0])
    assert torch.allclose(shared, sa.sparsemap_sequence(x, t[0]), atol=1e-13)

    def f(z):
        return sa.sparsemap_sequence(z, t[0])

    jacobian = torch.autograd.functional.jacobian
    assert torch.allclose(torch.func.jacrev(f)(x[0]), jacobian(f, x[0]), atol=1e-12)
    y = randn(3, 3, 3)
    assert torch.allclose(torch.func.vmap(sa.sparsemap_tree)(y), sa.sparsemap_tree(y), atol=1e-13)
    assert torch.allclose(torch.func.jacrev(sa.sparsemap_tree)(y[0]), jacobian(sa.sparsemap_tree, y[0]), atol=1e-12)


def test_errors_name_what_is_wrong():
    x = torch.randn(2, 4, 3)
    with pytest.raises(ValueError, match=r"transitions of shape \(2, 2\) do not fit scores of shape \(2, 4, 3\)"):
        sa.sparsemap_sequence(x, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"transitions of shape \(3, 3, 3\) do not broadcast"):
        sa.sparsemap_sequence(x, torch.zeros(3, 3, 3))
    with pytest.raises(TypeError, match="must be boolean"):
        sa.sparsemap_matching(x, torch.ones(2, 4, 3))
    with pytest.raises(ValueError, match="no rows and columns"):
        sa.sparsemap_matching(torch.zeros(3))
    with pytest.raises(TypeError, match="floating point"):
        sa.sparsemap_matching(torch.zeros(3, 3, dtype=torch.int64))
