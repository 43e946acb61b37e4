import itertools
import math

import entmax
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from sparse_attention.integrations import sdpa

# torch's softmax, and for the others the functions of the entmax package in torch's documented formula.
MAPPINGS = {
    "softmax": ({"mapping": "softmax"}, torch.softmax),
    "sparsemax": ({"mapping": "sparsemax"}, entmax.sparsemax),
    "entmax": ({"mapping": "entmax", "alpha": 1.5}, entmax.entmax15),
}


def reference(f, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The formula of torch's documentation with f in softmax's place; zeros for a query that sees no key."""
    n, m = q.shape[-2], k.shape[-2]
    bias = torch.zeros(n, m, dtype=q.dtype)
    if is_causal:
        bias = bias.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        bias = bias.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else bias + attn_mask
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    x = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    blind = (x == -math.inf).all(-1, keepdim=True)
    p = f(x.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    return F.dropout(p, dropout_p) @ v


def same(name, tensors, **given):
    """Output and gradients through the alias are the formula's, and with softmax those of torch's function, bit for bit."""
    ours, f = MAPPINGS[name]
    seen = given.get("attn_mask")
    wanted = [x for x in (*tensors, seen) if x is not None and x.requires_grad]
    found = []
    calls = [lambda *x, **y: reference(f, *x, **y), lambda *x, **y: sdpa.scaled_dot_product_attention(*x, **y, **ours)]
    if name == "softmax":
        calls.append(F.scaled_dot_product_attention)
    for call in calls:
        torch.manual_seed(0)
        out = call(*tensors, **given)
        found.append([out, *torch.autograd.grad(out.cos().sum(), wanted)])
    torch.testing.assert_close(found[1], found[0])
    if name == "softmax":
        assert all(torch.equal(a, b) for a, b in zip(found[1], found[2]))


def made(n, m, groups=4, e=8, lead=(2,), dtype=torch.float64):
    torch.manual_seed(n + m)
    shapes = ((*lead, 4, n, 8), (*lead, groups, m, 8), (*lead, groups, m, e))
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def masked(kind, n, m):
    keep = torch.rand(n, m) < 0.6
    keep[:, 0] = True
    if kind == "blind":  # a query that sees nothing
        keep[1] = False
    if kind == "hides":
        return {"attn_mask": torch.zeros(n, m, dtype=torch.float64).masked_fill(~keep, -torch.inf)}
    if kind in ("adds", "heads", "learned"):
        shape = {"adds": (n, m), "heads": (4, n, m), "learned": (2, 1, 1, m)}[kind]
        return {"attn_mask": torch.randn(shape, dtype=torch.float64, requires_grad=kind == "learned")}
    if kind == "narrow":
        return {"attn_mask": torch.randn(n, m)}  # float32, as torch allows beside any query
    return {"bool": {"attn_mask": keep}, "blind": {"attn_mask": keep}, "causal": {"is_causal": True}, None: {}}[kind]


KINDS = (None, "bool", "blind", "hides", "adds", "heads", "learned", "narrow", "causal")
SIZES = ((5, 5), (5, 9), (9, 5), (2, 4))


@pytest.mark.parametrize("name, kind, sizes", itertools.product(MAPPINGS, KINDS, SIZES))
def test_the_whole_signature_is_torchs(name, kind, sizes):
    given = masked(kind, *sizes)
    for scale, dropout in ((None, 0.0), (0.3, 0.3), (2, 1.0)):
        same(name, made(*sizes, e=6), scale=scale, dropout_p=dropout, **given)


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize(
    "q, k, v, grouped",
    [
        ((5, 8), (7, 8), (7, 6), False),
        ((4, 5, 8), (4, 7, 8), (4, 7, 6), False),
        ((4, 5, 8), (2, 7, 8), (2, 7, 6), True),
        ((3, 2, 4, 5, 8), (2, 4, 7, 8), (1, 1, 4, 7, 6), False),
        ((2, 4, 5, 8), (1, 4, 7, 8), (2, 4, 7, 6), False),
        ((2, 4, 5, 8), (4, 7, 8), (7, 6), False),
        ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), False),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 1, 7, 6), False),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), True),
        ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 6), False),
    ],
)
def test_shapes_broadcast_as_in_torch(name, q, k, v, grouped):
    torch.manual_seed(len(q))
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in (q, k, v)]
    same(name, tensors, enable_gqa=grouped)
    same(name, tensors, enable_gqa=grouped, is_causal=True)


def shaped(*sizes, dtype=torch.float32):
    return torch.zeros(sizes, dtype=dtype)


Q, K, V = shaped(2, 4, 5, 8), shaped(2, 4, 7, 8), shaped(2, 4, 7, 6)
WRONG = {
    "one dimension": ((shaped(4), shaped(1, 4), shaped(1, 4)), {}),
    "dtypes": ((Q, K.half(), V.half()), {}),
    "whole numbers": ((Q.int(), K.int(), V.int()), {}),
    "devices": ((Q.to("meta"), K, V), {}),
    "double mask": ((Q, K, V), {"attn_mask": shaped(5, 7, dtype=torch.float64)}),
    "mask of whole numbers": ((Q, K, V), {"attn_mask": shaped(5, 7, dtype=torch.int64)}),
    "size of the mask": ((Q, K, V), {"attn_mask": shaped(5, 6)}),
    "mask of more dimensions": ((Q, K, V), {"attn_mask": shaped(3, 2, 4, 5, 7)}),
    "mask and causal": ((Q, K, V), {"attn_mask": shaped(5, 7), "is_causal": True}),
    "heads": ((Q, K[:, :2], V[:, :2]), {}),
    "heads that do not divide": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}),
    "fewer heads in query": ((Q[:, :1], K, V), {"enable_gqa": True}),
    "batches": ((Q, shaped(3, 4, 7, 8), shaped(3, 4, 7, 6)), {}),
    "channels": ((Q, shaped(2, 4, 7, 9), V), {}),
    "keys and values": ((Q, K, shaped(2, 4, 6, 6)), {}),
    "dropout": ((Q, K, V), {"dropout_p": 1.5}),
}


@pytest.mark.parametrize("name, case", itertools.product(MAPPINGS, WRONG))
def test_what_torch_refuses_with_a_runtime_error(name, case):
    tensors, given = WRONG[case]
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(*tensors, **given)
    with pytest.raises(RuntimeError) as error:
        sdpa.scaled_dot_product_attention(*tensors, **given, **MAPPINGS[name][0])
    assert name == "softmax" or case == "mask and causal" or isinstance(error.value, (TypeError, ValueError))


def test_errors_of_a_mapping_of_ones_own_stay_as_they_are():
    def broken(scores, mask):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as error:
        sdpa.scaled_dot_product_attention(Q, K, V, mapping=broken)
    assert type(error.value) is ValueError


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(name, layout):
    torch.manual_seed(0)
    sizes = [(3, 5), (1, 1), (6, 2)] if layout == torch.strided else [(3, 3), (1, 1), (6, 6)]
    rows = [[torch.randn(m, 4, 8, requires_grad=True) for m in (n, m, m)] for n, m in sizes]
    q, k, v = (torch.nested.as_nested_tensor(list(x), layout=layout).transpose(1, 2) for x in zip(*rows))
    if layout == torch.strided:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    ours, f = MAPPINGS[name]
    out = sdpa.scaled_dot_product_attention(q, k, v, **ours)
    assert out.layout == layout
    expected = [reference(f, *(x.transpose(0, 1) for x in row)) for row in rows]
    parts = out.unbind()
    for a, b in zip(parts, expected):
        torch.testing.assert_close(a, b)
    leaves = [x for row in rows for x in row]
    torch.testing.assert_close(
        torch.autograd.grad(sum(x.cos().sum() for x in parts), leaves),
        torch.autograd.grad(sum(x.cos().sum() for x in expected), leaves),
    )
    if layout == torch.jagged:
        assert (out + q).shape == q.shape  # the same ragged size


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("sizes", [(5, 5), (4, 7)])
def test_causal_masks_of_torch(name, sizes):
    q, k, v = made(*sizes)
    ours, f = MAPPINGS[name]
    for mask, shift in ((causal_upper_left, 0), (causal_lower_right, sizes[1] - sizes[0])):
        out = sdpa.scaled_dot_product_attention(q, k, v, mask(*sizes), **ours)
        keep = torch.ones(*sizes, dtype=torch.bool).tril(shift)
        torch.testing.assert_close(out, reference(f, q, k, v, keep))


@pytest.mark.parametrize(
    "given", [{}, {"is_causal": True}, {"dropout_p": 0.5}, {"attn_mask": torch.ones(9, 9).tril().bool()}]
)
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "oscarmax"])
def test_the_result_is_laid_out_as_torchs(name, given):
    q = torch.randn(2, 9, 3, 4, requires_grad=True)
    for x in (
        q.transpose(1, 2),
        q.transpose(1, 2).contiguous(),
        q.transpose(1, 2).detach(),
        q.transpose(1, 2).bfloat16(),
    ):
        out = sdpa.scaled_dot_product_attention(x, x, x, mapping=name, **given)
        theirs = F.scaled_dot_product_attention(x, x, x, **given)
        assert out.shape == theirs.shape
        assert out.stride() == theirs.stride() or (given == {"dropout_p": 0.5} and out.stride() == x.stride())
