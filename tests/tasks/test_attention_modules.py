import pytest
import torch

import sparse_attention as sa
from tasks.layers import attention

MODULES = [
    lambda: attention.Attention(attention.DotScores(), "sparsemax"),
    lambda: attention.Attention(attention.GeneralScores(6, 6), "sparsemax"),
    lambda: attention.Attention(attention.AdditiveScores(6, 6, 5), sa.make("sparsemax")),
]


@pytest.mark.parametrize("make", MODULES)
def test_context_is_the_weighted_sum_and_padding_is_invisible(make):
    attend = make()
    query, keys = torch.randn(3, 6), torch.randn(3, 5, 6)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    context, weights = attend(query, keys, mask)
    assert torch.allclose(context, torch.einsum("bs,bsd->bd", weights, keys), atol=1e-6)
    assert (context[2] == 0).all() and (weights[1, 3:] == 0).all()
    short, _ = attend(query[1:2], keys[1:2, :3])
    assert torch.allclose(context[1:2], short, atol=1e-6)


@pytest.mark.parametrize("same", ["query", "key and value", "key"])
def test_multihead_attention_with_softmax_is_torchs(same):
    theirs = torch.nn.MultiheadAttention(6, 3, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)
    ours = attention.MultiheadAttention(6, 3)
    ours.load_state_dict(theirs.state_dict())
    query, key, value = torch.randn(2, 4, 6), torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    if same == "query":
        key = value = query
    elif same == "key and value":
        value = key
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    expected, weights = theirs(query, key, value, key_padding_mask=~mask, average_attn_weights=False)
    both = ours.project(key, "kv") if key is value else ours.project(key, "k") + ours.project(value, "v")
    queries, keys, values = ours.project(query, "q") + both
    found, own = ours.attend(queries, keys, values, mask=mask[:, None, None], need_weights=True)
    assert torch.allclose(found, expected, atol=1e-6) and torch.allclose(own, weights, atol=1e-6)


SEEN = {"all": {}, "lengths": {"lengths": torch.tensor([70, 41])}, "causal": {"causal": True}}


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("keys", [6, 70], ids=["short rows", "long rows"])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "fusedmax", "entmax", "oscarmax"])
def test_without_weights_a_faster_path_gives_the_same(name, keys, seen):
    """Output and gradients, in training and without gradients; a row whose support rounding decides may have another gradient."""
    torch.manual_seed(0)
    mapping = sa.make(name, **({"alpha": "learned"} if name == "entmax" else {}))
    attend, given = attention.MultiheadAttention(8, 2, mapping=mapping), dict(SEEN[seen])
    if "lengths" in given:
        given["lengths"] = given["lengths"].clamp(max=keys)
    x = [(torch.randn(2, 2, n, 4) * 2).requires_grad_() for n in (6, keys, keys)]
    want, weights = attend.attend(*x, need_weights=True, **given)
    assert weights.shape == (2, 2, 6, keys)
    with torch.no_grad():
        torch.testing.assert_close(attend.attend(*x, **given)[0], want, atol=2e-5, rtol=1e-4)
    out, leaves, g = attend.attend(*x, **given)[0], [*x, *attend.mapping.parameters()], torch.randn_like(want)
    torch.testing.assert_close(out, want, atol=2e-5, rtol=1e-4)
    for a, b in zip(torch.autograd.grad(out, leaves, g), torch.autograd.grad(want, leaves, g)):
        assert ((a - b).abs() > 1e-4 + 1e-3 * b.abs()).float().mean() < 0.03
