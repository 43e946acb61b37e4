"""Values against independent solvers, another package, and hand-computed cases."""

from __future__ import annotations

import math

import mapping_oracles as oracle
import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

import sparse_attention as sa

SIZES = [1, 2, 3, 7, 20]
SCALES = [0.1, 1.0, 5.0]


def draws(seed: int, integers: bool = False):
    rng = np.random.default_rng(seed)
    for n in SIZES:
        for scale in SCALES:
            x = rng.normal(size=n) * scale
            yield np.round(x, 1) if integers else x


def t(x: np.ndarray) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("ties", [False, True])
def test_sparsemax_solves_the_quadratic_programme(kernel, gamma, ties):
    for x in draws(1, ties):
        assert np.allclose(sa.sparsemax(t(x), gamma=gamma), oracle.sparsemax(x, gamma), atol=1e-9)


@pytest.mark.parametrize("lam", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("ties", [False, True])
def test_fusedmax_is_two_quadratic_programmes(kernel, lam, ties):
    for x in draws(2, ties):
        for gamma in (1.0, 0.5):
            assert np.allclose(sa.fusedmax(t(x), lam=lam, gamma=gamma), oracle.fusedmax(x, lam, gamma), atol=1e-9)


@pytest.mark.parametrize("lam", [0.01, 0.1, 1.0])
def test_fusedmax_solves_the_joint_problem(kernel, lam):
    for x in draws(2):
        p, peer = sa.fusedmax(t(x), lam=lam).numpy(), oracle.fusedmax_joint(x, lam)
        assert np.allclose(p, peer, atol=1e-5)
        # The peer's point is feasible up to its tolerance only, so it may look better by about that much.
        costs = [oracle.objective("fusedmax", v, x, lam=lam) for v in (p, peer)]
        assert costs[0] <= costs[1] + 1e-7


@pytest.mark.parametrize("lam", [0.01, 0.2])
def test_oscarmax_solves_the_joint_problem(kernel, lam):
    for x in draws(3):
        assert np.allclose(sa.oscarmax(t(x), lam=lam), oracle.oscarmax(x, lam), atol=2e-7)


def test_oscarmax_is_isotonic_regression_then_projection(kernel):
    rng = np.random.default_rng(4)
    for n in (2, 5, 40, 200):
        x = rng.normal(size=n) * 0.3
        order = np.argsort(-x)
        lowered = x[order] - 0.02 * (n - np.arange(1, n + 1))
        pooled = isotonic_regression(lowered, increasing=False).x
        expected = np.empty(n)
        expected[order] = oracle.sparsemax(pooled)
        assert np.allclose(sa.oscarmax(t(x), lam=0.02), expected, atol=1e-9)


def test_oscarmax_paper_mode_differs_as_published(kernel):
    x = t(np.array([0.3, -0.25, 0.1]))
    printed, exact = sa.oscarmax(x, lam=0.05, mode="paper"), sa.oscarmax(x, lam=0.05)
    assert torch.allclose(printed, t(np.array([0.5, 0.1, 0.4])), atol=1e-12)
    assert torch.allclose(exact, t(np.array([8, 1.25, 5.75])) / 15, atol=1e-12)
    assert oracle.objective("oscarmax", printed.numpy(), x.numpy(), lam=0.05) == pytest.approx(0.196250, abs=1e-9)
    assert oracle.objective("oscarmax", exact.numpy(), x.numpy(), lam=0.05) == pytest.approx(0.1954167, abs=1e-7)
    # Far from zero the printed rule is right.
    assert torch.allclose(sa.oscarmax(x + 9, lam=0.05, mode="paper"), exact, atol=1e-12)


@pytest.mark.parametrize("p", [1.1, 1.5, 1.9])
def test_pnormmax_solves_the_conic_programme(kernel, p):
    for x in draws(5):
        assert np.allclose(sa.pnormmax(t(x), p=p), oracle.pnormmax(x, p), atol=2e-5)


@pytest.mark.parametrize("p", [1.05, 1.2, 1.5, 1.8, 2.0])
@pytest.mark.parametrize("gamma", [0.2, 1.0, 5.0])
def test_pnormmax_is_stationary(kernel, p, gamma):
    """gamma grad(1/2 |y|_p^2) = x - tau on the support, x <= tau off it: conditions that only the solution meets."""
    x = torch.randn(100, 25, dtype=torch.float64)
    y = sa.pnormmax(x, p=p, gamma=gamma)
    slack = x - gamma * y ** (p - 1) * (y**p).sum(-1, keepdim=True) ** ((2 - p) / p)
    tau = (slack * y).sum(-1, keepdim=True)
    off = torch.where(y > 1e-30, (slack - tau).abs(), (slack - tau).clamp(min=0))
    # Below 1e-30 y^(p-1) is no longer negligible although y is.
    assert off[y == 0].max() < (1e-9 if p >= 1.2 else 1e-3) if (y == 0).any() else True
    assert off[y > 1e-30].max() < 1e-9
    assert torch.allclose(y.sum(-1), torch.ones(100, dtype=torch.float64), atol=1e-12)


def test_entmax_agrees_with_the_entmax_package(kernel):
    entmax = pytest.importorskip("entmax")
    for scale in SCALES:
        x = torch.randn(50, 20, dtype=torch.float64) * scale
        assert torch.allclose(sa.entmax(x), entmax.entmax15(x), atol=1e-10)
        assert torch.allclose(sa.sparsemax(x), entmax.sparsemax(x), atol=1e-12)
        for alpha in (1.1, 1.3, 1.7, 2.5):
            assert torch.allclose(sa.entmax(x, alpha=alpha), entmax.entmax_bisect(x, alpha, n_iter=200), atol=1e-10)


@pytest.mark.parametrize("upper", [0.2, 0.5, "random"])
def test_constrained_mappings_solve_their_programmes(kernel, upper):
    rng = np.random.default_rng(6)
    for n in (5, 8, 20):
        for scale in SCALES:
            x = rng.normal(size=n) * scale
            u = np.full(n, upper) if upper != "random" else rng.random(n) * 4 / n
            if u.sum() < 1.01:
                u += 1.1 / n
            assert np.allclose(sa.constrained_sparsemax(t(x), t(u)), oracle.sparsemax(x, upper=u), atol=1e-9)
            assert np.allclose(sa.constrained_softmax(t(x), t(u)), oracle.constrained_softmax(x, u), atol=1e-6)


@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_lower_bounds_solve_their_programmes(kernel, share):
    rng = np.random.default_rng(7)
    for n in (1, 5, 12):
        for scale in SCALES:
            x, low, u = rng.normal(size=n) * scale, rng.random(n) * (rng.random(n) < 0.7) + 1e-9, rng.random(n)
            low = low / low.sum() * share
            u = low + u / u.sum() * 1.5 * (1.001 - share)  # some positions at either bound
            for f, solved, tolerance in (
                (sa.constrained_sparsemax, oracle.sparsemax(x, upper=u, lower=low), 1e-8),
                (sa.constrained_softmax, oracle.constrained_softmax(x, u, low), 1e-6),
            ):
                assert np.allclose(f(t(x), t(u), lower=t(low)), solved, atol=tolerance)
                both = (t(np.append(x, z)) for z in (9.0, 0.0))  # a masked position has no lower bound
                keep = torch.arange(n + 1) < n
                p = f(next(both), t(np.append(u, 1.0)), mask=keep, lower=t(np.append(low, 0.5)))
                assert p[n] == 0 and np.allclose(p[:n], solved, atol=tolerance)
                half = f(t(x).half(), t(u).half(), lower=t(low * 0.99).half())
                assert half.dtype == torch.float16 and abs(half.sum().item() - 1) < 4e-3


@pytest.mark.parametrize("name", ["constrained_softmax", "constrained_sparsemax"])
def test_lower_bounds_that_no_distribution_fits_are_named(kernel, name):
    f, x = getattr(sa, name), torch.zeros(2, 4)
    for upper, lower, words in (
        (0.5, 0.6, "row \\(0,\\): lower and upper 0.6 > 0.5"),
        (1.0, 0.3, "the lower ones sum to 1.2"),
        (1.0, -0.1, "lower and upper -0.1 > 1"),
        (1.0, math.nan, "nan > 1"),
        (0.2, 0.1, "sum to 0.8.*raise the bounds"),
    ):
        with pytest.raises(ValueError, match=words):
            f(x, upper, lower=lower)
        compiled = torch.func.vmap(lambda z: f(z, upper, lower=lower))  # noqa: B023
        if "raise" not in words:
            assert compiled(x).isnan().all()
    for tight in ({"bounds": 0.25, "lower": 0.1}, {"bounds": 1.0, "lower": 0.25}, {"bounds": 0.25, "lower": 0.25}):
        assert torch.allclose(f(x + torch.arange(4.0), **tight), torch.full((2, 4), 0.25))
    assert (f(x, 1.0, mask=torch.zeros(4, dtype=torch.bool), lower=0.1) == 0).all()


def test_lower_bounds_go_the_ways_of_bounds():
    """In a module, per call, in attention and in the loss of a mapping."""
    x, low, q = torch.randn(5, 6), torch.rand(5, 6) / 10, torch.randn(1, 2, 5, 4)
    for name in ("constrained_softmax", "constrained_sparsemax"):
        f = getattr(sa, name)
        expected = f(x, 0.6, lower=low)
        assert torch.equal(sa.make(name, lower=low)(x, bounds=0.6), expected)
        assert torch.equal(sa.make(name)(x, bounds=0.6, lower=low), expected)
        torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x, 0.6, lower=low), expected)
        torch.testing.assert_close(torch.func.vmap(lambda x, l: f(x, 0.6, lower=l))(x, low), expected)  # noqa: B023
        least = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.1])
        _, p = sa.sparse_attention(q, q, q, name, bounds=0.9, lower=least, need_weights=True)
        torch.testing.assert_close(p, f(q @ q.mT / 2, 0.9, lower=least))
        loss = sa.losses.fenchel_young(z := x.clone().requires_grad_(), expected.detach(), name, bounds=0.6, lower=low)
        loss.backward()
        assert abs(loss) < 1e-5 and z.grad.abs().max() < 1e-5  # the loss is 0 at the mapping's own value


def test_constrained_with_loose_bounds_are_the_plain_mappings(kernel):
    x = torch.randn(20, 9, dtype=torch.float64)
    assert torch.allclose(sa.constrained_softmax(x, 1.0), x.softmax(-1), atol=1e-14)
    assert torch.allclose(sa.constrained_sparsemax(x, 1.0), sa.sparsemax(x), atol=1e-14)


@pytest.mark.parametrize("name", ["constrained_softmax", "constrained_sparsemax"])
def test_bounds_that_no_distribution_fits_are_named(kernel, name):
    f = getattr(sa, name)
    x, u = torch.randn(4, 3, dtype=torch.float64), torch.full((4, 3), 0.5, dtype=torch.float64)
    for value, words in (
        (-1.0, r"row \(2,\) contain -1, and every bound must be >= 0"),
        (float("nan"), r"row \(2,\) contain nan"),
    ):
        wrong = u.clone()
        wrong[2, 1] = value
        with pytest.raises(ValueError, match=words):
            f(x, wrong)
        mask = torch.ones(4, 3, dtype=torch.bool)
        mask[2, 1] = False  # the bound of an excluded position says nothing
        assert torch.allclose(f(x, wrong, mask=mask).sum(-1), torch.ones(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"row \(0,\) sum to 0.6 over the kept positions.*raise the bounds"):
        f(x, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    assert torch.equal(f(x, u * 0, mask=torch.zeros(4, 3, dtype=torch.bool)), torch.zeros_like(x))
    # Fertility used up exactly, but for rounding.
    used = torch.tensor([0.1, 0.2, 0.7 - 1e-6], dtype=torch.float64)
    assert torch.allclose(f(x, used), used.expand(4, 3), atol=1e-15)


def test_values_printed_elsewhere(kernel):
    x = t(np.array([1, 2.1, 1.9]))
    assert torch.allclose(
        sa.fusedmax(x, lam=0.1), t(np.array([0, 0.5, 0.5])), atol=1e-12
    )  # README of the authors' code
    z = t(np.array([-1, -0.2, -0.9]))
    assert torch.allclose(sa.sparsecone(z, q=0.1), t(np.array([0.536, 0, 0.464])), atol=5e-4)
    assert sa.sparsehourglass(z, q=0.1).argmax() == 1


@pytest.mark.parametrize("name, g", [("lin", lambda z: z), ("exp", torch.exp), ("sq", torch.square)])
@pytest.mark.parametrize("lam", [-2.0, 0.0, 0.7])
def test_sparsegen_solves_its_programme(kernel, name, g, lam):
    for x in draws(7):
        z = t(np.clip(x, -3, 3))
        # |p - g|^2 - lam |p|^2 has the minimiser of |p - g/(1-lam)|^2.
        n, goal = len(x), g(z).numpy()
        import qpsolvers

        expected = qpsolvers.solve_qp(
            2 * (1 - lam) * np.eye(n), -2 * goal, A=np.ones((1, n)), b=np.ones(1), lb=np.zeros(n), solver="daqp"
        )
        assert np.allclose(getattr(sa, f"sparsegen_{name}")(z, lam=lam), expected, atol=1e-8)


def test_sparsehourglass_is_the_cone_of_the_mirror_point(kernel):
    z = torch.randn(200, 6, dtype=torch.float64)
    total = z.sum(-1, keepdim=True)
    mirror = torch.where(total < 0, z - 2 / 6 * total, z)
    assert torch.allclose(sa.sparsehourglass(z, q=0.4), sa.sparsecone(mirror, q=0.4), atol=1e-10)


def test_special_cases_of_sparsegen(kernel):
    """Laha et al. 2018, sec. 3.1: softmax, spherical softmax and sum-normalisation are sparsegen with lam = 1 - sum g."""
    z = torch.rand(50, 6, dtype=torch.float64) + 0.1
    for f, expected in (
        (torch.exp, z.softmax(-1)),
        (torch.square, sa.spherical_softmax(z)),
        (lambda v: v, sa.sum_normalization(z)),
    ):
        g = f(z)
        lam = 1 - g.sum(-1)
        assert torch.allclose(sa.sparsegen_lin(g, lam=lam), expected, atol=1e-12)


def test_pgd_reaches_the_exact_solution_and_its_published_tolerance_does_not():
    x = torch.randn(200, 30, dtype=torch.float64)
    exact = sa.pnormmax(x)
    error = (sa.pnormmax(x, solver="pgd") - exact).abs().amax(-1)
    assert 2e-3 < error.mean() < 2e-2 and error.max() < 6e-2
    assert (sa.pnormmax(x, solver="pgd", tol=1e-9) - exact).abs().max() < 1e-3


def test_float32_is_within_1e_6_of_float64(kernel):
    for scale in (0.1, 1.0, 5.0):
        x = (torch.randn(300, 50) * scale).contiguous()
        for f in (
            sa.sparsemax,
            sa.entmax,
            sa.pnormmax,
            sa.fusedmax,
            sa.oscarmax,
            lambda v: sa.entmax(v, alpha=1.3),
            lambda v: sa.constrained_sparsemax(v, 0.1),
        ):
            assert (f(x).double() - f(x.double())).abs().max() < 1e-6
