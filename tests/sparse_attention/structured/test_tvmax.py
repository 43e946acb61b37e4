"""TVmax against quadratic programmes (prox and joint problem) and against fusedmax; derivatives, masks, certificate."""

import math
import sys

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from structure_oracles import randn

import sparse_attention as sa

F64 = torch.float64


def differences(keep: np.ndarray) -> np.ndarray:
    """One row of -1 and 1 for every pair of neighbours that are both kept."""
    number = np.arange(keep.size).reshape(keep.shape)
    sides = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    pairs = [(a, b) for x, y in sides for a, b in zip(x.flat, y.flat)]
    pairs = [(a, b) for a, b in pairs if keep.flat[a] and keep.flat[b]]
    D = np.zeros((len(pairs), keep.size))
    for row, (a, b) in zip(D, pairs):
        row[a], row[b] = -1, 1
    return D


def by_bounded_least_squares(x: np.ndarray, lam: float, keep: np.ndarray) -> np.ndarray:
    """The prox's dual by an active set method, the simplex by sorting."""
    D = differences(keep)
    y = x.ravel() - (D.T @ lsq_linear(D.T, x.ravel(), (-lam, lam), method="bvls", tol=1e-15).x if len(D) and lam else 0)
    ordered = np.sort(y[keep.ravel()])[::-1]
    tau = max((ordered[:k].sum() - 1) / k for k in range(1, len(ordered) + 1))
    return np.where(keep, np.maximum(y - tau, 0).reshape(x.shape), 0)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 4), (6, 6), (5, 9)])
@pytest.mark.parametrize("lam", [0.0, 0.01, 0.1, 0.5, 20.0])
@pytest.mark.parametrize("small", [0, 256])
def test_value_with_and_without_holes(shape, lam, small, monkeypatch):
    monkeypatch.setattr(
        sys.modules["sparse_attention.mappings.tvmax"], "SMALL", small
    )  # steps on the grid, or by a matrix
    for seed, holes in ((0, 0.0), (1, 0.3)):
        x = randn(*shape, seed=seed)
        keep = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= holes
        keep[0, 0] = True
        p, gap = sa.tvmax(x, lam=lam, mask=keep, return_gap=True)
        oracle = torch.from_numpy(by_bounded_least_squares(x.numpy(), lam, keep.numpy()))
        assert torch.allclose(p, oracle, atol=1e-7) and 0 <= gap <= 1e-10
        assert (p - oracle).abs().max() <= math.sqrt(2 * gap) + 1e-7


@pytest.mark.parametrize("lam", [0.05, 0.3])
def test_the_joint_problem(lam):
    """Without the decomposition into prox and projection."""
    x = randn(4, 4, seed=2)
    p, D = cp.Variable(16), differences(np.ones((4, 4), dtype=bool))
    goal = 0.5 * cp.sum_squares(p - x.numpy().ravel()) + lam * cp.norm1(D @ p)
    cp.Problem(cp.Minimize(goal), [p >= 0, cp.sum(p) == 1]).solve(solver=cp.CLARABEL)
    assert np.allclose(sa.tvmax(x, lam=lam).numpy().ravel(), p.value, atol=1e-5)


@pytest.mark.parametrize("lam", [0.01, 0.1, 1.0, 1e6])
def test_one_row_of_cells_is_fusedmax(lam):
    x = randn(3, 9)
    assert torch.allclose(sa.tvmax(x.unsqueeze(1), lam=lam).squeeze(1), sa.fusedmax(x, lam=lam), atol=1e-12)
    assert torch.allclose(sa.tvmax(x.unsqueeze(2), lam=lam).squeeze(2), sa.fusedmax(x, lam=lam), atol=1e-12)


def value_and_gradient(mapping, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    p = mapping(x)
    (g,) = torch.autograd.grad((p * torch.arange(p.numel(), dtype=p.dtype).sin().view_as(p)).sum(), x)
    return p.detach(), g


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("lam", [0.0, 1e-6, 1e-4, 3e-3])
def test_scores_that_nearly_agree_are_not_one_region(dtype, lam):
    """A ramp whose steps are far below the range of the scores; some of it joins at its ends only."""
    ramp = torch.linspace(0, 1e-3, 200 if lam < 1e-3 else 60, dtype=dtype)
    x = torch.cat([ramp, torch.tensor([-5.0], dtype=dtype)])
    reference = (lambda x: sa.fusedmax(x, lam=lam)) if lam else sa.sparsemax
    atol = 1e-13 if dtype == F64 else 1e-7
    expected = value_and_gradient(reference, x)
    for shape in ((1, -1), (-1, 1)):
        found = value_and_gradient(lambda x, shape=shape: sa.tvmax(x.view(shape), lam=lam).flatten(), x)
        for ours, theirs in zip(found, expected):
            assert torch.allclose(ours, theirs, rtol=0.0, atol=atol)


def test_grids_that_nearly_agree():
    x = 1e-3 * randn(4, 4, seed=3)
    x[2, 2] = -5
    keep = np.ones((4, 4), dtype=bool)
    for lam in (1e-4, 2e-4):
        p = sa.tvmax(x, lam=lam)
        assert 4 < len(p.unique()) < 16
        oracle = torch.from_numpy(by_bounded_least_squares(x.numpy(), lam, keep))
        assert torch.allclose(p, oracle, rtol=0.0, atol=1e-10)
        scaled = (x * 1e3).requires_grad_()  # steps of gradcheck that stay inside a region's range
        assert torch.autograd.gradcheck(lambda z, lam=lam: sa.tvmax(z / 1e3, lam=lam) * 1e3, (scaled,))


def test_without_a_penalty_ties_have_sparsemax_gradients():
    x = torch.tensor([[0.2, 0.2, 0.1], [0.2, 0.2, -3.0]], dtype=F64)
    found = value_and_gradient(lambda x: sa.tvmax(x, lam=0.0).flatten(), x)
    expected = value_and_gradient(lambda x: sa.sparsemax(x.flatten()), x)
    for ours, theirs in zip(found, expected):
        assert torch.allclose(ours, theirs, rtol=0.0, atol=1e-14)
    joined = value_and_gradient(lambda x: sa.tvmax(x, lam=0.1).flatten(), x)[1]
    assert len(joined[:, :2].unique()) == 1


def test_too_few_steps_are_told(monkeypatch):
    monkeypatch.setattr(sys.modules[sa.tvmax.__module__], "STEPS", 20)
    with pytest.warns(RuntimeWarning, match=r"stopped after 20 steps .* may be off by"):
        sa.tvmax(randn(1, 60).cumsum(-1), lam=30.0)


def test_regions_are_equal_to_the_last_digit_and_derivatives_are_those_of_the_value():
    x = (0.15 * randn(2, 3, 4)).requires_grad_()
    keep = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(4)) > 0.2
    lam, gamma = (torch.tensor(v, dtype=F64, requires_grad=True) for v in ([0.1, 0.2], [0.7, 1.5]))
    p = sa.tvmax(x, lam=lam, gamma=gamma, mask=keep)
    for one in p:
        assert len(one[one > 0].unique()) < int((one > 0).sum()), "nothing fused: the test would test sparsemax"
    assert torch.autograd.gradcheck(lambda a, b, c: sa.tvmax(a, lam=b, gamma=c, mask=keep), (x, lam, gamma))
    assert torch.autograd.gradgradcheck(lambda a: sa.tvmax(a, lam=0.1, mask=keep), (x,))
    (g,) = torch.autograd.grad(p.square().sum(), x)
    assert not g[~keep].any()


def test_the_contract_of_masks_and_bad_scores():
    x = torch.randn(4, 3, 3)
    x[1, 0, 0], x[2], x[3, 1, 1] = math.nan, -math.inf, math.inf
    p = sa.tvmax(x)
    assert p[0].sum() == pytest.approx(1) and p[1].isnan().all() and not p[2].any() and p[3].isnan().all()
    assert sa.tvmax(torch.zeros(0, 3, 3)).shape == (0, 3, 3)
    half = torch.randn(2, 3, 3, dtype=torch.bfloat16)
    assert sa.tvmax(half).dtype == torch.bfloat16
    assert torch.equal(sa.tvmax(half), sa.tvmax(half.float()).bfloat16())


def test_scores_far_apart_and_offsets():
    """Far scores do not cost the others their digits: a user's -1e9 leaves the neighbours as any other low score does."""
    x = randn(5, 5)
    low = torch.rand(5, 5, generator=torch.Generator().manual_seed(1)) < 0.3
    assert torch.allclose(sa.tvmax(x.masked_fill(low, -1e9)), sa.tvmax(x.masked_fill(low, -50.0)), atol=1e-12)
    assert torch.allclose(sa.tvmax(x + 1e6), sa.tvmax(x), atol=1e-8)


def test_grids_of_a_batch_do_not_see_each_other():
    x = torch.cat([randn(3, 4, 6), 50 * randn(3, 4, 6, seed=1)])
    together = sa.tvmax(x.view(2, 3, 4, 6), lam=0.2).view(6, 4, 6)
    assert torch.allclose(together, torch.stack([sa.tvmax(one, lam=0.2) for one in x]), atol=1e-10)


def test_errors_and_module():
    with pytest.raises(ValueError, match=r"shape \(3,\) are not a grid"):
        sa.tvmax(torch.zeros(3))
    with pytest.raises(ValueError, match=r"lam=-1"):
        sa.tvmax(torch.zeros(3, 3), lam=-1)
    x = randn(2, 3, 3)
    assert torch.equal(sa.make("tvmax", lam=0.3)(x), sa.tvmax(x, lam=0.3)) and sa.spec("tvmax").over == "grid"
