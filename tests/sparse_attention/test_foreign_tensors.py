"""Tensors whose memory no kernel may read: each is answered as the plain tensor is, or by torch's dispatcher."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import sparse_attention as sa

KERNELS = ["sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax"]
BOUNDED = ["constrained_softmax", "constrained_sparsemax"]
X, Y, KEEP = torch.randn(3, 7), torch.randn(3, 7) * 2, torch.tensor([True, True, False, True, True, True, False])


class Plain(Tensor):
    pass


class Wrapped(Tensor):
    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda t: t.inner if isinstance(t, Wrapped) else t, (args, kwargs or {}))
        return tree_map(lambda t: Wrapped(t) if isinstance(t, Tensor) else t, function(*bare[0], **bare[1]))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Intercepting(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def mapping(name: str) -> Any:
    function = sa.spec(name).function
    return lambda x, **k: function(x, *[torch.full_like(x, 0.6)] * (name in BOUNDED), **k)


def both(f: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    z = x.clone().requires_grad_()
    p = f(z)
    (g,) = torch.autograd.grad((p * torch.arange(7.0)).sum(), z)
    return p.detach(), g


def same(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        a = a.inner if isinstance(a, Wrapped) else a.as_subclass(Tensor)
        assert torch.allclose(a, b, atol=1e-6), (a - b).abs().max()


@pytest.fixture(params=KERNELS + BOUNDED)
def f(request):
    return mapping(request.param)


@pytest.mark.parametrize("x", [X, torch.stack((X, Y))], ids=["matrix", "three dimensions"])
def test_subclasses_and_modes(kernel, f, x):
    """The last dimension alone is a row, also where the operators reshape what they are given."""
    expected = both(f, x)
    for kind in (lambda x: x.as_subclass(Plain), Wrapped):
        same(both(f, kind(x.clone())), expected)
    for mode in (Watching, Intercepting):
        with mode():
            same(both(f, x), expected)


def test_lazy_views_and_zeros(kernel, f):
    same([f(torch._neg_view(-X))], [f(X)])
    same([f(torch._efficientzerotensor((3, 7)))], [f(torch.zeros(3, 7))])
    x, w = X.clone().requires_grad_(), torch.randn(3, 7)
    same(torch.autograd.grad(f(x), x, torch._efficientzerotensor((3, 7))), [torch.zeros(3, 7)])
    same(torch.autograd.grad(f(x), x, torch._neg_view(w)), torch.autograd.grad(f(x), x, -w))


def test_without_values_there_are_shapes(kernel, f):
    with FakeTensorMode():
        p, g = both(lambda x: f(x, mask=torch.ones(7, dtype=torch.bool)), torch.randn(3, 7))
        assert p.shape == g.shape == (3, 7)
    x = X.to("meta").requires_grad_()
    p = f(x)
    (g,) = torch.autograd.grad(p.sum(), x)
    assert p.is_meta and g.is_meta and p.shape == g.shape == (3, 7)


def test_traced_graphs_compute_with_new_values(kernel, f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x, keep: f(x, mask=keep), (X, KEEP))
    same([traced(Y, KEEP), traced(Y, ~KEEP)], [f(Y, mask=KEEP), f(Y, mask=~KEEP)])
    for mode in ("real", "symbolic"):
        same([make_fx(lambda x: f(x), tracing_mode=mode)(X)(Y)], [f(Y)])
    same(make_fx(lambda x: both(f, x))(X)(Y), both(f, Y))


@pytest.mark.parametrize("name", KERNELS)
def test_traced_transforms(kernel, name):
    same([make_fx(lambda x: torch.func.vmap(mapping(name))(x))(X)(Y)], [mapping(name)(Y)])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "sparsemax" else pytest.mark.slow) for n in KERNELS])
def test_exported_and_compiled(name):
    m = sa.make(name)
    same([torch.export.export(m, (X,), strict=False).module()(Y)], [m(Y)])
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        got = both(m, X)
    same(got, both(m, X))


def test_rows_on_several_devices(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for m in [*map(sa.make, KERNELS), sa.make("top_k", k=3), sa.make("top_p", mass=0.6)]:
            for placement in (Replicate(), Shard(0), Shard(1)):
                x = distribute_tensor(X, mesh, [placement]).requires_grad_()
                p = m(x)
                p.sum().backward()
                same([p.full_tensor().detach(), x.grad.full_tensor()], [m(X), torch.zeros(3, 7)])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["sparsemax", "top_k"])
@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (5, 1)], ids=str)
def test_an_exported_length_may_be_any_other_size(name, lead):
    class Masked(torch.nn.Module):
        def forward(self, x):
            n = x.shape[-1]
            return sa.spec(name).function(x, mask=torch.ones(n, n, dtype=torch.bool).tril().expand(*lead, n, n))

    free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    graph = torch.export.export(Masked(), (torch.randn(5, 3, 40, 40),), dynamic_shapes=(free,)).module()
    for n in (3, 4, 5):  # the batch, the heads, and another one
        x = torch.randn(5, 3, n, n)
        torch.testing.assert_close(graph(x), Masked()(x))


NOT_DENSE = {
    "nested": (lambda x: torch.nested.nested_tensor([x, x[:1]]), "to_padded_tensor"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged), "nested.*to_padded_tensor"),
    "sparse": (Tensor.to_sparse, r"torch.sparse_coo tensor.*to_dense\(\)"),
    "sparse rows": (Tensor.to_sparse_csr, r"torch.sparse_csr tensor.*to_dense\(\)"),
    "quantised": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), r"quantised.*dequantize\(\)"),
}
INPUTS = {"bounds": 1.0, "groups": 2, "transitions": torch.zeros(4, 4)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NOT_DENSE)
@pytest.mark.parametrize("name", [n for n in sa.names() if sa.spec(n).over != "density" and not sa.spec(n).stateful])
def test_what_is_not_dense_is_refused_by_name(name, kind):
    x, inputs = torch.rand(4, 4), {n: INPUTS[n] for n in sa.spec(name).inputs}
    convert, words = NOT_DENSE[kind]
    given = convert(x)
    if kind != "jagged" or sa.spec(name).over != "row":  # tests/sparse_attention/test_ragged.py
        with pytest.raises(TypeError, match="scores is .*" + words):
            sa.make(name)(given, **inputs)
    if given.dtype == torch.float32:
        with pytest.raises(TypeError, match="mask is .*" + words):
            sa.make(name)(x, mask=convert(x.bool().float()).bool(), **inputs)
        refusal = "q is not jagged; q, k and v must all be" if kind == "jagged" else "k is .*" + words
        with pytest.raises(TypeError, match=refusal):
            sa.sparse_attention(x, given, x)
