"""sa.KeyCache: decoding a position at a time gives what one call over all positions gives."""

import copy
import math

import pytest
import torch
from random_calls import chosen, exact_output
from torch.utils.flop_counter import FlopCounterMode

import sparse_attention as sa
from sparse_attention.kernels.native import attention as native

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def tensors(B=2, H=4, G=2, m=70, d=16, e=12, dtype=torch.float32):
    make = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=make).to(dtype) for s in ((B, H, m, d), (B, G, m, d), (B, G, m, e))]


FIRST = [("entmax", 0), ("entmax", 20), ("others", 0), ("others", 20), ("fusedmax", 0)]


@pytest.mark.parametrize("mapping, first", FIRST)
@torch.no_grad()
def test_random_steps_are_the_formula(mapping, first):
    """One query and several after several appends, every form, in every type, on few keys and on many panels."""
    for seed in range(first, first + 20):
        call = {**chosen(seed, mapping), "causal": True}
        q, k, v, alpha, scale = (call.pop(name, None) for name in ("q", "k", "v", "alpha", "scale"))
        for name in ("cu_seqlens", "dropout", "need_weights"):
            call.pop(name, None)
        if isinstance(scale, torch.Tensor) and scale.numel() in (1, q.shape[1]):
            call["scale"] = scale.view(-1) if scale.numel() > 1 else float(scale)
        if alpha is not None:
            call["alpha"] = alpha if isinstance(alpha, torch.Tensor) else (2.0, 1.5)[seed % 2]
        if seed % 5 == 0:
            call = {name: x for name, x in call.items() if name not in ("mask", "bias", "lengths")}
            q, k, v = (q[:, :, -1:], *(x.repeat(1, 1, 8, 1) + 0.1 * torch.randn(8 * x.shape[2], 1) for x in (k, v)))
        dtype = DTYPES[seed % 3] if call["mapping"] != "softmax" and q.dtype == torch.float32 else q.dtype
        q, k, v = (x.to(dtype) for x in (q, k, v))
        own = {name: x for name, x in call.items() if name not in ("causal", "lengths", "mask", "bias")}
        for n in {1, min(q.shape[2], k.shape[2], 5)}:
            given = {name: call[name] for name in ("mask", "bias") if name in call}
            given = {name: x[..., -n:, :] if x.ndim > 1 else x for name, x in given.items()}
            given |= {"lengths": call["lengths"]} if "lengths" in call else {}
            one, exact = q[:, :, -n:], {name: x.double() for name, x in (("q", q[:, :, -n:]), ("k", k), ("v", v))}
            want = exact_output(**exact, **own, **given, causal=True)[0].to(dtype)
            cache, m = sa.KeyCache(**own), k.shape[2]
            for t in sorted({m // 3, m // 2, m} - {0}):
                cache.append(k[:, :, len(cache) : t], v[:, :, len(cache) : t])
            decoded = cache.plan(one, **given).path == "decode"
            if n == 1 and isinstance(call.get("alpha"), float) and "mask" not in given and native._load() is not None:
                assert decoded == (dtype != torch.float64)
            size = 1 + float(one.double().norm(dim=-1).max() * k.double().norm(dim=-1).max())
            close = {"atol": 2e-5 * size, "rtol": torch.finfo(dtype).eps if dtype in DTYPES[1:] else 0.0}
            close = close if decoded or not close["rtol"] else {"atol": 2e-2, "rtol": 2e-2}
            for kernels in ("auto", "auto", "reference"):  # the second step takes the shortest way
                with sa.kernels.use(kernels):
                    found = cache.attend(one, **given)
                torch.testing.assert_close(found, want, **close)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_any_leading_shape_and_a_long_cache(shape):
    torch.manual_seed(0)
    heads = (*shape[:-1], 6) if shape else ()
    q, k, v = torch.randn(*heads, 1, 64) * 2, torch.randn(*shape, 1000, 64), torch.randn(*shape, 1000, 32)
    cache = sa.KeyCache("sparsemax", scale=0.3)
    for piece in zip(k.split(300, -2), v.split(300, -2)):
        cache.append(*piece)
    want = sa.sparse_attention(q.double(), k.double(), v.double(), scale=0.3)
    torch.testing.assert_close(cache.attend(q).double(), want, atol=1e-5, rtol=0)


def decoding(mapping="sparsemax", m=300, **params):
    """A cache of two entries with four heads each, whose next query takes the shortest way, and that query."""
    q, k, v = tensors(m=m, d=64)
    cache, one = sa.KeyCache(mapping, **params).append(k, v), q[:, :, -1:].contiguous()
    if native._load() is None:
        pytest.skip(f"no native kernels: {native._failure}")
    assert cache.plan(one).path == "decode"
    cache.attend(one)
    return cache, one, k, v


def test_a_step_after_a_step_is_as_the_first():
    """Keys that come one by one, through the room of the buffers and the ends of panels; a cache that is cut and reordered."""
    cache, one, k, v = decoding()
    for t in range(75):
        cache.append(k[:, :, t : t + 1] + 0.1, v[:, :, t : t + 1])
        torch.testing.assert_close(cache.attend(one), sa.sparse_attention(one, cache.keys, cache.values))
    first, again = cache.attend(one), cache.attend(one)
    assert torch.equal(first, again) and first.data_ptr() != again.data_ptr()
    cache.crop(290)
    torch.testing.assert_close(cache.attend(one), sa.sparse_attention(one, k[:, :, :290], v[:, :, :290]))
    cache.reorder(torch.tensor([1, 1]))
    torch.testing.assert_close(cache.attend(one), sa.sparse_attention(one, k[[1, 1], :, :290], v[[1, 1], :, :290]))


def test_later_steps_look_at_their_query():
    """What the first step refuses or computes otherwise, a later one does, too."""
    cache, one, k, v = decoding()
    same = cache.attend(one)
    assert torch.equal(cache.attend(torch.cat([one, one], -1)[..., :64]), same)  # rows that lie apart
    assert not cache.attend(one.clone().requires_grad_()).requires_grad
    torch.testing.assert_close(cache.attend(torch._neg_view(-one)), same)  # negated when it is read
    bias = torch.randn(300)
    assert torch.equal(cache.attend(one, bias=torch._neg_view(-bias)), cache.attend(one, bias=bias))
    with FlopCounterMode(display=False) as mode:  # modes see every operation
        torch.testing.assert_close(cache.attend(one), same)
    assert mode.get_total_flops() > 0
    with sa.kernels.use("reference"):
        assert torch.equal(cache.attend(one), sa.KeyCache().append(k, v).attend(one))
        assert cache.plan(one).path == "composition" and "reference" in cache.plan(one).reason
    torch.testing.assert_close(cache.attend(one[:, :2]), sa.sparse_attention(one[:, :2], k, v))
    with pytest.raises(TypeError, match="convert them to one"):
        cache.attend(one.double())
    with pytest.raises(ValueError, match="q has 3 heads"):
        cache.attend(one[:, :3])
    copied = copy.deepcopy(cache)
    copied.append(9 * one[:, :2], v[:, :, :1])
    assert torch.equal(cache.attend(one), same) and not torch.equal(copied.attend(one), same)
    mapping = sa.make("sparsemax", gamma=1.0)
    cache, one, k, v = decoding(mapping)
    mapping.gamma = 0.1  # is asked again
    torch.testing.assert_close(cache.attend(one), sa.sparse_attention(one, k, v, gamma=0.1))


def test_the_plan_of_a_step():
    q, k, v = tensors()
    cache, one = sa.KeyCache().append(k, v), q[:, :, -1:]
    for forms in ({}, {"slopes": torch.ones(4)}):
        assert "mask" in sa.KeyCache(**forms).append(k, v).plan(one, mask=torch.ones(70, dtype=torch.bool)).reason
    assert "no fused kernel" in sa.KeyCache("fusedmax").append(k, v).plan(one).reason
    assert "float64" in sa.KeyCache().append(k.double(), v.double()).plan(one.double()).reason
    assert sa.KeyCache("softmax").append(k, v).plan(one).path == "sdpa"
    assert cache.plan(q).path in ("fused", "composition")


def test_what_is_refused_says_what_to_do():
    q, k, v = tensors()
    few, one, three = sa.KeyCache().append(k[:, :, :8], v[:, :, :8]), q[:, :, -1:], torch.ones(3)
    for call, error, says in (
        (lambda: sa.KeyCache().attend(q), ValueError, r"call append\(k, v\) first"),
        (lambda: few.append(k, v[:, :, 1:]), ValueError, "must have the same shape"),
        (lambda: few.append(k[:, :1], v[:, :1]), ValueError, "does not fit the cache"),
        (lambda: few.append(k.double(), v.double()), TypeError, "convert k"),
        (lambda: few.attend(q[:, :, :9]), ValueError, "9 queries, but 8 cached positions"),
        (lambda: few.crop(9), ValueError, "out of range"),
        (lambda: sa.KeyCache(slopes=three).append(k, v).attend(one), ValueError, "slopes must be a tensor"),
        (lambda: sa.KeyCache(scale=three).append(k, v).attend(one), ValueError, "scale must be a tensor"),
        (lambda: sa.KeyCache().append(k, v).attend(one, bias=three), ValueError, "bias of shape"),
    ):
        with pytest.raises(error, match=says):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_any_bound(dtype):
    """NaN, infinities and numbers that overflow, in keys, bias and sinks: as the composition says."""
    q, k, v = tensors(m=200, d=64, dtype=dtype)
    one = q[:, :, -1:]
    bad = k.clone()
    bad[0, 0, 3], bad[1, 1, 150] = math.nan, torch.finfo(dtype).max
    bias = torch.zeros(2, 4, 1, 200)
    bias[0, 2, 0, 5], bias[0, 3, 0, 7], bias[1, 0], bias[1, 1] = math.nan, math.inf, -math.inf, -3e38
    sinks = torch.tensor([math.nan, 0.0, math.inf, 0.0])
    for keys, given, sink in ((bad, None, None), (k, bias, None), (k, None, sinks)):
        cache = sa.KeyCache("sparsemax", sink=sink).append(keys, v)
        if native._load() is not None:
            assert cache.plan(one, bias=given).path == "decode"
        got = cache.attend(one, bias=given)
        with sa.kernels.use("reference"):
            want = cache.attend(one, bias=given)
        torch.testing.assert_close(got, want, equal_nan=True, atol=1e-2 if keys is bad else 1e-5, rtol=1e-2)


@pytest.mark.parametrize("prompt", [1, 3, 40])
@pytest.mark.parametrize("reordered", [False, True])
def test_a_cache_filled_in_inference_mode_goes_on_outside(prompt, reordered):
    q, k, v = tensors(B=1)
    cache = sa.KeyCache()
    with torch.inference_mode():
        for t in range(prompt):
            cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
            cache.attend(q[:, :, t : t + 1])
        if reordered:
            cache.reorder(torch.tensor([0]))
    for t in range(prompt, 45):
        out = cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1]).attend(q[:, :, t : t + 1])
    torch.testing.assert_close(out, sa.sparse_attention(q[:, :, t : t + 1], k[:, :, :45], v[:, :, :45]))
    w = q.clone().requires_grad_()
    sa.sparse_attention(w[:, :, :45], cache.keys, cache.values).sum().backward()  # its keys can be trained with


def test_values_without_channels_are_no_case_for_the_kernel():
    k = torch.randn(1, 2, 20, 8)
    cache, q = sa.KeyCache("sparsemax").append(k, k[..., :0]), torch.randn(1, 2, 1, 8)
    assert cache.plan(q).path == "composition" and cache.attend(q).shape == (1, 2, 1, 0)
