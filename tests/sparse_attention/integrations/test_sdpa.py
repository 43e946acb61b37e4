from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparse_attention as sa
from sparse_attention.integrations import sdpa

MASKS = (None, "bool", "hides", "adds", "heads", "causal")


def made(n, m, groups=4, e=8, lead=(2,), dtype=torch.float64):
    torch.manual_seed(n + m)
    shapes = ((*lead, 4, n, 8), (*lead, groups, m, 8), (*lead, groups, m, e))
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def masked(kind, n, m):
    keep = torch.rand(n, m) < 0.6
    keep[:, 0] = True  # torch gives NaN or zeros, by its path, for a query without keys
    if kind == "hides":
        return {"attn_mask": torch.zeros(n, m, dtype=torch.float64).masked_fill(~keep, -torch.inf)}
    if kind in ("adds", "heads"):
        return {"attn_mask": torch.randn((4, n, m) if kind == "heads" else (n, m), dtype=torch.float64)}
    return {"bool": {"attn_mask": keep}, "causal": {"is_causal": True}, None: {}}[kind]


@pytest.mark.parametrize("kind, sizes, scale", itertools.product(MASKS, ((5, 5), (5, 9), (9, 5), (1, 4)), (None, 0.3)))
def test_softmax_is_torchs_function(kind, sizes, scale):
    given = {**masked(kind, *sizes), "scale": scale}
    ours, theirs = made(*sizes, e=6), made(*sizes, e=6)
    out, expected = (
        sdpa.scaled_dot_product_attention(*ours, mapping="softmax", **given),
        F.scaled_dot_product_attention(*theirs, **given),
    )
    torch.testing.assert_close(out, expected)
    for a, b in zip(torch.autograd.grad(out.cos().sum(), ours), torch.autograd.grad(expected.cos().sum(), theirs)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind, sizes", itertools.product(MASKS, ((5, 5), (5, 9), (9, 5))))
def test_a_mapping_sees_the_scores_and_the_mask(kind, sizes):
    q, k, v = made(*sizes)
    given = masked(kind, *sizes)
    scores, keep = q @ k.transpose(-1, -2) * 8**-0.5, None
    if kind == "causal":
        keep = torch.ones(*sizes, dtype=torch.bool).tril()
    elif kind == "hides":
        keep = given["attn_mask"] == 0
    elif kind == "bool":
        keep = given["attn_mask"]
    elif kind is not None:
        scores = scores + given["attn_mask"]
    expected = sa.entmax(scores, alpha=1.5, mask=keep) @ v
    torch.testing.assert_close(
        sdpa.scaled_dot_product_attention(q, k, v, mapping="entmax", alpha=1.5, **given), expected
    )


def test_grouped_heads_need_the_flag_and_a_learned_bias_its_gradient():
    q, k, v = made(6, 6, groups=2)
    with pytest.raises(ValueError, match="query has 4 heads and key 2; for grouped queries pass enable_gqa=True"):
        sdpa.scaled_dot_product_attention(q, k, v)
    out = sdpa.scaled_dot_product_attention(q, k, v, mapping="softmax", enable_gqa=True)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    bias = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(sdpa.scaled_dot_product_attention(*made(6, 6), bias).square().sum(), bias)
    assert slope.abs().sum() > 0
    with pytest.raises(RuntimeError, match="is_causal=True together with attn_mask"):
        sdpa.scaled_dot_product_attention(*made(6, 6), bias, is_causal=True)


def test_dropout_is_applied_as_in_torch():
    q, k, v = made(64, 64)
    out = sdpa.scaled_dot_product_attention(q, k, torch.ones_like(v), dropout_p=0.5, mapping="softmax")
    assert 0.9 < out.mean() < 1.1 and out.std() > 0.05


def test_use_replaces_the_function_in_code_of_others():
    early = F.scaled_dot_product_attention  # also a name bound before the block

    class Theirs(nn.Module):
        def forward(self, q, k, v):
            return early(q, k, v, is_causal=True) + F.scaled_dot_product_attention(query=q, key=k, value=v)

    q, k, v = made(6, 6, dtype=torch.float32)
    before = Theirs()(q, k, v)
    with sdpa.use("entmax", alpha=1.5):
        inside = Theirs()(q, k, v)
    expected = sa.sparse_attention(q, k, v, "entmax", causal=True) + sa.sparse_attention(q, k, v, "entmax")
    torch.testing.assert_close(inside, expected)
    assert torch.equal(Theirs()(q, k, v), before) and not torch.allclose(inside, before)
    compiled = torch.compile(Theirs(), backend="eager", fullgraph=True)
    with sdpa.use("entmax", alpha=1.5):
        torch.testing.assert_close(compiled(q, k, v), expected)


@pytest.mark.parametrize(
    "module", [nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2, 8)], ids=["mha", "layer"]
)
@pytest.mark.parametrize("training", [True, False])
def test_use_refuses_what_it_cannot_replace(module, training):
    x = torch.randn(3, 5, 8)
    given = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    with pytest.raises(RuntimeError, match=r"use sa.nn.replace\(model, ...\)"), torch.no_grad(), sdpa.use("sparsemax"):
        module.train(training)(*given)


def test_use_of_nothing_is_an_error():
    with pytest.raises(RuntimeError, match="nothing in this block called"), sdpa.use("sparsemax"):
        nn.Linear(2, 2)(torch.ones(2))
    with pytest.raises(sa.UnknownMappingError), sdpa.use("sparsmax"):
        pass
    with pytest.raises(KeyError), sdpa.use("sparsemax"):  # an error in the block is not hidden by ours
        {}["missing"]
