"""Native code sees addresses alone: every entry gives on views what it gives on copies, and refuses what does not fit."""

from functools import partial

import pytest
import torch
from kernel_oracles import defaults, dense_weights

from sparse_attention.kernels import native
from sparse_attention.kernels.native import attention, memory

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


def rows(op, x, g, lie):
    p, saved = native.OPS[op].forward(x, **defaults(op))
    return p, *saved, native.OPS[op].backward(g, lie(p), saved, **defaults(op))


def bounded(x, bounds, g, lie):
    p, saved = native.OPS["constrained_sparsemax"].forward(x, bounds=bounds)
    return p, *saved, *native.OPS["constrained_sparsemax"].backward(g, p, saved, bounds=bounds)


def masked(op, x, g, lie):
    kept = None if op == "oscarmax" else torch.arange(35).view(5, 7) % 3 > 0
    call = native.masked.Masked(op, kept, 5, 5, torch.full((5,), 1.5, dtype=torch.float64), 0.5)
    p, ids = call.forward(x)
    dx, slopes = call.backward(g, x, p, ids, True)
    return p, ids, dx, *slopes


def structured(name, x, g, *transitions, lie):
    status, (mu, _, gap, structures, counts) = native.STRUCTURED[name].forward(x, *transitions)
    slopes = native.STRUCTURED[name].backward(g, lie(structures), lie(counts), name == "sparsemap_sequence")
    return mu, gap, counts, *slopes, torch.tensor(status)


def attended(q, k, v, g, lie, lengths=None):
    out, saved = attention.forward(q, k, v, alpha=1.5, scale=0.3, lengths=lengths, weights=True)
    return out, dense_weights(saved), *attention.gradients(g, q, k, v, saved)[:3]


LENGTHS = torch.tensor([3]).expand(4), torch.tensor([9, 0, 1, 40])[::2].repeat(2)
HEADS = (4, 40, 16), (2, 40, 16), (2, 40, 16), (4, 40, 16)
CALLS = {
    **{op: (partial(rows, op), *[(5, 7)] * 2) for op in ("sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax")},
    "constrained_sparsemax": (bounded, *[(5, 7)] * 3),
    **{f"masked {op}": (partial(masked, op), *[(5, 7)] * 2) for op in ("sparsemax", "entmax", "pnormmax", "oscarmax")},
    **{f"masked {op}": (partial(masked, op), *[(5, 7)] * 2) for op in ("sparsecone", "sparsehourglass")},
    "matching": (partial(structured, "sparsemap_matching"), *[(2, 4, 3)] * 2),
    "tree": (partial(structured, "sparsemap_tree"), *[(2, 4, 4)] * 2),
    "sequence": (partial(structured, "sparsemap_sequence"), *[(2, 4, 3)] * 2, (3, 3)),
    "sequences": (partial(structured, "sparsemap_sequence"), *[(2, 4, 3)] * 2, (2, 3, 3)),
    "attention": (attended, *HEADS),
    **{f"attention, lengths {i}": (partial(attended, lengths=x), *HEADS) for i, x in enumerate(LENGTHS)},
}


@views
@pytest.mark.parametrize("name", CALLS)
def test_views_are_as_copies(name, view):
    """In what is given, and where the backward takes what the forward has kept, in that too."""
    call, *shapes = CALLS[name]
    given = [view(normal(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
    if name == "constrained_sparsemax":
        given[1] = view(given[1].abs() + 0.5)
    copies = [plain(x) for x in given]
    lie = VIEWS["transposed"] if view is VIEWS["transposed"] else lambda x: x
    same(call(*given, lie=lie), call(*copies, lie=lambda x: x))


def test_gradients_of_another_size_or_type_are_refused():
    x = normal(5, 7)
    for op in ("sparsemax", "entmax", "pnormmax", "fusedmax", "oscarmax"):
        p, saved = native.OPS[op].forward(x, **defaults(op))
        for key, g in (("shape", normal(4, 7)), ("dtype", normal(5, 7).double())):
            with pytest.raises((TypeError, ValueError), match=key):
                native.OPS[op].backward(g, p, saved, **defaults(op))


def test_an_address_is_given_to_what_fits_alone():
    x = normal(5, 7)
    assert memory.address(x, torch.float32, 35) == x.data_ptr() and memory.dense(x) is x
    assert memory.address(x[:0], torch.float32, 0) == x[:0].data_ptr()
    strided = (x.T, x[:1].expand(5, 7), torch._neg_view(x))
    for key, wrong in (("dtype", x.double()), ("shape", x[1:]), *(("strides", y) for y in strided)):
        with pytest.raises(TypeError if key == "dtype" else ValueError, match=key):
            memory.address(wrong, torch.float32, 35)
    for nowhere in (x.to("meta"), torch._efficientzerotensor((5, 7))):
        with pytest.raises(memory.NoMemory):
            memory.address(nowhere, torch.float32, 35)
