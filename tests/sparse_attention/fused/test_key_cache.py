"""sa.KeyCache: decoding a position at a time gives what one call over all positions gives."""

from __future__ import annotations

import copy
import itertools
import math

import entmax
import pytest
import torch
import torch.nn.functional as F
from attention_oracles import distances, formula, visible
from torch.utils.flop_counter import FlopCounterMode

import sparse_attention as sa
from sparse_attention.kernels.native import attention as native

MAPPINGS = [
    ("sparsemax", {}),
    ("sparsemax", {"gamma": 0.3}),
    ("entmax", {"alpha": 1.5}),
    ("entmax", {"alpha": 1.2}),
    ("softmax", {}),
]


def tensors(B=2, H=4, G=2, m=70, d=16, e=12, dtype=torch.float32):
    make = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=make).to(dtype) for s in ((B, H, m, d), (B, G, m, d), (B, G, m, e))]


@pytest.mark.parametrize(("mapping", "params"), MAPPINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_one_call(mapping, params, dtype):
    q, k, v = tensors(dtype=dtype)
    if mapping == "softmax":
        try:  # ATEN_CPU_CAPABILITY=default on a processor with AMX
            F.scaled_dot_product_attention(q, k, F.pad(v, (0, 4)), is_causal=True, enable_gqa=True)
        except RuntimeError as error:
            pytest.skip(f"torch's own attention fails here: {error}")
    whole = sa.sparse_attention(q, k, v, mapping, causal=True, **params)
    cache = sa.KeyCache(mapping, **params)
    cache.append(k[:, :, :33], v[:, :, :33])
    parts = [cache.attend(q[:, :, :33])]
    for t in range(33, 70):
        cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
        parts.append(cache.attend(q[:, :, t : t + 1]))
    assert len(cache) == 70 and torch.equal(cache.keys, k) and torch.equal(cache.values, v)
    assert parts[-1].dtype == dtype
    slack = 2e-2 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=slack, rtol=slack)


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
    if cache.plan(q).path == "decode":  # and without the native kernel
        with sa.kernels.use("reference"):
            torch.testing.assert_close(cache.attend(q).double(), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_rounded_keys_change_nothing(alpha):
    """One channel a thousand times the others, keys that drift away from those that chose the rounding, a cache that is cut."""
    make = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, h, 900, 64, generator=make) for h in (4, 2, 2))
    k[..., 3] *= 1000
    k = k + torch.linspace(0, 30, 900)[:, None]
    cache = sa.KeyCache("entmax", scale=0.01, alpha=alpha)
    for t in (400, 401, 650, 900):
        cache.append(k[:, :, len(cache) : t], v[:, :, len(cache) : t])
        one = q[:, :, t - 1 : t]
        want = sa.sparse_attention(
            one.double(), k[:, :, :t].double(), v[:, :, :t].double(), "entmax", scale=0.01, alpha=alpha
        )
        torch.testing.assert_close(cache.attend(one).double(), want, atol=2e-3, rtol=0)  # of scores up to 100
    index = torch.tensor([1, 0])
    cache.reorder(index).crop(500).append(k[index, :, 500:700], v[index, :, 500:700])
    want = sa.sparse_attention(
        one.double(), k[index, :, :700].double(), v[index, :, :700].double(), "entmax", scale=0.01, alpha=alpha
    )
    torch.testing.assert_close(cache.attend(one).double(), want, atol=2e-3, rtol=0)
    padded = cache.attend(one, lengths=torch.tensor([0, 130]))
    assert (padded[0] == 0).all() and not torch.allclose(padded[1], want[1].float())
    torch.testing.assert_close(
        padded[1:],
        sa.sparse_attention(one[1:], k[:1, :, :130], v[:1, :, :130], "entmax", scale=0.01, alpha=alpha),
        atol=2e-3,
        rtol=0,
    )


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
    torch.testing.assert_close(
        cache.attend(one), sa.sparse_attention(one, k[[1, 1], :, :290], v[[1, 1], :, :290]), msg="entries of a beam"
    )


def test_later_steps_look_at_their_query():
    """What the first step refuses or computes otherwise, a later one does, too."""
    cache, one, k, v = decoding()
    same = cache.attend(one)
    assert torch.equal(cache.attend(torch.cat([one, one], -1)[..., :64]), same)  # rows that lie apart
    assert not cache.attend(one.clone().requires_grad_()).requires_grad
    torch.testing.assert_close(cache.attend(torch._neg_view(-one)), same)  # negated when it is read
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


def test_a_mapping_that_changes_is_asked_again():
    mapping = sa.make("sparsemax", gamma=1.0)
    cache, one, k, v = decoding(mapping)
    mapping.gamma = 0.1
    torch.testing.assert_close(cache.attend(one), sa.sparse_attention(one, k, v, gamma=0.1))


def test_the_plan_of_a_step():
    q, k, v = tensors()
    cache, one = sa.KeyCache().append(k, v), q[:, :, -1:]
    assert "mask" in cache.plan(one, mask=torch.ones(70, dtype=torch.bool)).reason
    assert "no fused kernel" in sa.KeyCache("fusedmax").append(k, v).plan(one).reason
    assert "float64" in sa.KeyCache().append(k.double(), v.double()).plan(one.double()).reason
    assert sa.KeyCache("softmax").append(k, v).plan(one).path == "sdpa"
    assert cache.plan(q).path in ("fused", "composition")


def test_what_is_refused_says_what_to_do():
    q, k, v = tensors()
    cache = sa.KeyCache()
    with pytest.raises(ValueError, match=r"append\(k, v\) comes first"):
        cache.attend(q)
    with pytest.raises(ValueError, match="must have the same shape"):
        cache.append(k, v[:, :, 1:])
    cache.append(k[:, :, :8], v[:, :, :8])
    with pytest.raises(ValueError, match="does not continue"):
        cache.append(k[:, :1], v[:, :1])
    with pytest.raises(TypeError, match="convert it"):
        cache.append(k.double(), v.double())
    with pytest.raises(ValueError, match="9 queries for 8 positions"):
        cache.attend(q[:, :, :9])
    with pytest.raises(ValueError, match="out of range"):
        cache.crop(9)
    with pytest.raises(ValueError, match="did you mean"):
        sa.KeyCache("sparsemax", gama=1.0)


@pytest.mark.parametrize(
    "mapping", [("sparsemax", {}), ("entmax", {"alpha": 1.5}), ("fusedmax", {}), ("softmax", {})], ids=str
)
@pytest.mark.parametrize(("B", "H", "G"), [(1, 4, 1), (1, 4, 4), (3, 4, 2), (2, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_hides_the_same_keys_whatever_says_so(mapping, B, H, G, dtype):
    """Lengths for entries and for heads, of either type, from 0 to all, and every shape of mask, after several appends."""
    name, params = mapping
    q, k, v = tensors(B, H, G, m=64, dtype=dtype)
    cache = sa.KeyCache(name, **params)
    for t in (40, 41, 64):
        cache.append(k[:, :, len(cache) : t], v[:, :, len(cache) : t])
    slack = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 2e-5, "rtol": 2e-5}
    for n in (1, 3):
        one, causal = q[:, :, -n:], torch.ones(n, 64, dtype=torch.bool).tril(64 - n)
        for lengths in (
            torch.arange(B) * 20 + 3,
            torch.zeros(B),
            torch.full((B,), 64),
            torch.arange(B * H).view(B, H) * 5,
        ):
            lengths = lengths.to(torch.int32 if n == 1 and B > 1 else torch.int64)
            keep = torch.arange(64) < lengths.view(B, -1, 1, 1)  # [B, H or 1, 1, m]
            want = sa.sparse_attention(*(x.double() for x in (one, k, v)), name, mask=keep & causal, **params).to(dtype)
            torch.testing.assert_close(cache.attend(one, lengths=lengths), want, **slack)
            for mask in (
                keep,
                keep.expand(B, H, n, 64),
                keep & causal,
                (keep & causal).expand(B, H, n, 64).contiguous(),
            ):
                torch.testing.assert_close(cache.attend(one, mask=mask), want, **slack)
        torch.testing.assert_close(
            cache.attend(one), sa.sparse_attention(one, k, v, name, causal=True, **params), **slack
        )


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FORMS = {
    "none": (),
    "slopes": ("slopes",),
    "window": ("window",),
    "window and sink": ("window", "sink"),
    "scale and bias": ("scale", "bias"),
    "bias of heads": ("heads",),
    "all": ("slopes", "window", "sink", "scale", "heads"),
}


def formed(names, m, H):
    """Arguments of the cache and of `attend`."""
    made = {
        "slopes": torch.tensor([0.5, 0.02, -0.01, 0.0]),
        "window": (m // 2 + 3, 5),
        "sink": torch.tensor([1.0, -2.0, 3.0, -50.0]),
        "scale": torch.tensor([0.1, 0.3, 0.02, 0.2]),
        "bias": torch.randn(m),
        "heads": torch.where(torch.rand(2, H, 1, m) < 0.3, -math.inf, torch.randn(2, H, 1, m) * 3),
    }
    own = {name: made[name] for name in names if name not in ("bias", "heads")}
    return own, next((made[name] for name in names if name in ("bias", "heads")), None)


def by_definition(q, k, v, alpha, own, bias, gamma=1.0):
    """The formula in float64, with the entmax package's mappings."""
    m = k.shape[2]
    added = torch.zeros(m, dtype=torch.float64) if bias is None else bias.double()
    if "slopes" in own:
        added = added + own["slopes"].double().view(-1, 1, 1) * distances(1, m)

    def mapped(x, keep):
        x = x.masked_fill(~keep, -math.inf)
        blind = (x == -math.inf).all(-1, keepdim=True)
        p = (entmax.sparsemax if alpha == 2.0 else entmax.entmax15)(x.masked_fill(blind, 0.0) / gamma, -1)
        return p.masked_fill(blind, 0.0)

    keep = visible(1, m, *own.get("window", ()))
    return formula(mapped, q, k, v, keep, own.get("scale"), added, own.get("sink"))[0]


@pytest.mark.parametrize("dtype, names, alpha", itertools.product(DTYPES, FORMS, (1.5, 2.0)))
def test_every_form_in_every_dtype(dtype, names, alpha):
    torch.manual_seed(len(names))
    mapping, gamma = ("sparsemax", 0.7) if alpha == 2.0 else ("entmax", 1.0)
    params = {"gamma": gamma} if alpha == 2.0 else {"alpha": alpha}
    for m, sharp, d in ((1, 1, 64), (45, 2, 40), (700, 3, 64), (1500, 0.1, 64)):
        q, k, v = tensors(m=m, d=d, dtype=dtype)
        one = (q[:, :, -1:] * sharp).contiguous()
        own, bias = formed(FORMS[names], m, 4)
        cache = sa.KeyCache(mapping, **own, **params)
        cache.append(k[:, :, : m // 2], v[:, :, : m // 2]).append(k[:, :, m // 2 :], v[:, :, m // 2 :])
        if native._load() is not None:
            assert cache.plan(one, bias=bias).path == "decode"
        want = by_definition(one, k, v, alpha, own, bias, gamma)
        slack = {"atol": 3e-5, "rtol": 0} if dtype == torch.float32 else {"atol": 3e-5, "rtol": torch.finfo(dtype).eps}
        for _ in range(2):  # the second step takes the shortest way
            torch.testing.assert_close(cache.attend(one, bias=bias), want.to(dtype), **slack)
        with sa.kernels.use("reference"):
            torch.testing.assert_close(cache.attend(one, bias=bias), want.to(dtype), **slack)


def test_forms_of_several_queries_and_of_padding():
    q, k, v = tensors(m=90)
    own, bias = formed(("slopes", "window", "sink", "heads"), 90, 4)
    cache = sa.KeyCache("entmax", alpha=1.5, **own).append(k, v)
    whole = sa.sparse_attention(q, k, v, "entmax", causal=True, bias=bias.expand(2, 4, 90, 90), alpha=1.5, **own)
    torch.testing.assert_close(cache.attend(q, bias=bias.expand(2, 4, 90, 90)), whole, atol=1e-4, rtol=0)
    torch.testing.assert_close(cache.attend(q[:, :, -1:], bias=bias), whole[:, :, -1:], atol=1e-4, rtol=0)
    lengths = torch.tensor([60, 20])  # all that the second entry's window shows is padding
    hidden = torch.arange(90) >= lengths.view(2, 1, 1, 1)
    want = by_definition(q[:, :, -1:], k, v, 1.5, own, bias.masked_fill(hidden, -math.inf))
    torch.testing.assert_close(
        cache.attend(q[:, :, -1:], lengths=lengths, bias=bias)[:, :3], want[:, :3].float(), atol=3e-5, rtol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_any_bound(dtype):
    """NaN, infinities and numbers that overflow, in keys, bias and sinks: as the composition says."""
    q, k, v = tensors(m=200, d=64, dtype=dtype)
    one = q[:, :, -1:]
    bad = k.clone()
    bad[0, 0, 3], bad[1, 1, 150] = math.nan, torch.finfo(dtype).max
    bias = torch.zeros(2, 4, 1, 200)
    bias[0, 2, 0, 5], bias[0, 3, 0, 7], bias[1, 0], bias[1, 1] = math.nan, math.inf, -math.inf, -3e38
    for keys, given, sink in (
        (bad, None, None),
        (k, bias, None),
        (k, None, torch.tensor([math.nan, 0.0, math.inf, 0.0])),
    ):
        cache = sa.KeyCache("sparsemax", sink=sink).append(keys, v)
        if native._load() is not None:
            assert cache.plan(one, bias=given).path == "decode"
        got = cache.attend(one, bias=given)
        with sa.kernels.use("reference"):
            want = cache.attend(one, bias=given)
        torch.testing.assert_close(got, want, equal_nan=True, atol=1e-2 if keys is bad else 1e-5, rtol=1e-2)


def test_what_forms_must_be():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="window=5 is not"):
        sa.KeyCache(window=5)
    for name in ("slopes", "sink", "scale"):
        with pytest.raises(ValueError, match=f"{name} has shape"):
            sa.KeyCache(**{name: torch.ones(3)}).append(k, v).attend(q[:, :, -1:])
    with pytest.raises(ValueError, match="bias of shape"):
        sa.KeyCache().append(k, v).attend(q[:, :, -1:], bias=torch.ones(3))
    assert (
        "mask" in sa.KeyCache(slopes=torch.ones(4)).append(k, v).plan(q[:, :, -1:], mask=torch.ones(70).bool()).reason
    )


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
