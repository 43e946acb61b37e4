"""Windows, ALiBi, biases and sinks of sa.sparse_attention at their limits; test_fuzz.py has them in every combination."""

import pytest
import torch
from attention_oracles import distances, formula, named, visible

import sparse_attention as sa

FUSED = ("sparsemax", "entmax", "fusedmax")
SLOPES = torch.tensor([0.5, 0.1, 0.02, 0.0], dtype=torch.float64)


def tensors(n=40, m=40, B=2, d=16, dtype=torch.float64, spread=3.0):
    make = torch.Generator().manual_seed(n + m)
    q, k, v = (torch.randn(s, generator=make, dtype=dtype) for s in ((B, 4, n, d), (B, 2, m, d), (B, 2, m, 12)))
    return [(q * spread).requires_grad_(), k.requires_grad_(), v.requires_grad_()]


BIAS = torch.randn(4, 40, 40, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_a_sink_of_minus_infinity_where_values_must_not_be_read():
    q, k, v = (x.detach() for x in tensors(n=64, m=64, dtype=torch.float32))
    sink = torch.tensor([-torch.inf, -torch.inf, 0.5, -0.3])
    plain = sa.sparse_attention(q, k, v, sink=sink, causal=True)
    compiled = torch.compile(lambda s: sa.sparse_attention(q, k, v, sink=s, causal=True), backend="aot_eager")
    torch.testing.assert_close(compiled(sink), plain, atol=1e-5, rtol=0)
    slopes = torch.func.grad(lambda s: sa.sparse_attention(q, k, v, sink=s, causal=True).square().sum())(sink)
    assert slopes.isfinite().all() and not slopes[:2].any() and slopes[2:].all()
    cache = sa.KeyCache("sparsemax", sink=sink).append(k, v)
    torch.testing.assert_close(cache.attend(q[:, :, -1:]), plain[:, :, -1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["entmax", "fusedmax"])
def test_biases_that_are_not_finite(name):
    q, k, v = (t.detach().requires_grad_() for t in tensors(dtype=torch.float32))
    bias = BIAS.float().clone()
    bias[:, :, ::3] = -torch.inf  # hides keys
    bias[0, 7] = -torch.inf  # all of a query's
    out = sa.sparse_attention(q, k, v, name, bias=bias)
    bias[1, 4, 10], bias[2, 5, 7] = torch.nan, torch.inf
    spoilt = sa.sparse_attention(q, k, v, name, bias=bias)
    assert spoilt[:, 1, 4].isnan().all() and spoilt[:, 2, 5].isnan().all()
    rest = torch.ones(4, 40, dtype=torch.bool)
    rest[1, 4] = rest[2, 5] = False
    assert torch.equal(spoilt[:, rest], out[:, rest])


def test_a_module_that_learns_an_alpha_for_each_head_is_fused():
    x = [t.detach().requires_grad_() for t in tensors(dtype=torch.float32)]
    module = sa.make("entmax", alpha="learned").spread(4, 1)
    assert sa.attention.plan(*x, module).path == "fused"
    (slope,) = torch.autograd.grad(sa.sparse_attention(*x, module).square().sum(), module.alpha_logit)
    with sa.kernels.use("reference"):
        (want,) = torch.autograd.grad(sa.sparse_attention(*x, module).square().sum(), module.alpha_logit)
    torch.testing.assert_close(slope, want, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("spread", [0.3, 4.0])
def test_long_windows_are_exact_also_where_integers_screen_the_keys(name, spread):
    n, left = 2600, 2200
    q, k, v = (t.detach()[:1, :1] for t in tensors(n, n, d=64, dtype=torch.float32, spread=spread))
    keep = visible(n, n, left, 0)
    assert sa.attention.plan(q, k, v, name, window=(left, 0)).path == "fused"
    out = sa.sparse_attention(q, k, v, name, window=(left, 0))
    p = getattr(sa, name)(q.double() @ k.double().mT / 8, mask=keep)
    torch.testing.assert_close(out.double(), p @ v.double(), atol=1e-4, rtol=0)


def test_a_query_far_from_float32_and_a_key_outside_the_window():
    q, k, v = (t.detach().clone() for t in tensors(dtype=torch.float32))
    q[0, 0, 20] *= 1e25  # its scores are finite, but not their squares
    k[0, 0, 30] = torch.nan
    v[0, 0, 30] = torch.inf
    given, keep = {"window": (5, 2)}, visible(40, 40, 5, 2)
    out = sa.sparse_attention(q, k, v, "sparsemax", **given)
    blind = keep.clone()
    blind[:, 30] = False
    want, _ = formula(named("sparsemax"), q, torch.nan_to_num(k), torch.nan_to_num(v, posinf=0.0), blind)
    sees = keep[:, 30]  # the heads 0 and 1 read the first group
    assert out[0, :2, sees].isnan().all() and out[0, 2:].isfinite().all()
    torch.testing.assert_close(out[:, :, ~sees].double(), want[:, :, ~sees], atol=3e-5, rtol=0)


@pytest.mark.parametrize("form", [{}, {"causal": True}, {"window": (3, 2)}, {"window": (3, 2), "causal": True}])
def test_packed_queries_see_the_packed_keys_of_their_sequence(form):
    """Sequences with more keys, more queries, no keys and no queries; the last query is at the last key of its sequence."""
    queries, keys = (50, 13, 7, 0), (30, 80, 0, 9)
    q = torch.randn(4, sum(queries), 16)
    k, v = torch.randn(2, sum(keys), 16), torch.randn(2, sum(keys), 12)
    ends = {f"cu_seqlens{x}": torch.tensor([0, *n]).cumsum(0) for x, n in (("", queries), ("_k", keys))}
    assert sa.attention.plan(q, k, v, **ends, **form).path == "fused"
    parts = zip(q.split(queries, 1), k.split(keys, 1), v.split(keys, 1))
    right = 0 if "causal" in form else form.get("window", (None, None))[1]
    seen = {"left": form.get("window", (None, None))[0], "right": right}
    want = [formula(named("sparsemax"), *one, visible(one[0].shape[1], one[1].shape[1], **seen))[0] for one in parts]
    out = sa.sparse_attention(q, k, v, **ends, **form)
    torch.testing.assert_close(out.double(), torch.cat(want, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "oscarmax"])
def test_scores_are_capped_before_anything_is_added(name):
    q, k, v = tensors()
    sink, added = SLOPES * 9, BIAS + SLOPES.view(4, 1, 1) * -distances(40, 40).abs()

    def capped(x, keep):
        return named(name)(torch.cat([x[..., :1], 2 * torch.tanh(x[..., 1:] / 2) + added], -1), keep)

    out = sa.sparse_attention(q, k, v, name, softcap=2.0, bias=BIAS, slopes=SLOPES, sink=sink)
    torch.testing.assert_close(out, formula(capped, q, k, v, sink=sink)[0], atol=1e-9, rtol=0)


def test_half_precision_keeps_far_positions_apart():
    q, k, v = (t.detach().bfloat16() for t in tensors(600, 600))
    added = SLOPES.view(4, 1, 1) * distances(600, 600).double()
    out = sa.sparse_attention(q, k, v, "sparsemax", causal=True, slopes=SLOPES)
    assert out.dtype == torch.bfloat16
    want, _ = formula(named("sparsemax"), q, k, v, visible(600, 600, None, 0), added=added)
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"cu_seqlens": torch.tensor([0, 50])}, r"cu_seqlens=\[0, 50\] must rise from 0 to 40"),
        ({"cu_seqlens": [0, 40]}, "must be an int32 or int64 tensor"),
        ({"sink": 1.0}, r"sink must be a tensor \(4,\), one number per head, not 1\.0"),
        ({"cu_seqlens_q": torch.tensor([0, 40])}, "'cu_seqlens_q'; this function calls it 'cu_seqlens'"),
        ({"cu_seqlens": torch.tensor([0, 40]), "cu_seqlens_k": torch.tensor([0, 41])}, r"cu_seqlens_k=\[0, 41\] must"),
        ({"cu_seqlens": torch.tensor([0, 40]), "cu_seqlens_k": torch.tensor([0, 9, 40])}, "1 sequences and .* 2"),
        ({"cu_seqlens": torch.tensor([0, 40]), "cu_seqlens_k": torch.tensor([0, 40]), "slopes": SLOPES}, "nested"),
        ({"softcap": 0.0}, "softcap=0.0 is out of range: softcap > 0"),
        ({"return_lse": True}, "no return_lse: .* pass all keys in one call"),
    ],
)
def test_what_does_not_fit_is_refused(given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        sa.sparse_attention(*tensors(), "sparsemax", **given)
    if "cu_seqlens" in given:
        with pytest.raises(ValueError, match="there are 20 queries and 40 keys"):
            sa.sparse_attention(*tensors(20, 40), "sparsemax", cu_seqlens=torch.tensor([0, 20]))
