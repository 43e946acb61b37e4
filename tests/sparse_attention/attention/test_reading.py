"""One rule on every path: a weight of exactly 0 keeps its value out, NaN and infinity too; and shapes where there are no values."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sparse_attention as sa


def tensors(dtype=torch.float32):
    make = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=make).to(dtype) for s in ((2, 4, 33, 64), (2, 2, 40, 64), (2, 2, 40, 8))]


NAN_RULE = [("sparsemax", {}), ("entmax", {"alpha": 1.5}), ("entmax", {"alpha": 1.3}), ("softmax", {})]
NAN_RULE += [("fusedmax", {"lam": 0.1})]


def spoilt(q, k, v, name, params, told, kernels="auto", weights=False):
    """Output and gradients (of where the output is finite), weights asked for or not."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    with sa.kernels.use(kernels):
        out = sa.sparse_attention(q, k, v, name, need_weights=weights, **told, **params)
        out = out[0] if weights else out
        torch.where(out.isfinite(), out, 0.0).square().sum().backward()
    return out.detach(), q.grad, k.grad, v.grad


@pytest.mark.parametrize(("name", "params"), NAN_RULE, ids=str)
@pytest.mark.parametrize("told", ["lengths", "causal and lengths", "mask"])
def test_what_hidden_keys_hold_never_matters(name, params, told, short):
    q, k, v = tensors()
    keep = (torch.arange(40) < torch.tensor([[40], [30]]))[:, None, None].expand(2, 1, 33, 40)
    lengths = {"lengths": torch.tensor([40, 30]), "causal": "causal" in told}
    given = {"mask": keep.contiguous()} if told == "mask" else lengths
    dirty_k, dirty_v = k.clone(), v.clone()
    dirty_k[1, :, 33] = dirty_v[1, :, 31] = torch.nan
    dirty_v[1, 0, 35], dirty_v[1, 0, 36] = torch.inf, -torch.inf
    for kernels, weights in (("auto", False), ("auto", True), ("reference", False)):
        want = spoilt(q, k, v, name, params, given, kernels, weights)
        found = spoilt(q, dirty_k, dirty_v, name, params, given, kernels, weights)
        for a, b in zip(found, want):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)
        cache = sa.KeyCache(name, **params).append(dirty_k, dirty_v)
        for n in (1, 5):
            with sa.kernels.use(kernels):
                one = cache.attend(q[:, :, -n:], lengths=torch.tensor([40, 30]))
            want = sa.sparse_attention(q[:, :, -n:], k, v, name, causal=True, lengths=torch.tensor([40, 30]), **params)
            torch.testing.assert_close(one, want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "params"), NAN_RULE, ids=str)
def test_a_spoilt_value_reaches_the_queries_that_weight_it(name, params, short):
    """And they alone, in the output and in the gradients, whatever way is taken."""
    q, k, v = tensors()
    q = q * 3
    v[0, 0, 5, 2], v[0, 1, 6, 1], v[1, 1, 7, 1], v[1, 1, 8, 1] = torch.nan, torch.inf, torch.inf, -torch.inf
    _, p = sa.sparse_attention(q, k, v[..., :0], name, need_weights=True, **params)
    value = v.repeat_interleave(2, 1).unsqueeze(2)  # [B, H, 1, m, e]
    terms = torch.where(p.unsqueeze(-1) == 0, 0.0, p.unsqueeze(-1) * value)  # the rule, term by term
    first = None
    for kernels, weights in (("auto", False), ("auto", True), ("reference", False)):
        found = spoilt(q, k, v, name, params, {}, kernels, weights)
        torch.testing.assert_close(found[0], terms.sum(-2), atol=2e-5, rtol=1e-5, equal_nan=True)
        touched = ~found[0].isfinite().all(-1)
        assert name == "softmax" or 0 < touched.sum() < touched.numel() / 2
        assert not found[3].isnan().any() and (found[1].isfinite().all(-1) | touched).all()
        first = found if first is None else first
        for a, b in zip(found, first):
            torch.testing.assert_close(a.nan_to_num(7.0, 8.0, 9.0), b.nan_to_num(7.0, 8.0, 9.0), atol=2e-4, rtol=1e-4)
        with sa.kernels.use(kernels):
            step = sa.KeyCache(name, **params).append(k, v).attend(q[:, :, -1:])
        torch.testing.assert_close(step, terms.sum(-2)[:, :, -1:], atol=2e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("name", "params"), NAN_RULE, ids=str)
def test_what_only_the_gradients_meet(name, params, short):
    """NaN in the key of a hidden position, whose value is clean, and in the gradient of one query."""
    q, k, v = (x.requires_grad_() for x in tensors())
    given = {"lengths": torch.tensor([35, 40]), **params}
    _, p = sa.sparse_attention(q * 3, k, v, name, need_weights=True, **given)
    spoilt, g = k.detach().clone(), torch.ones(2, 4, 33, 8)
    spoilt[0, :, 35:], g[1, 2, 3, 1] = torch.nan, torch.nan
    out = sa.sparse_attention(q * 3, spoilt.requires_grad_(), v, name, **given)
    query, key, value = (~x.isfinite().all(-1) for x in torch.autograd.grad(out, (q, spoilt, v), g))
    assert query[1, 2, 3] and query.sum() == 1
    assert torch.equal(value[1, 1], p[1, 2, 3] > 0) and not (key[1, 1] & ~value[1, 1]).any()
    assert not (value[0].any() or key[0].any() or value[1, 0].any() or key[1, 0].any())


@pytest.mark.parametrize(("name", "params"), NAN_RULE, ids=str)
def test_shapes_on_meta_and_of_fake_tensors(name, params):
    def check(q, k, v, device):
        keys = {"lengths": torch.full((2,), 3, device=device)}
        mask = {"mask": torch.ones(33, 40, dtype=torch.bool, device=device)}
        for given in ({}, {"causal": True}, keys, mask):
            out = sa.sparse_attention(q, k, v, name, **given, **params)
            assert out.shape == (2, 4, 33, 8) and out.dtype == q.dtype and out.device.type == device
            out, p = sa.sparse_attention(q, k, v, name, need_weights=True, **given, **params)
            assert (p.shape, p.device.type) == ((2, 4, 33, 40), device)
            assert sa.attention.plan(q, k, v, name, **given, **params).path
            (q.grad,) = torch.autograd.grad(out.sum(), q)
            assert q.grad.shape == q.shape

    for dtype in (torch.float32, torch.bfloat16):
        check(*(x.detach().to("meta").requires_grad_() for x in tensors(dtype)), "meta")
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            check(*(mode.from_tensor(x.detach()).requires_grad_() for x in tensors(dtype)), "cpu")
