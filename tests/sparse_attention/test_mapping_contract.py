"""The contract every simplex and every unnormalised mapping keeps: shapes, masks, infinities, NaN, precision, compilation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import sparse_attention as sa

NAMES = sa.names("simplex")
EVERY = [*NAMES, *(n for n in sa.names("unnormalised") if not sa.spec(n).inputs)]
# Defined for scores of any sign and invariant to a common shift.
SHIFT = ["softmax", "sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax", "sparsegen_lin", "hardmax"]
ALL_REAL = [n for n in NAMES if n not in ("sum_normalization", "sparsecone")]


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, dtype=dtype) + 0.05


@pytest.mark.parametrize("name", EVERY)
def test_rows_in_any_shape_and_dimension(kernel, name):
    m = sa.make(name)
    for shape in ((5,), (1,), (3, 1), (1, 4), (2, 3, 4), (2, 1, 3, 5)):
        x = positive(*shape)
        for dim in range(-len(shape), len(shape)):
            p = m(x, dim=dim)
            assert p.shape == x.shape and (p >= 0).all()
            if name in NAMES:
                assert torch.allclose(p.sum(dim), torch.ones_like(p.sum(dim)), atol=1e-6)
            moved = m(x.movedim(dim, -1).contiguous()).movedim(-1, dim)
            assert torch.equal(p, moved)
    alone = m(torch.tensor(3.0))
    assert alone.shape == () and (alone == 1.0 or name in sa.names("unnormalised"))


NUMBERS = [(n, p.name, p.default) for n in NAMES for p in sa.spec(n).params if p.tensor and type(p.default) is float]


@pytest.mark.parametrize("name, param, value", NUMBERS)
def test_a_hyperparameter_of_one_number_may_be_on_another_device(name, param, value):
    """As in torch. Fake tensors are on devices that are not here."""
    with FakeTensorMode():
        x, mask = torch.rand(2, 3, 5, device="cuda"), torch.ones(5, dtype=torch.bool, device="cuda")
        assert getattr(sa, name)(x, mask=mask, **{param: torch.tensor(value)}).is_cuda


@pytest.mark.parametrize("name", EVERY)
def test_empty(kernel, name):
    m = sa.make(name)
    for shape in ((0, 4), (3, 0), (2, 0, 5), (0,), (0, 0)):
        x = torch.zeros(shape, requires_grad=True)
        p = m(x)
        assert p.shape == x.shape
        p.sum().backward()


@pytest.mark.parametrize("name", EVERY)
def test_layout_of_memory_does_not_matter(kernel, name):
    m = sa.make(name)
    x = positive(6, 8, 10)
    for view in (x.transpose(0, 2), x[::2, :, 1::3], x.expand(2, 6, 8, 10), x[..., :1].expand(6, 8, 4), x.flip(-1)):
        assert torch.equal(m(view), m(view.contiguous()))


@pytest.mark.parametrize("name", EVERY)
def test_masked_positions_are_as_if_removed(kernel, name):
    m = sa.make(name)
    x = positive(40, 9, dtype=torch.float64)
    mask = torch.rand(40, 9) > 0.4
    mask[0], mask[1] = False, True
    p = m(x, mask=mask)
    assert (p[~mask] == 0).all() and (p[0] == 0).all()
    for i in range(1, 40):
        if mask[i].any():
            assert torch.allclose(p[i, mask[i]], m(x[i, mask[i]]), atol=1e-12)
    # -inf says the same as the mask, whatever stands at the masked positions, and a mask may broadcast.
    assert torch.equal(m(x.masked_fill(~mask, -math.inf)), p)
    assert torch.equal(m(x.masked_fill(~mask, 1e30), mask=mask), p)
    assert torch.equal(m(x.masked_fill(~mask, math.nan), mask=mask), p)
    assert torch.equal(m(x, mask=mask[1:2]), m(x))
    row = mask[2:3]
    assert torch.equal(m(x, mask=row), m(x, mask=row.expand(40, 9)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.1, 0.7, 3.3])
def test_rows_of_equal_scores_are_distributions(kernel, name, value):
    """Also if the mean of the scores is rounded to a number above all of them; row i has i + 1 scores."""
    mask = torch.ones(100, 100, dtype=torch.bool).tril()
    p = sa.make(name)(torch.full((100, 100), value), mask=mask)
    assert (p >= 0).all() and (p[~mask] == 0).all() and torch.allclose(p.sum(-1), torch.ones(100), atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_gradient_at_masked_positions_and_rows_is_zero(kernel, name):
    m = sa.make(name)
    mask = torch.tensor([[True, False, True, True], [False] * 4, [False, True, False, False]])
    x = positive(3, 4).masked_fill(~mask, -math.inf).requires_grad_()
    for given_mask in (mask, None):
        (g,) = torch.autograd.grad((m(x, mask=given_mask) * torch.randn(3, 4)).sum(), x)
        assert (g[~mask] == 0).all() and torch.isfinite(g).all()


@pytest.mark.parametrize("name", EVERY)
def test_nan_and_infinity_stay_in_their_row(kernel, name):
    m = sa.make(name)
    x = positive(5, 6)
    clean = m(x)
    x[1, 2], x[3, 0] = math.nan, math.inf
    p = m(x)
    # An infinite score has no finite answer; the limit of hardmax-like mappings is not guessed.
    assert torch.isnan(p[1]).all() and torch.isnan(p[3]).all()
    assert torch.equal(p[[0, 2, 4]], clean[[0, 2, 4]])
    x[1, 4] = -math.inf
    assert torch.isnan(m(x)[1, 2])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_in_a_row_with_tight_bounds_is_no_fault_of_the_bounds(kernel, bad):
    x = torch.tensor([[bad, 1.0, 2.0], [0.0, 1.0, 2.0]])
    third = torch.full((3,), 1 / 3)
    for f, second in (
        (lambda z: sa.sparsemap_budget(z, k=3), [1.0] * 3),
        (lambda z: sa.constrained_sparsemax(z, 1 / 3), third.tolist()),
        (lambda z: sa.constrained_softmax(z, 1 / 3), third.tolist()),
        (lambda z: sa.constrained_sparsemax(z, 1.0, lower=third), third.tolist()),
    ):
        p = f(x)
        assert p[0].isnan().all() and p[1].tolist() == pytest.approx(second)


@pytest.mark.parametrize("name", EVERY)
def test_anomaly_mode_finds_nothing_in_hidden_rows(kernel, name):
    mask = torch.rand(4, 6) > 0.3
    mask[0], mask[1] = False, True
    for x in (positive(4, 6), positive(4, 6).masked_fill(~mask, -math.inf)):
        with torch.autograd.set_detect_anomaly(True):
            sa.make(name)(x.requires_grad_(), mask=mask).square().sum().backward()


@pytest.mark.parametrize("name", ["sparsecone", "sparsehourglass", "fusedmax", "entmax", "pnormmax"])
def test_a_hidden_row_gives_a_learned_parameter_no_gradient(kernel, name):
    (param, value), x = next(iter(sa.spec(name).defaults.items())), positive(3, 6)
    theta = torch.full((3,), value, requires_grad=True)
    mask = torch.tensor([[False], [True], [True]]).expand(3, 6)
    getattr(sa, name)(x, mask=mask, **{param: theta}).square().sum().backward()
    assert theta.grad[0] == 0 and theta.grad.isfinite().all() and (theta.grad[1:] != 0).any()


@pytest.mark.parametrize("dim", [-1, 0])
def test_the_backward_pass_of_compiled_code_leaves_the_weights_alone(dim):
    x = positive(4, 20).requires_grad_()
    p = torch.compile(lambda z: sa.pnormmax(z, dim=dim))(x)
    before = p.detach().clone()
    torch.autograd.grad(p, x, torch.randn(4, 20))
    assert torch.equal(p, before)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded_once(kernel, name, dtype):
    m = sa.make(name)
    x = positive(50, 30).to(dtype)
    p = m(x)
    assert p.dtype == dtype
    assert torch.equal(p, m(x.float()).to(dtype))
    x.requires_grad_()
    w = torch.randn(50, 30)
    (g,) = torch.autograd.grad((m(x).float() * w).sum(), x)
    (g32,) = torch.autograd.grad((m(y := x.detach().float().requires_grad_()) * w.to(dtype).float()).sum(), y)
    assert g.dtype == dtype and torch.allclose(g.float(), g32, atol=4e-2, rtol=2e-2)


@pytest.mark.parametrize("name", EVERY)
def test_autocast_computes_in_float32(kernel, name):
    """Also the gradient: what products of matrices it has inside stay in float32."""
    x, found = positive(8, 30).bfloat16(), []
    z, mask, w = x.float().requires_grad_(), torch.rand(8, 30) > 0.3, torch.randn(8, 30)
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            p = sa.make(name)(z, mask=mask)
            found.append((p, *torch.autograd.grad((p * w).sum(), z)))
    assert all(torch.equal(a, b) for a, b in zip(*found))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = sa.make(name)(x)
        assert p.dtype == torch.softmax(x, -1).dtype
    assert torch.equal(p, sa.make(name)(x.float()).to(p.dtype))


def compiles(f, *given: torch.Tensor) -> None:
    """As one graph, to the same values and gradients."""
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(*given), f(*given), atol=1e-6)
    w = torch.randn(4, 9)
    for pair in zip(*(torch.autograd.grad((g(*given) * w).sum(), given) for g in (compiled, f))):
        assert torch.allclose(*pair, atol=1e-5)


def test_masked_scores_compile_before_the_native_kernels_are_imported(monkeypatch):
    monkeypatch.setattr(sa.kernels, "_loaded", {})
    mask = torch.rand(4, 9) > 0.2
    compiles(lambda x: sa.sparsemax(x, mask=mask), torch.randn(4, 9, requires_grad=True))


COMPILED = ("sparsemax", "entmax", "fusedmax", "sparsehourglass", "sigmoid", "constrained_sparsemax")
SLOWLY = [pytest.param(n, marks=pytest.mark.slow) for n in (*EVERY, "constrained_softmax") if n not in COMPILED]


@pytest.mark.parametrize("name", [*COMPILED, *SLOWLY])
def test_whole_graphs_compile(name):
    x = positive(4, 9).requires_grad_()
    mask = torch.rand(4, 9) > 0.2
    inputs = {"bounds": torch.full((4, 9), 0.3)} if name.startswith("constrained") else {}
    m = sa.make(name)
    compiles(lambda z: m(z, mask=mask, **inputs), x)


LEARNED = [("entmax", "alpha", 1.3), ("fusedmax", "lam", 0.1)]
MORE = [("pnormmax", "p", 1.3), ("oscarmax", "lam", 0.02), ("sparsehourglass", "q", 0.5)]
LEARNED += [pytest.param(*x, marks=pytest.mark.slow) for x in MORE]


@pytest.mark.parametrize("name, parameter, value", LEARNED)
def test_learned_parameters_compile(name, parameter, value):
    function = sa.spec(name).function
    given = positive(4, 9).requires_grad_(), torch.tensor(value, requires_grad=True)
    compiles(lambda z, t: function(z, **{parameter: t}), *given)


numbers = st.floats(-50, 50, allow_nan=False, width=32)
vectors = st.lists(numbers, min_size=1, max_size=12)


@pytest.mark.parametrize("name", ALL_REAL)
@settings(max_examples=25, deadline=None)
@given(values=vectors, power=st.integers(-38, 30))
def test_simplex_at_every_scale(name, values, power):
    """Huge, tiny and subnormal scores: a distribution, or NaN where the mapping has no value (sum or norm of 0)."""
    x = torch.tensor(values, dtype=torch.float32) * 10.0**power
    z = x.clamp(max=20) if name == "sparsegen_exp" else x
    if name == "sparsegen_sq":
        z = z.clamp(-1e15, 1e15)
    p = sa.make(name)(z)
    if torch.isnan(p).any():
        assert name in ("sum_normalization_pp", "spherical_softmax", "sparsehourglass") and torch.isnan(p).all()
        assert (
            name == "sparsehourglass"
            or z.sum().abs() < 1e-6 * z.abs().sum()
            or not (z != 0).any()
            or z.abs().max() < 1e-36
            or not torch.isfinite(z.sum())
        )
        return
    assert (p >= 0).all() and p.sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_a_row_whose_scale_is_infinite_has_no_value(kernels):
    """One over the sum is beyond float32, or the sum is -K q: a negative score must not become -inf, which would hide it."""
    with sa.kernels.use(kernels):
        for p in (sa.sum_normalization_pp(torch.tensor([-1e-40])), sa.sparsecone(torch.tensor([-1.0, -1.0]), q=1.0)):
            assert torch.isnan(p).all()


@pytest.mark.parametrize("name", SHIFT)
@settings(max_examples=25, deadline=None)
@given(values=vectors, shift=st.integers(-1000, 1000), data=st.data())
def test_shift_and_order_laws(name, values, shift, data):
    # Multiples of 1/64 are exact in float64, so that ties survive the shift.
    x = (torch.tensor(values, dtype=torch.float64) * 64).round() / 64
    m = sa.make(name)
    p = m(x)
    assert torch.allclose(m(x + shift), p, atol=1e-9)
    if name != "fusedmax":
        order = torch.tensor(data.draw(st.permutations(range(len(values)))), dtype=torch.long)
        assert torch.allclose(m(x[order]), p[order], atol=1e-12)
        larger = x[:, None] >= x[None, :]
        assert (p[:, None] >= p[None, :] - 1e-12)[larger].all()
        equal = x[:, None] == x[None, :]
        assert torch.allclose((p[:, None] - p[None, :])[equal], torch.zeros((), dtype=torch.float64), atol=1e-12)
    else:
        assert torch.allclose(m(x.flip(-1)), p.flip(-1), atol=1e-9)


def test_limits_of_the_hyperparameters(kernel):
    x = torch.randn(30, 8, dtype=torch.float64)
    uniform = torch.full_like(x, 1 / 8)
    near = {"atol": 1e-4}
    assert torch.allclose(sa.fusedmax(x, lam=1e-7), sa.sparsemax(x), **near)
    assert torch.equal(sa.fusedmax(x, lam=0), sa.sparsemax(x))
    assert torch.allclose(sa.fusedmax(x, lam=1e4), uniform, **near)
    assert torch.allclose(sa.oscarmax(x, lam=1e-7), sa.sparsemax(x), **near)
    assert torch.allclose(sa.oscarmax(x, lam=1e4), uniform, **near)
    assert torch.allclose(sa.entmax(x, alpha=1 + 1e-6), x.softmax(-1), **near)
    assert torch.allclose(sa.entmax(x, alpha=2.0), sa.sparsemax(x), atol=1e-12)
    assert torch.allclose(sa.entmax(x, alpha=2 + 1e-7), sa.sparsemax(x), **near)
    assert torch.allclose(sa.entmax(x, alpha=1.5 + 1e-9), sa.entmax(x, alpha=1.5), **near)
    assert torch.allclose(sa.pnormmax(x, p=2.0), sa.sparsemax(x), atol=1e-12)
    assert torch.allclose(sa.pnormmax(x, p=2 - 1e-7), sa.sparsemax(x), **near)
    assert torch.allclose(sa.sparsehourglass(x, q=1e9), sa.sparsemax(x), **near)
    assert torch.allclose(sa.sparsehourglass(x, q=0), sa.sum_normalization_pp(x), atol=1e-12)
    assert torch.allclose(sa.sparsecone(x.abs(), q=0), sa.sum_normalization(x.abs()), atol=1e-12)
    assert torch.allclose(sa.sparsegen_lin(x, lam=1 - 1e-9), sa.hardmax(x), **near)
    assert torch.allclose(sa.sparsegen_lin(x, lam=-1e9), uniform, **near)
    for name in ("softmax", "sparsemax", "pnormmax", "fusedmax", "oscarmax"):
        m = sa.make(name, gamma=1e-6, **({"lam": 1e-9} if name in ("fusedmax", "oscarmax") else {}))
        assert torch.allclose(m(x), sa.hardmax(x), **near)
