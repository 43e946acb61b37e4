"""The C++ kernels against solvers that are not ours, row shapes that hit every path, and finite differences."""

import warnings
from functools import cache
from types import ModuleType

import kernel_oracles as oracles
import numpy as np
import pytest
import torch

import sparse_attention as sa
from sparse_attention.kernels import native, reference
from sparse_attention.kernels.reference.structured import tv_prox

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    BUILT = all(native.available("sparsemax", torch.zeros(1, 1, dtype=t)) for t in (torch.float32, torch.float64))
pytestmark = pytest.mark.skipif(not BUILT, reason="no C++ compiler here")
CASES = [("sparsemax", {"gamma": gamma}) for gamma in (1.0, 0.3)]
CASES += [("entmax", {"alpha": alpha}) for alpha in (1.5, 1.3, 1.04, 1.8, 2.0, 3.0)]
CASES += [("pnormmax", {"p": p, "gamma": gamma}) for p, gamma in ((1.5, 1.0), (1.2, 0.5), (1.8, 2.0), (1.02, 1.0))]
CASES += [("fusedmax", {"lam": lam, "gamma": gamma}) for lam, gamma in ((0.0, 1.0), (0.1, 1.0), (0.5, 0.5))]
CASES += [("oscarmax", {"lam": lam, "gamma": gamma}) for lam, gamma in ((0.0, 1.0), (0.01, 1.0), (0.1, 0.5))]
NAMES = [f"{op}-{'-'.join(f'{k}{v}' for k, v in params.items())}" for op, params in CASES]
# n = 17 and 33 leave part of a vector, 20 rows fill a slab and leave some over, 300 has too many candidates for a slab
# when the scores are close, 900 is too long for one.
SHAPES = [(3, 1), (20, 2), (20, 17), (20, 33), (5, 130), (20, 300), (3, 900)]


def rows(generator: np.random.Generator, shape: tuple[int, int], scale: float) -> np.ndarray:
    """Scores that float32 holds exactly, some tied."""
    x = generator.normal(size=shape) * scale
    x[1::3] = np.round(x[1::3], 1)
    return x.astype(np.float32).astype(np.float64)


@cache
def solved(op: str, place: int, scale: float, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Scores, of which some are -inf, and what an independent solver makes of them."""
    x = rows(np.random.default_rng(round(scale * 10)), shape, scale)
    if shape[1] > 2:
        x[2, ::3] = -np.inf
    return x, np.stack([getattr(oracles, op)(row, **CASES[place][1]) for row in x])


@pytest.mark.parametrize("place", range(len(CASES)), ids=NAMES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("kernels", [native, reference], ids=["native", "reference"])
def test_forward_equals_an_independent_solver(kernels: ModuleType, place: int, scale: float) -> None:
    op, params = CASES[place]
    for shape in SHAPES:
        if op == "fusedmax" and shape[1] > 130:
            continue  # DAQP takes seconds; the taut string and the direct scan are compared below
        x, expected = solved(op, place, scale, shape)
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-9 if op != "fusedmax" else 2e-8)):
            p, _ = kernels.OPS[op].forward(torch.tensor(x, dtype=dtype), **params)
            np.testing.assert_allclose(p.double().numpy(), expected, rtol=0, atol=tolerance, err_msg=f"{shape} {dtype}")


@pytest.mark.parametrize(("op", "params"), CASES, ids=NAMES)
@pytest.mark.parametrize("kernels", [native, reference], ids=["native", "reference"])
def test_backward_equals_central_differences(kernels: ModuleType, op: str, params: dict[str, float]) -> None:
    """Of the forward computation, in one direction for each row, and in float32 as in float64."""
    x, g, direction = torch.randn(3, 40, 12, dtype=torch.float64)
    x[4, 5:8] = x[5, 0] = -torch.inf
    # Groups that form away from the kink, so that differences see them: two entries well within the pooling distance.
    if op in ("fusedmax", "oscarmax") and params["lam"] > 0:
        x[:, 3], direction[:, 3] = x[:, 2] + 0.1 * params["lam"], direction[:, 2]
    forward, backward = kernels.OPS[op].forward, kernels.OPS[op].backward
    coarse, fine = (
        ((forward(x + h * direction, **params)[0] - forward(x - h * direction, **params)[0]) * g).sum(-1) / (2 * h)
        for h in (2e-6, 1e-6)
    )
    smooth = (coarse - fine).abs() < 1e-5  # no kink within the step
    assert smooth.double().mean() > 0.5, "most rows must be away from kinks, or nothing was tested"
    p, saved = forward(x, **params)
    dx = backward(g, p, saved, **params)
    torch.testing.assert_close((dx * direction).sum(-1)[smooth], fine[smooth], rtol=1e-6, atol=1e-6)
    p, saved = forward(x.float(), **params)
    torch.testing.assert_close(backward(g.float(), p, saved, **params).double(), dx, rtol=2e-4, atol=2e-4)


def constrained_rows(
    generator: np.random.Generator, shape: tuple[int, int], scale: float
) -> tuple[np.ndarray, np.ndarray]:
    x = rows(generator, shape, scale)
    u = generator.random(shape) * 3 / shape[1] + 0.2 * generator.random(shape)
    u *= np.maximum(1, 1.05 / u.sum(1, keepdims=True))
    u[0] = 1
    return x, u.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_constrained_sparsemax(scale: float) -> None:
    generator = np.random.default_rng(1)
    for shape in [*SHAPES, (3, 2000)]:
        x, u = constrained_rows(generator, shape, scale)
        expected = np.stack([oracles.constrained_sparsemax(a, b) for a, b in zip(x, u, strict=True)])
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-9)):
            op = native.OPS["constrained_sparsemax"]
            p, _ = op.forward(torch.tensor(x, dtype=dtype), bounds=torch.tensor(u, dtype=dtype))
            np.testing.assert_allclose(p.double().numpy(), expected, rtol=0, atol=tolerance, err_msg=f"{shape} {dtype}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 9, 41])
def test_fusedmax_of_dense_rows_whatever_stands_in_the_other_lanes(n: int, dtype: torch.dtype) -> None:
    """With AVX-512, rows of which much is left are scanned sixteen at a time: noise beside ramps and walks, lanes left empty, pruned rows."""
    generator = np.random.default_rng(n)
    x = generator.normal(size=(19, n)) * 0.1
    x[::4] = np.linspace(0, 0.9, n)
    x[1::5] = np.cumsum(x[1::5], -1) * 0.3
    x[7], x[9], x[11, 0] = 0.25, generator.normal(size=n) * 3, -np.inf
    x = x.astype(np.float32).astype(np.float64)
    expected = np.stack([oracles.fusedmax(row, lam=0.1) for row in x])
    for count in (1, 7, 8, 19):
        p, _ = native.OPS["fusedmax"].forward(torch.tensor(x[:count], dtype=dtype), lam=0.1, gamma=1.0)
        atol = 1e-6 if dtype.itemsize == 4 else 2e-8
        np.testing.assert_allclose(p.double().numpy(), expected[:count], rtol=0, atol=atol)


def test_scores_that_overflow_when_divided_by_gamma_get_no_weight_and_leave_the_rest() -> None:
    x = torch.randn(19, 40, generator=torch.Generator().manual_seed(1)) * 0.01
    low = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    x[low] = -3e38
    p, expected = (sa.fusedmax(z, lam=0.1, gamma=0.1) for z in (x, x.double()))
    assert (p[low] == 0).all() and torch.allclose(p.double(), expected, rtol=0, atol=1e-6)


def test_fusedmax_of_many_dense_rows_is_that_of_each_alone_in_the_reference() -> None:
    for n in (300, 1500):
        x = torch.randn(50, n, dtype=torch.float64) * torch.logspace(-3, -0.8, 50, dtype=torch.float64)[:, None]
        with sa.kernels.use("native"):
            found = sa.fusedmax(x, lam=0.1)
        with sa.kernels.use("reference"):
            expected = sa.fusedmax(x, lam=0.1)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", [c for c in native.OPS if c != "constrained_sparsemax"])
@pytest.mark.parametrize("n", [5, 40, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_a_mapping(op: str, n: int, dtype: torch.dtype) -> None:
    """Such rows say so and leave their neighbours, which share a slab with them, alone."""
    torch.manual_seed(0)
    x = torch.randn(35, n, dtype=dtype)
    params = oracles.defaults(op)
    alone = native.OPS[op].forward(x, **params)[0]
    x[3] = -torch.inf
    x[7, 2] = torch.nan
    x[9, 1] = torch.inf
    x[20, 0] = -torch.inf
    p, saved = native.OPS[op].forward(x, **params)
    dx = native.OPS[op].backward(torch.randn_like(x), p, saved, **params)
    assert torch.equal(p[3], torch.zeros(n, dtype=dtype)) and torch.equal(dx[3], torch.zeros(n, dtype=dtype))
    assert p[[7, 9]].isnan().all() and dx[[7, 9]].isnan().all()
    assert p[20, 0] == 0 and dx[20, 0] == 0
    others = [i for i in range(35) if i not in (3, 7, 9, 20)]
    assert torch.equal(p[others], alone[others])
    assert not dx[others].isnan().any()


@pytest.mark.parametrize("n", [64, 700, 5000])
def test_long_rows_sum_to_one(n: int) -> None:
    """Dense rows are where a threshold of one float32 would lose 1e-3 of the total."""
    torch.manual_seed(0)
    x = torch.randn(20, n) * 0.01
    for op, params in (("sparsemax", {}), ("entmax", {}), ("entmax", {"alpha": 1.3}), ("pnormmax", {})):
        p, _ = native.OPS[op].forward(x, **oracles.defaults(op) | params)
        assert (p.double().sum(-1) - 1).abs().max() < 3e-6, op


@pytest.mark.parametrize("lam", [0.01, 0.3, 10.0])
def test_total_variation_of_smooth_rows(lam: float) -> None:
    """Long smooth rows leave the direct scan for the taut string: the projection of a prox that meets its conditions."""
    t, noise = np.linspace(0, 1, 1500), np.random.default_rng(0).normal(size=1500)
    x = torch.tensor(np.stack([t, 4 * (t - 0.4) ** 2, 0.03 * noise.cumsum(), 0 * t, 0.2 * noise]))
    x -= x.amax(-1, keepdim=True)
    prox = tv_prox(x, torch.full((5, 1499), lam, dtype=x.dtype))
    # sum_{j<=i} (x - y)_j lies in [-lam, lam] and is +-lam where y steps up or down: necessary and sufficient.
    flow, step = (x - prox).cumsum(-1), prox.diff()
    assert flow[:, -1].abs().max() < 1e-9 and flow.abs().max() < lam + 1e-9
    torch.testing.assert_close(flow[:, :-1][step != 0], -lam * step.sign()[step != 0], atol=1e-9, rtol=0)
    for row, y in zip(x, prox.numpy(), strict=True):
        p, _ = native.OPS["fusedmax"].forward(row[None], lam=lam, gamma=1.0)
        np.testing.assert_allclose(p[0], oracles.simplex_projection(y), rtol=0, atol=1e-10)


def test_threads_do_not_change_the_result() -> None:
    torch.manual_seed(0)
    x = torch.randn(6000, 200)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ops = "sparsemax", "entmax", "fusedmax", "oscarmax"
            results.append([native.OPS[op].forward(x, **oracles.defaults(op))[0] for op in ops])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        # Rows share slabs with other rows then, which may add a Newton step.
        torch.testing.assert_close(one, two, rtol=0, atol=5e-7)


def test_a_function_that_api_cpp_does_not_export_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_libraries", {})
    monkeypatch.setattr(native, "_failed", False)
    monkeypatch.setitem(native.OPS, "mymax", native._Gamma("mymax"))
    with pytest.warns(RuntimeWarning, match=r"mymax_forward.*Add the missing function to kernels/native/src/api\.cpp"):
        assert not native._load(torch.float32)
