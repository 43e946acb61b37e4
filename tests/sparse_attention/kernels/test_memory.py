"""Native code sees addresses alone: every entry gives on views what it gives on copies, and refuses what does not fit."""

from __future__ import annotations

import pytest
import torch
from kernel_oracles import decoded, defaults, dense_weights
from refusals import refused

from sparse_attention.describe import Refusal
from sparse_attention.kernels import native
from sparse_attention.kernels.native import attention, decoding, memory

pytestmark = pytest.mark.skipif(not native.available("sparsemax", torch.zeros(1, 1)), reason="no C++ compiler here")

# Ways to hold a tensor: each returns one of the same shape and dtype that lies otherwise, some with values of their own.
VIEWS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "expanded rows": lambda x: x[:1].expand_as(x),
    "expanded columns": lambda x: x[..., :1].expand_as(x),
    "one value": lambda x: x.flatten()[0].expand_as(x),
    "behind others": lambda x: torch.cat([x.flatten()[:3], x.flatten()])[3:].view_as(x),
    "negated": lambda x: torch._neg_view(-x) if x.is_floating_point() else x.clone(),
}
views = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain(x):
    return x.resolve_neg().clone(memory_format=torch.contiguous_format)


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


@views
@pytest.mark.parametrize("op", ["sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax"])
def test_rows(op, view):
    kernel, x, g = native.OPS[op], view(normal(5, 7)), view(normal(5, 7, seed=1))
    params = defaults(op)
    p, saved = kernel.forward(x, **params)
    expected, kept = kernel.forward(plain(x), **params)
    same((p, *saved), (expected, *kept))
    want = kernel.backward(plain(g), expected, kept, **params)
    same([kernel.backward(g, view(p) if view is VIEWS["transposed"] else p, saved, **params)], [want])


@views
def test_bounds(view):
    kernel, x, u, g = native.OPS["constrained_sparsemax"], *(view(normal(5, 7, seed=s)) for s in range(3))
    u = u.abs() + 0.5 if not u.is_neg() else u
    there = [plain(t) for t in (x, u, g)]
    p, saved = kernel.forward(x, bounds=view(u))
    expected, kept = kernel.forward(there[0], bounds=plain(view(u)))
    same((p, *saved), (expected, *kept))
    bounds = plain(view(u))
    same(kernel.backward(g, p, saved, bounds=view(u)), kernel.backward(there[2], expected, kept, bounds=bounds))


@views
@pytest.mark.parametrize("op", ["sparsemax", "entmax", "pnormmax", "oscarmax", "sparsecone", "sparsehourglass"])
def test_masked(op, view):
    make = native.masked.Masked
    theta = torch.full((5,), 1.5, dtype=torch.float64)
    kept = None if op == "oscarmax" else torch.arange(35).view(5, 7) % 3 > 0
    call = make(op, kept, 5, 5, theta, 0.5)
    x, g = view(normal(5, 7)), view(normal(5, 7, seed=1))
    there = [plain(t) for t in (x, g)]
    p, ids = call.forward(x)
    same((p, ids), call.forward(there[0]))
    dx, slopes = call.backward(g, x, p, ids, True)
    expected, others = call.backward(there[1], there[0], p, ids, True)
    same((dx, *slopes), (expected, *others))


def test_masked_rows_refuse_what_it_would_read_past():
    x, kept, theta = normal(6, 7), torch.ones(6, 7, dtype=torch.bool), torch.ones(6, dtype=torch.float64)
    make = native.masked.Masked
    for key, value, *call in (
        ("strides", (0, 1), kept[:1].expand(6, 7), 6, 6, 1.0),
        ("shape", (5, 7), kept[:5], 6, 6, 1.0),
        ("dtype", torch.float32, kept.float(), 6, 6, 1.0),
        ("strides", (0,), None, 1, 1, theta[:1].expand(6)),
        ("shape", (5,), None, 1, 1, theta[:5]),
        ("dtype", torch.float32, None, 1, 1, theta.float()),
    ):
        with refused(Refusal, key=key, value=value):
            make("sparsemax", *call, 1.0).forward(x)
    assert torch.equal(
        make("sparsemax", kept[:1], 6, 1, theta, 1.0).forward(x)[0], native.OPS["sparsemax"].forward(x, gamma=1.0)[0]
    )


@views
@pytest.mark.parametrize("name", ["sparsemap_sequence", "sparsemap_matching", "sparsemap_tree"])
def test_structures(name, view):
    n = 4 if name == "sparsemap_tree" else 3
    op, x, g = native.STRUCTURED[name], view(normal(2, 4, n)), view(normal(2, 4, n, seed=1))
    steps = name == "sparsemap_sequence"
    for t in (normal(3, 3), normal(2, 3, 3)) if steps else (None,):
        given = [] if t is None else [view(t)]
        there = [plain(a) for a in (x, *given)]
        status, (mu, _, gap, structures, counts) = op.forward(x, *given)
        expected, (nu, _, other, listed, used) = op.forward(*there)
        assert status == expected
        same((mu, gap, counts), (nu, other, used))
        expected = op.backward(plain(g), listed, used, steps)
        same(op.backward(g, structures.mT.contiguous().mT, counts.mT.contiguous().mT, steps), expected)


@views
@pytest.mark.parametrize("lengths", [None, torch.tensor([3]).expand(4), torch.tensor([9, 0, 1, 40])[::2].repeat(2)])
def test_attention(view, lengths):
    given = [view(normal(h, n, 16, seed=h)) for h, n in ((4, 40), (2, 40), (2, 40))]
    g = view(normal(4, 40, 16, seed=7))
    there = [plain(x) for x in (*given, g)]
    told = {"alpha": 1.5, "scale": 0.3, "lengths": lengths}
    out, saved = attention.forward(*given, **told, weights=True)
    told["lengths"] = None if lengths is None else plain(lengths)
    expected, kept = attention.forward(*there[:3], **told, weights=True)
    same((out, dense_weights(saved)), (expected, dense_weights(kept)))
    same(attention.gradients(g, *given, saved)[:3], attention.gradients(there[3], *there[:3], kept)[:3])


@views
def test_decoding(view):
    q, k, v = normal(4, 16), normal(2, 70, 16, seed=1), view(normal(2, 70, 8, seed=2))
    panels = decoding.KeyPanels(2, 16).append(k)
    rows = k.new_empty(2, 90, 16)[:, :70].copy_(k)  # groups apart, as a cache holds them
    for lengths in (None, torch.tensor([3]).expand(4)):
        told = {"alpha": 2.0, "scale": 0.5, "lengths": lengths}
        held = plain(v)
        seen = None if lengths is None else lengths.clone()
        expected, _ = attention.forward(q[:, None], k, held, alpha=2.0, scale=0.5, lengths=seen)
        torch.testing.assert_close(
            decoded(view(q), rows, held, panels, **told), decoded(plain(view(q)), k, held, panels, **told)
        )
        torch.testing.assert_close(decoded(q, rows, held, panels, **told), expected[:, 0])
    if view is VIEWS["transposed"]:
        with refused(ValueError, key="strides"):
            decoding.step(4, k, v, panels, alpha=2.0, scale=0.5)


def test_decoding_refuses_what_it_would_read_past():
    q, k, v = normal(4, 16), normal(2, 70, 16), normal(2, 70, 8)
    panels = decoding.KeyPanels(2, 16).append(k)
    step = decoding.step(4, k, v, panels, alpha=2.0, scale=0.5)
    out, ones, told = torch.empty(4, 8), torch.ones, {"alpha": 2.0, "scale": 0.5}
    strides = (q[:1].expand(4, 16), out), (q.T.contiguous().T, out), (q, out, ones(70, 4).T)
    shape = (q[:3], out), (q, out[:3]), (q, out, ones(1, 60)), (q, out, ones(2, 70))
    dtype = (q.double(), out), (q, out, ones(4, 70).double())
    for key, given in (
        (name, case) for name, cases in (("strides", strides), ("shape", shape), ("dtype", dtype)) for case in cases
    ):
        with refused(Refusal, key=key):
            step(*given)
    seen = torch.tensor([3])
    for key, lengths in (("strides", seen.expand(4)), ("shape", seen), ("dtype", seen.int().repeat(4))):
        with refused(Refusal, key=key):
            decoding.step(4, k, v, panels, **told, lengths=lengths)
    with refused(ValueError, key="shape"):
        decoding.step(4, k, v, panels, **told, slopes=ones(4), sinks=ones(2))
    for keys, values in ((k[:1], v[:1]), (k, v[:, :60]), (k[..., :8].contiguous(), v)):
        with refused(ValueError, key="panels", value=(2, 16)):
            decoding.step(4, keys, values, panels, **told)
    for keys, values, dtype in ((k, v.half(), torch.float16), (k.double(), v, torch.float64)):
        with refused(TypeError, key="dtype", value=dtype):
            decoding.step(4, keys, values, panels, **told)


def test_gradients_of_another_size_or_type_are_refused():
    x = normal(5, 7)
    for op in ("sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax"):
        p, saved = native.OPS[op].forward(x, **defaults(op))
        for key, g in (("shape", normal(4, 7)), ("dtype", normal(5, 7).double())):
            with refused(Refusal, key=key):
                native.OPS[op].backward(g, p, saved, **defaults(op))
    with refused(TypeError, key="dtype", value=torch.float16):
        native.OPS["sparsemax"].forward(x.half(), gamma=1.0)


def test_an_address_is_given_to_what_fits_alone():
    x = normal(5, 7)
    assert memory.address(x, torch.float32, 35) == x.data_ptr() and memory.dense(x) is x
    assert memory.address(x[:0], torch.float32, 0) == x[:0].data_ptr()
    strided = (x.T, x[:1].expand(5, 7), torch._neg_view(x))
    for key, wrong in (("dtype", x.double()), ("shape", x[1:]), *(("strides", y) for y in strided)):
        with refused(TypeError if key == "dtype" else ValueError, key=key):
            memory.address(wrong, torch.float32, 35)
    for nowhere in (x.to("meta"), torch._efficientzerotensor((5, 7))):
        with pytest.raises(memory.NoMemory):
            memory.address(nowhere, torch.float32, 35)
