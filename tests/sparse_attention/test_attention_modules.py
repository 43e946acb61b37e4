from __future__ import annotations

import pytest
import torch

import sparse_attention as sa
from sparse_attention import attention


def modules():
    return [
        attention.DotAttention("sparsemax"),
        attention.DotAttention("sparsemax", scaled=True),
        attention.GeneralAttention(6, 6, "sparsemax"),
        attention.AdditiveAttention(6, 6, 5, sa.make("sparsemax")),
    ]


@pytest.mark.parametrize("i", range(4))
def test_context_is_the_weighted_sum_and_padding_is_invisible(i):
    attend = modules()[i]
    query, keys, values = torch.randn(3, 4, 6), torch.randn(3, 5, 6), torch.randn(3, 5, 7)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    context, weights = attend(query, keys, values, mask=mask)
    assert context.shape == (3, 4, 7) and weights.shape == (3, 4, 5)
    assert torch.allclose(context, torch.einsum("bts,bsd->btd", weights, values), atol=1e-6)
    assert (context[2] == 0).all() and (weights[1, :, 3:] == 0).all()
    short, _ = attend(query[1:2], keys[1:2, :3], values[1:2, :3])
    assert torch.allclose(context[1:2], short, atol=1e-6)
    step, w = attend(query[:, 0], keys, values, mask=mask)
    assert torch.allclose(step, context[:, 0], atol=1e-6) and w.shape == (3, 5)


def test_scores_are_the_printed_formulas():
    q, k = torch.randn(1, 1, 3), torch.randn(1, 1, 3)
    assert torch.allclose(attention.DotAttention().scores(q, k), (q * k).sum().view(1, 1, 1))
    g = attention.GeneralAttention(3, 3)
    assert torch.allclose(g.scores(q, k).squeeze(), k[0, 0] @ g.project.weight @ q[0, 0])
    a = attention.AdditiveAttention(3, 3, 4)
    by_hand = a.to_score.weight[0] @ torch.tanh(
        a.from_key.weight @ k[0, 0] + a.from_key.bias + a.from_query.weight @ q[0, 0]
    )
    assert torch.allclose(a.scores(q, k).squeeze(), by_hand, atol=1e-6)


def test_multihead_with_softmax_is_torch_multihead_attention():
    ours, theirs = attention.MultiHeadAttention(8, 2), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x, y = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    context, weights = ours(x, y, mask=mask)
    expected, w = theirs(x, y, y, key_padding_mask=~mask, average_attn_weights=False)
    assert torch.allclose(context, expected, atol=1e-6) and torch.allclose(weights, w, atol=1e-6)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    assert torch.allclose(ours(x, mask=causal)[0], theirs(x, x, x, attn_mask=~causal)[0], atol=1e-6)


def test_one_alpha_per_head():
    alpha = torch.nn.Parameter(torch.tensor([[1.1], [2.0]]))
    m = attention.MultiHeadAttention(8, 2, sa.make("entmax", alpha=alpha))
    _, weights = m(torch.randn(3, 6, 8) * 4)
    assert (weights[:, 1] == 0).sum() > (weights[:, 0] == 0).sum()
    weights.square().sum().backward()
    assert (alpha.grad != 0).all()


def test_constrained_attention_takes_bounds():
    attend = attention.DotAttention("constrained_sparsemax")
    _, w = attend(torch.randn(2, 6), torch.randn(2, 5, 6), bounds=torch.full((2, 5), 0.25))
    assert (w <= 0.25).all() and torch.allclose(w.sum(-1), torch.ones(2))


def test_masks_that_cannot_be_meant():
    with pytest.raises(ValueError, match=r"fits neither \[B, S\]"):
        attention.DotAttention()(torch.randn(2, 3, 4), torch.randn(2, 5, 4), mask=torch.ones(3, 5, dtype=torch.bool))
    m = attention.MultiHeadAttention(4, 2)
    with pytest.raises(ValueError, match="may mean"):
        m(torch.randn(3, 3, 4), mask=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="not a multiple"):
        attention.MultiHeadAttention(5, 2)
