"""sa.sparse_attention against the formula in float64, whatever way it takes; masks, groups, gradients, what is refused."""

import copy
import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from attention_oracles import formula, named, visible
from torch._subclasses.fake_tensor import FakeTensorMode

import sparse_attention as sa
from sparse_attention.kernels.native import attention as native


def tensors(H=4, G=2, n=33, m=40, d=64, e=64, B=2, seed=0, dtype=torch.float32, grad=True):
    make = torch.Generator().manual_seed(seed)
    shapes = ((B, H, n, d), (B, G, m, d), (B, G, m, e))
    return [torch.randn(s, generator=make, dtype=torch.float64).to(dtype).requires_grad_(grad) for s in shapes]


@pytest.mark.parametrize("shape", [(4, 2, 1, 40), (4, 1, 5, 1), (6, 3, 0, 4), (2, 2, 3, 0), (4, 4, 40, 7)], ids=str)
@pytest.mark.parametrize("name", ["sparsemax", "entmax", "softmax"])
def test_shapes_at_their_ends(shape, name):
    H, G, n, m = shape
    q, k, v = tensors(H, G, n, m, e=8)
    out = sa.sparse_attention(q, k, v, name, causal=True)
    want, _ = formula(named(name), q, k, v, visible(n, m, causal=True))
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=0)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert n <= m or (out[:, :, : n - m] == 0).all()  # the first queries see no key


def test_without_heads_and_with_many_dimensions():
    q, k, v = (x[0, 0] for x in tensors(4, 4, grad=False))
    torch.testing.assert_close(sa.sparse_attention(q, k, v), sa.sparse_attention(q[None], k[None], v[None])[0])
    q, k, v = tensors(4, 2, B=6, grad=False)
    five = [x.unflatten(0, (2, 3)) for x in (q, k, v)]
    assert torch.equal(sa.sparse_attention(*five).flatten(0, 1), sa.sparse_attention(q, k, v))
    one = sa.sparse_attention(q, k[:1], v[:1])  # dimensions before the heads broadcast
    torch.testing.assert_close(one, sa.sparse_attention(q, k[:1].expand_as(k), v[:1].expand_as(v)))


@pytest.mark.parametrize("shape", [(), (1,), (40,)], ids=str)
@pytest.mark.parametrize("given", ["mask", "bias"])
@pytest.mark.parametrize("more", [{}, {"sink": torch.tensor([0.1, 0.2, 0.3, 0.4])}, {"need_weights": True}], ids=str)
@pytest.mark.parametrize("name", ["sparsemax", "softmax", "fusedmax", "oscarmax", "sigmoid"])
def test_masks_and_biases_of_fewer_than_two_dimensions(name, more, given, shape):
    q, k, v = (x.abs() for x in tensors(grad=False))
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    x = x > 0.3 if given == "mask" else x
    for function in (sa.sparse_attention, *((theirs,) if not more else ())):
        one, full = (function(q, k, v, name, **{given: y}, **more) for y in (x, x.expand(2, 4, 33, 40)))
        torch.testing.assert_close(one, full)


def theirs(q, k, v, name, mask=None, bias=None):
    attn_mask = mask if bias is None else bias
    return sa.integrations.sdpa.scaled_dot_product_attention(q, k, v, attn_mask, enable_gqa=True, mapping=name)


FAST = {("softmax", True, "slopes"), ("sparsemax", False, "plain")}
GRAPHS = itertools.product(("softmax", "sparsemax", "sigmoid"), (False, True), ("plain", "slopes"))
GRAPHS = [pytest.param(*one, marks=[] if one in FAST else pytest.mark.slow) for one in GRAPHS]


@pytest.mark.parametrize(("name", "causal", "form"), GRAPHS)
def test_a_recorded_graph_takes_other_lengths(name, causal, form):
    form = {"slopes": torch.tensor([0.5, 0.25])} if form == "slopes" else {}

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return sa.sparse_attention(q, k, v, name, causal=causal, **form)

    def made(n, m):
        return [torch.randn(1, 2, length, 8) for length in (n, m, m)]

    torch._dynamo.reset()
    module, free = Attention(), ({2: torch.export.Dim.DYNAMIC},) * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphs = [torch.jit.trace(module, tuple(made(n, 12)), check_trace=False) for n in (5, 12)]
    graphs.append(torch.export.export(module, tuple(made(12, 12)), dynamic_shapes=free).module())
    graphs.append(torch.compile(module, dynamic=True, fullgraph=True, backend="eager"))
    for graph, sizes in zip((*graphs, graphs[-1]), ((7, 30), (7, 30), (30, 30), (30, 30), (7, 30))):
        given = made(*sizes)
        torch.testing.assert_close(graph(*given), module(*given))


def test_mappings_of_every_form():
    q, k, v = tensors(grad=False)
    want = sa.sparse_attention(q, k, v, "sparsemax", gamma=0.5)
    assert torch.equal(want, sa.sparse_attention(q, k, v, sa.make("sparsemax", gamma=0.5)))
    assert torch.equal(want, sa.sparse_attention(q, k, v, sa.sparsemax, gamma=0.5))
    found = sa.sparse_attention(q, k, v, lambda x, mask: sa.sparsemax(x, gamma=0.5, mask=mask))
    torch.testing.assert_close(want, found)
    alpha = torch.tensor([[1.2], [1.5], [1.8], [2.0]], requires_grad=True)  # one a head
    sa.sparse_attention(q, k, v, "entmax", alpha=alpha).square().sum().backward()
    assert alpha.grad.abs().min() > 0
    bounds = torch.full((40,), 0.1)
    _, p = sa.sparse_attention(q, k, v, "constrained_softmax", bounds=bounds, need_weights=True)
    assert p.max() <= 0.1 + 1e-6


TWICE = [("sparsemax", {"gamma": 0.5}), ("entmax", {}), ("entmax", {"alpha": 1.3}), ("fusedmax", {"lam": 0.1})]


@pytest.mark.parametrize(("name", "params"), TWICE, ids=str)
def test_gradients_of_gradients(name, params):
    q, k, v = tensors(2, 1, 4, 5, 3, 2, B=1, dtype=torch.float64)
    f = lambda *x: sa.sparse_attention(*x, name, causal=True, window=(2, 0), **params)  # noqa: E731
    assert torch.autograd.gradcheck(f, (q, k, v))
    assert torch.autograd.gradgradcheck(f, (q, k, v), atol=1e-4)
    single = [x.detach().float().requires_grad_() for x in (q, k, v)]  # the way that float32 takes

    def twice(q, k, v):
        first = torch.autograd.grad(f(q, k, v).square().sum(), (q, k, v), create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), (q, k, v))

    for ours, right in zip(twice(*single), twice(q, k, v)):
        torch.testing.assert_close(ours.double(), right, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("alpha", [2.0, torch.tensor([1.2, 1.5, 1.8, 2.0])], ids=["2", "of heads"])
def test_gradients_of_a_batch_of_vectors(alpha, short):
    q, k, v = tensors(n=40)
    out = sa.sparse_attention(q, k, v, "entmax", causal=True, alpha=alpha)
    vectors = torch.randn(3, *out.shape)
    each = [torch.autograd.grad(out, (q, k, v), g, retain_graph=True) for g in vectors]
    together = torch.autograd.grad(out, (q, k, v), vectors, is_grads_batched=True)
    for ours, right in zip(together, zip(*each)):  # powers of small weights are off by 2e-5
        torch.testing.assert_close(
            ours, torch.stack(right), atol=1e-4 if isinstance(alpha, torch.Tensor) else 1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("form", ["", "bias", "sink"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_of_few_keys_is_differentiable_twice(dtype, form):
    q, k, v = tensors(n=20, m=63, dtype=dtype)
    given = {form: torch.randn((20, 63) if form == "bias" else (4,), dtype=dtype)} if form else {}

    def twice():
        out = sa.sparse_attention(q, k, v, "softmax", **given)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (q, k, v))

    found = twice()
    with sa.kernels.use("reference"):
        for a, b in zip(found, twice()):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["sparsemax", "softmax"])
def test_vmap_and_jvp(name):
    q, k, v = tensors(B=3, n=100, m=110, grad=False)  # large enough for the fused kernel
    want = sa.sparse_attention(q, k, v, name, causal=True)
    f = lambda *x: sa.sparse_attention(*x, name, causal=True)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(f)(q, k, v), want)
    torch.testing.assert_close(torch.func.vmap(f, (0, None, None))(q, k[0], v[0]), f(q, k[:1], v[:1]))
    t = torch.randn_like(q)
    _, forward = torch.func.jvp(lambda x: f(x, k, v), (q,), (t,))
    step = 1e-2
    near = (f(q + step * t, k, v) - f(q - step * t, k, v)) / (2 * step)
    assert (forward - near).abs().median() < 1e-3
    with torch.autograd.forward_ad.dual_level():
        dual = f(torch.autograd.forward_ad.make_dual(q, t), k, v)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, forward)


@pytest.mark.parametrize(
    "name, params", [("sparsemax", {"gamma": 0.7}), ("softmax", {"gamma": 1.3}), ("sparsegen_lin", {"lam": 0.3})]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_in_half_precision_is_rounded_once(dtype, name, params):
    q, k, v = (x.to(dtype) for x in tensors(n=40, m=100, grad=False))
    bias = (8 * torch.randn(40, 100)).to(dtype)
    with sa.kernels.use("reference"):
        want = sa.sparse_attention(*(x.double() for x in (q, k, v)), name, bias=bias.double(), **params)
    error = (sa.sparse_attention(q, k, v, name, bias=bias, **params).double() - want).abs().max()
    assert error <= 1.5 * torch.finfo(dtype).eps * want.abs().max()


@pytest.mark.parametrize("size", [40, 130])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype, size):
    q, k, v = (x.to(dtype) for x in tensors(n=size, m=size, grad=False))
    want, _ = formula(named("sparsemax"), q, k, v)
    out = sa.sparse_attention(q, k, v)
    assert out.dtype == dtype
    torch.testing.assert_close(out, want.to(dtype), atol=5e-6, rtol=torch.finfo(dtype).eps)
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(sa.sparse_attention(q, k, v), out)
            full = sa.sparse_attention(q.float(), k, v)  # of two types: allowed here alone
        assert full.dtype == torch.float32
        torch.testing.assert_close(full.double(), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["sparsemax", "fusedmax"])
@pytest.mark.parametrize(("n", "m"), [(130, 130), (5, 7)], ids=["kernel", "composition"])
def test_compiled_as_one_graph(n, m, name):
    q, k, v = tensors(n=n, m=m, B=1)
    lengths = torch.tensor([m - 2])

    def f(q, k, v):
        return sa.sparse_attention(q, k, v, name, causal=True, window=(4, 0), lengths=lengths)

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    out, want = compiled(q, k, v), f(q, k, v)
    torch.testing.assert_close(out, want)
    g = torch.randn_like(out)
    for ours, right in zip(torch.autograd.grad(out, (q, k, v), g), torch.autograd.grad(want, (q, k, v), g)):
        torch.testing.assert_close(ours, right)


def test_the_plan_says_which_way_and_why():
    q, k, v = tensors(n=512, m=512, grad=False)
    plan = sa.attention.plan
    assert plan(q, k, v, "softmax") == sa.attention.Plan("sdpa", "softmax is torch's own")
    for arguments, reason in (
        ({"mapping": "oscarmax"}, "oscarmax has no fused kernel"),
        ({"mapping": "fusedmax", "lam": torch.ones(4)}, "lam of fusedmax is a tensor"),
        ({"mapping": "entmax", "alpha": 1.03}, "not for 1.03"),
        ({"gamma": torch.ones(1)}, "gamma of sparsemax is a tensor"),
        ({"need_weights": True}, "weights are asked for"),
        ({"mapping": lambda x, mask: x}, "not a mapping of this library"),
    ):
        path, why = plan(q, k, v, **arguments)
        assert path == "composition" and reason in why
    assert "float64" in plan(q.double(), k.double()).reason
    padding = torch.arange(512) < torch.tensor([512, 50])[:, None, None, None]  # is lengths
    assert "mask" not in plan(q, k, v, mask=padding).reason
    with sa.kernels.use("reference"):
        assert plan(q, k).path == plan(q, k, mapping="softmax").path == "composition"
    with sa.kernels.use("triton"):
        assert plan(q, k, v, "fusedmax") == ("composition", "fusedmax has a fused kernel only on CPUs")
    assert plan(q[:, :, :0], k, v).reason == plan(q, k, v[..., :0]).reason == "a dimension is empty"
    with torch.autograd.forward_ad.dual_level():
        assert "forward-mode" in plan(q, k, v).reason
    if native._load() is not None:
        assert plan(q, k, v) == ("fused", "sparsemax has a fused kernel, which takes these")
        assert plan(q, k, v, "fusedmax", gamma=2.0) == ("fused", "fusedmax has a fused kernel, which takes these")
        assert plan(q, k, v, "entmax", alpha=1.5) == ("fused", "entmax 1.5 has a fused kernel, which takes these")
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (q, k, v)]
        assert "as an operator" in plan(*fake).reason and "outside torch.compile" in plan(*fake, dropout=0.5).reason


def test_short_rows_with_gradients_are_one_step():
    def one_step(m, grad=True, dtype=torch.float32, name="sparsemax", **given):
        return "one step" in sa.attention.plan(*tensors(m=m, grad=grad, dtype=dtype), name, **given).reason

    assert one_step(1) and one_step(63) and not one_step(64) and not one_step(63, grad=False)
    assert all(one_step(40, name=name) for name in ("softmax", "entmax", "fusedmax", "sparsegen_lin"))
    assert one_step(40, dropout=0.1) and one_step(40, causal=True, mask=torch.rand(33, 40) > 0.5)
    assert not one_step(40, dtype=torch.float64) and not one_step(40, bias=torch.zeros(33, 40))
    assert not one_step(40, need_weights=True) and not one_step(40, name="oscarmax")
    assert not one_step(40, name="entmax", alpha=torch.tensor([1.2, 1.3, 1.4, 1.5]))


BAD = [  # tensors and forms that do not fit: kernels/test_direct.py
    ({"mask": torch.ones(2, 40, dtype=torch.bool)}, ValueError, r"mask\[:, None, None\]"),
    ({"mapping": "tvmax"}, ValueError, "works over a grid"),
    ({"mapping": "fertility_softmax"}, ValueError, "remembers earlier steps"),
    ({"mapping": "entmax", "alpha": "learned"}, ValueError, "needs a module"),
]


@pytest.mark.parametrize(("wrong", "error", "says"), BAD, ids=[says for _, _, says in BAD])
def test_what_is_refused_says_what_to_do(wrong, error, says):
    q, k, v = tensors(grad=False)
    with pytest.raises(error, match=says):
        sa.sparse_attention(q, k, v, **wrong)
    with pytest.raises(error, match=says):
        sa.attention.plan(q, k, v, **wrong)


SHARED = [("top_k", {"k": 3}), ("sparsehourglass", {"q": 2.0}), ("sigmoid", {"bias": -1})]
SHARED += [("sparsecone", {"q": torch.tensor([0.5, 2.0, 1.0, 3.0])})]


@pytest.mark.parametrize(("name", "params"), SHARED, ids=str)
def test_a_parameter_called_like_an_argument_is_told_apart_by_every_entry(name, params):
    q, k, v = tensors(n=40, grad=False)
    more, given = torch.randn(40, 40), sa.make(name, **params)
    last, sdpa = q[..., -1:, :], sa.integrations.sdpa
    want, torchs = sa.sparse_attention(q, k, v, given), F.scaled_dot_product_attention
    found = sdpa.scaled_dot_product_attention(q, k, v, mapping=name, enable_gqa=True, **params)
    torch.testing.assert_close(found, want)
    with sdpa.use(name, **params):
        torch.testing.assert_close(torchs(q, k, v, enable_gqa=True), want)
    cache = copy.deepcopy(sa.KeyCache(name, **params).append(k, v))
    torch.testing.assert_close(cache.attend(last), sa.sparse_attention(last, k, v, given))
    for call in (  # until 0.4
        lambda: sa.sparse_attention(q, k, v, name, **params),
        lambda: sa.sparse_attention(q, k, v=v, mapping=name, **params),
        lambda: sa.sparse_attention(q, k, v, sa.spec(name).function, **params),
    ):
        with pytest.warns(DeprecationWarning, match=rf"pass mapping=sa.make\('{name}', {next(iter(params))}=\.\.\.\)"):
            torch.testing.assert_close(call(), want)
    if name == "sigmoid":  # a tensor is what is added to the scores
        found = sa.sparse_attention(q, k, v, name, bias=more)
        torch.testing.assert_close(found, sa.sparse_attention(q, k, v, sa.make(name), bias=more))
        found = cache.attend(q, bias=more)
        torch.testing.assert_close(found, sa.sparse_attention(q, k, v, given, bias=more, causal=True))


def test_a_shared_name_that_the_mapping_does_not_take_is_refused():
    q, k, v = tensors(grad=False)
    for given, error, says in (
        ({"mapping": "sparsemax", "k": 3}, ValueError, "sparsemax has no parameter 'k'"),
        ({"mapping": "sparsemax", "bias": 1.0}, ValueError, "sparsemax has no parameter 'bias'"),
        ({"mapping": sa.make("sigmoid"), "bias": 1.0}, TypeError, "bias is float"),
        ({"mapping": sa.make("top_k"), "k": 3}, TypeError, "multiple values for argument 'k'"),
    ):
        with pytest.raises(error, match=says):
            sa.sparse_attention(q, k, v, **given)
    with pytest.raises(TypeError, match="q is a list"):
        sa.sparse_attention(q=[1.0], k=k, v=v)
