import random

import pytest
import torch

import sparse_attention as sa
from tasks.layers import attention

ROWS = [n for n in sa.names("simplex") if sa.spec(n).over == "row" and sa.spec(n).domain == "real"]
ROWS = [n for n in ROWS if not sa.spec(n).inputs and not sa.spec(n).stateful] + ["softmax", "fusedmax", "entmax"] * 3


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
    queries, keys, values = ours.project(query, "q") + (
        ours.project(key, "kv") if key is value else ours.project(key, "k") + ours.project(value, "v")
    )
    found, own = ours.attend(queries, keys, values, mask=mask[:, None, None], need_weights=True)
    assert torch.allclose(found, expected, atol=1e-6) and torch.allclose(own, weights, atol=1e-6)


def test_multihead_attention_starts_as_torchs():
    with pytest.raises(ValueError, match="embed_dim=6 is not a multiple of num_heads=4"):
        attention.MultiheadAttention(6, 4)
    found = []
    for kind in (attention.MultiheadAttention, torch.nn.MultiheadAttention):
        torch.manual_seed(3)
        found.append(kind(64, 4).state_dict())
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        theirs = found[1][name]
        assert value.shape == theirs.shape, name
        assert value.std().item() == pytest.approx(theirs.std().item(), rel=0.05), name


def a_random_call(seed: int):
    """A module, projections [B, H, ., d] and which keys are seen."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    name, heads, size = draw.choice(ROWS), draw.choice([1, 2, 4]), draw.choice([4, 16])
    learned = name == "entmax" and draw.random() < 0.5
    mapping = sa.make(name, **({"alpha": "learned"} if learned else {}))
    B, T, S = draw.choice([1, 3]), draw.choice([1, 6, 20, 70]), draw.choice([1, 6, 20, 63, 64, 97, 130])
    seen = draw.choice(["all", "lengths", "causal", "mask"])
    S = max(S, T) if seen == "causal" else S
    given = {"lengths": torch.randint(1, S + 1, (B,)), "mask": torch.rand(B, 1, T, S) > 0.3, "causal": True}
    spread = draw.choice([0.3, 3.0])
    q, k, v = (torch.randn(B, heads, n, size) for n in (T, S, S))
    attend = attention.MultiheadAttention(heads * size, heads, mapping=mapping)
    return attend, (q * spread, k, v), {seen: given[seen]} if seen in given else {}


SEEDS = [range(60), *(pytest.param(range(i, i + 200), marks=pytest.mark.slow) for i in range(100, 5100, 200))]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_without_weights_a_faster_path_gives_the_same(seeds):
    """Output and gradients, in training and without gradients; a row whose support rounding decides may have another gradient."""
    paths = set()
    for seed in seeds:
        attend, x, seen = a_random_call(seed)
        paths.add(sa.fused.plan(*x, attend.mapping, **seen).path)
        want, weights = attend.attend(*x, need_weights=True, **seen)
        assert weights.shape == (*x[0].shape[:3], x[1].shape[2])
        with torch.no_grad():
            torch.testing.assert_close(attend.attend(*x, **seen)[0], want, atol=2e-5, rtol=1e-4, msg=f"seed {seed}")
        x = [t.requires_grad_() for t in x]
        g, found = torch.randn_like(want), []
        for weigh in (True, False):
            out, _ = attend.attend(*x, need_weights=weigh, **seen)
            torch.testing.assert_close(out, want, atol=2e-5, rtol=1e-4, msg=f"seed {seed}")
            found.append(torch.autograd.grad(out, [*x, *attend.mapping.parameters()], g))
        paths.add(sa.fused.plan(*x, attend.mapping, **seen).path)
        for a, b in zip(*found):
            far = (a - b).abs() > 1e-4 + 1e-3 * b.abs()
            assert far.float().mean() < 0.03, f"seed {seed}"
    assert paths == {"fused", "composition", "sdpa"}
