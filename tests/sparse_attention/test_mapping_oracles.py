"""Values against independent solvers, another package, and hand-computed cases; top-k and top-p against all sets."""

import itertools
import math

import mapping_oracles as oracle
import numpy as np
import pytest
import torch

import sparse_attention as sa

SIZES = [1, 2, 3, 7, 20]
SCALES = [0.1, 1.0, 5.0]


def draws(seed: int):
    rng = np.random.default_rng(seed)
    for n in SIZES:
        for scale in SCALES:
            yield rng.normal(size=n) * scale


def t(x: np.ndarray) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


PROGRAMMES = [
    *(("fusedmax", {"lam": lam}) for lam in (0.01, 0.1, 1.0)),
    *(("oscarmax", {"lam": lam}) for lam in (0.01, 0.2)),
    *(("pnormmax", {"p": p}) for p in (1.1, 1.5, 1.9)),
]


@pytest.mark.parametrize("name, params", PROGRAMMES, ids=str)
def test_the_joint_problem_is_solved(name, params):
    """To the solver's digits; kernels/test_native.py has solvers of the parts that are exact."""
    for x in draws(2):
        p = getattr(sa, name)(t(x), **params)
        assert np.allclose(p, getattr(oracle, name)(x, **params), atol=1e-5 if name == "fusedmax" else 2e-5)


def test_oscarmax_paper_mode_differs_as_published(kernel):
    x = t(np.array([0.3, -0.25, 0.1]))
    printed, exact = sa.oscarmax(x, lam=0.05, mode="paper"), sa.oscarmax(x, lam=0.05)
    assert torch.allclose(printed, t(np.array([0.5, 0.1, 0.4])), atol=1e-12)
    assert torch.allclose(exact, t(np.array([8, 1.25, 5.75])) / 15, atol=1e-12)
    # Far from zero the printed rule is right.
    assert torch.allclose(sa.oscarmax(x + 9, lam=0.05, mode="paper"), exact, atol=1e-12)


@pytest.mark.parametrize("share", [None, 0.3, 0.9, 1.0])
def test_constrained_mappings_solve_their_programmes(kernel, share):
    """``share``: how much of the mass the lower bounds take."""
    rng = np.random.default_rng(7)
    for n in (1, 5, 12):
        for scale in SCALES:
            x, low, u = rng.normal(size=n) * scale, rng.random(n) * (rng.random(n) < 0.7) + 1e-9, rng.random(n)
            low = low / low.sum() * (share or 0.0)
            u = low + u / u.sum() * 1.5 * (1.001 - (share or 0.0))  # some positions at either bound
            for f, solved, tolerance in (
                (sa.constrained_sparsemax, oracle.sparsemax(x, upper=u, lower=low), 1e-8),
                (sa.constrained_softmax, oracle.constrained_softmax(x, u, low), 1e-6),
            ):
                assert np.allclose(f(t(x), t(u), lower=t(low) if share else None), solved, atol=tolerance)
                both = (t(np.append(x, z)) for z in (9.0, 0.0))  # a masked position has no lower bound
                keep = torch.arange(n + 1) < n
                p = f(next(both), t(np.append(u, 1.0)), mask=keep, lower=t(np.append(low, 0.5)) if share else None)
                assert p[n] == 0 and np.allclose(p[:n], solved, atol=tolerance)
                half = f(t(x).half(), t(u).half(), lower=t(low * 0.99).half())
                assert half.dtype == torch.float16 and abs(half.sum().item() - 1) < 4e-3


NO_DISTRIBUTION = [  # upper bounds, lower bounds, and what is said
    (0.5, 0.6, r"row \(0,\): lower bound 0.6, upper bound 0.5"),
    (1.0, 0.3, "the lower bounds sum to 1.2"),
    (1.0, -0.1, "lower bound -0.1, upper bound 1"),
    (1.0, math.nan, "lower bound nan, upper bound 1"),
    (0.2, 0.1, "sum to 0.8.*raise the bounds"),
    ([0.1, 0.2, 0.3, 0.1], None, r"row \(0,\) sum to 0.7 over the kept positions.*raise the bounds"),
    ([[0.5] * 4, [0.5, -1.0, 0.5, 0.5]], None, r"row \(1,\) contain -1, but every bound must be >= 0"),
    ([[0.5] * 4, [0.5, math.nan, 0.5, 0.5]], None, r"row \(1,\) contain nan"),
]


@pytest.mark.parametrize("name", ["constrained_softmax", "constrained_sparsemax"])
def test_bounds_that_no_distribution_fits_are_named(kernel, name):
    f, x, hidden = getattr(sa, name), torch.zeros(2, 4), torch.tensor([[True] * 4, [True, False, True, True]])
    for upper, lower, words in NO_DISTRIBUTION:
        u = torch.as_tensor(upper)
        with pytest.raises(ValueError, match=words):
            f(x, u, lower=lower)
        if u.ndim > 1:  # the bound of an excluded position says nothing
            assert torch.allclose(f(x, u, mask=hidden).sum(-1), torch.ones(2))
        elif "raise" not in words:
            assert torch.func.vmap(lambda z: f(z, u, lower=lower))(x).isnan().all()  # noqa: B023
    for tight in ({"bounds": 0.25, "lower": 0.1}, {"bounds": 1.0, "lower": 0.25}, {"bounds": 0.25, "lower": 0.25}):
        assert torch.allclose(f(x + torch.arange(4.0), **tight), torch.full((2, 4), 0.25))
    nothing = torch.zeros(4, dtype=torch.bool)
    assert (f(x, 1.0, mask=nothing, lower=0.1) == 0).all() and (f(x, 0.0, mask=nothing) == 0).all()
    used = torch.tensor([0.1, 0.2, 0.2, 0.5 - 1e-6], dtype=torch.float64)  # used up exactly, but for rounding
    assert torch.allclose(f(x.double(), used), used.expand(2, 4), atol=1e-15)


def test_lower_bounds_go_the_ways_of_bounds():
    """In a module, per call, in attention and in the loss of a mapping."""
    x, low, q = torch.randn(5, 6), torch.rand(5, 6) / 10, torch.randn(1, 2, 5, 4)
    for name in ("constrained_softmax", "constrained_sparsemax"):
        f = getattr(sa, name)
        expected = f(x, 0.6, lower=low)
        assert torch.equal(sa.make(name, lower=low)(x, bounds=0.6), expected)
        assert torch.equal(sa.make(name)(x, bounds=0.6, lower=low), expected)
        torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="eager")(x, 0.6, lower=low), expected)
        torch.testing.assert_close(torch.func.vmap(lambda x, l: f(x, 0.6, lower=l))(x, low), expected)  # noqa: B023
        least = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.1])
        _, p = sa.sparse_attention(q, q, q, name, bounds=0.9, lower=least, need_weights=True)
        torch.testing.assert_close(p, f(q @ q.mT / 2, 0.9, lower=least))
        loss = sa.losses.fenchel_young(z := x.clone().requires_grad_(), expected.detach(), name, bounds=0.6, lower=low)
        loss.backward()
        assert abs(loss) < 1e-5 and z.grad.abs().max() < 1e-5  # the loss is 0 at the mapping's own value


def test_values_printed_elsewhere(kernel):
    x = t(np.array([1, 2.1, 1.9]))
    authors = t(np.array([0, 0.5, 0.5]))  # README of their code
    assert torch.allclose(sa.fusedmax(x, lam=0.1), authors, atol=1e-12)
    z = t(np.array([-1, -0.2, -0.9]))
    assert torch.allclose(sa.sparsecone(z, q=0.1), t(np.array([0.536, 0, 0.464])), atol=5e-4)
    assert sa.sparsehourglass(z, q=0.1).argmax() == 1


@pytest.mark.parametrize("name, g", [("lin", lambda z: z), ("exp", torch.exp), ("sq", torch.square)])
@pytest.mark.parametrize("lam", [-2.0, 0.0, 0.7])
def test_sparsegen_solves_its_programme(kernel, name, g, lam):
    for x in draws(7):
        z = t(np.clip(x, -3, 3))
        # |p - g|^2 - lam |p|^2 has the minimiser of |p - g/(1-lam)|^2.
        expected = oracle.sparsemax(g(z).numpy(), 1 - lam)
        assert np.allclose(getattr(sa, f"sparsegen_{name}")(z, lam=lam), expected, atol=1e-8)


def test_sparsehourglass_is_the_cone_of_the_mirror_point(kernel):
    z = torch.randn(200, 6, dtype=torch.float64)
    total = z.sum(-1, keepdim=True)
    mirror = torch.where(total < 0, z - 2 / 6 * total, z)
    assert torch.allclose(sa.sparsehourglass(z, q=0.4), sa.sparsecone(mirror, q=0.4), atol=1e-10)


def test_special_cases_of_sparsegen(kernel):
    """Laha et al. 2018, sec. 3.1: softmax, spherical softmax and sum-normalisation are sparsegen with lam = 1 - sum g."""
    z = torch.rand(50, 6, dtype=torch.float64) + 0.1
    known = ((z.exp(), z.softmax(-1)), (z.square(), sa.spherical_softmax(z)), (z, sa.sum_normalization(z)))
    for g, expected in known:
        assert torch.allclose(sa.sparsegen_lin(g, lam=1 - g.sum(-1)), expected, atol=1e-12)


def test_pgd_reaches_the_exact_solution_and_its_published_tolerance_does_not():
    x = torch.randn(60, 30, dtype=torch.float64)
    exact = sa.pnormmax(x)
    error = (sa.pnormmax(x, solver="pgd") - exact).abs().amax(-1)
    assert 2e-3 < error.mean() < 2e-2 and error.max() < 6e-2
    assert (sa.pnormmax(x, solver="pgd", tol=1e-9) - exact).abs().max() < 1e-3


def best_set(x: torch.Tensor, size: int) -> tuple[int, ...]:
    """The set of ``size`` positions of largest sum; among equals the first in lexicographic order."""
    return max(itertools.combinations(range(len(x)), size), key=lambda s: float(x[list(s)].sum()))


def softmax_of(x: torch.Tensor, size: int) -> torch.Tensor:
    inside = list(best_set(x, size))
    return torch.zeros_like(x).index_put((torch.tensor(inside),), torch.softmax(x[inside], 0))


@pytest.mark.parametrize("k", [1, 3, 6, 9])
def test_top_k_is_softmax_of_the_set_of_largest_sum(k: int) -> None:
    for x in torch.randn(20, 6, dtype=torch.float64).round(decimals=1):
        torch.testing.assert_close(sa.top_k(x, k=k), softmax_of(x, min(k, 6)))


@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9, 0.999, 1.0])
def test_top_p_is_softmax_of_the_smallest_set_that_holds_the_mass(mass: float) -> None:
    for x in torch.randn(20, 6, dtype=torch.float64):
        q = torch.softmax(x, 0)
        size = next(s for s in range(1, 7) if q[list(best_set(x, s))].sum() >= mass - 1e-12)
        torch.testing.assert_close(sa.top_p(x, mass=mass), softmax_of(x, size))
