"""Dropout in the fused kernel: which weights it drops, and that forward and gradients are those of the formula with these."""

import entmax
import pytest
import torch
from attention_oracles import bisected, formula
from scipy.stats import binomtest

import sparse_attention as sa
from sparse_attention.integrations import sdpa
from sparse_attention.kernels.native import attention as native

H, N, M, D = 3, 60, 130, 16


def tensors(grad=True):
    make = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, h, n, d, generator=make) for h, n, d in ((H, N, D), (1, M, D), (1, M, 7)))
    return [x.requires_grad_(grad) for x in (q * torch.logspace(-1, 0.5, N)[:, None], k, v)]


def dropped(share, seed, **given):
    """The dropped weights [H, n, m]: the output at the values I."""
    q, k, _ = tensors(grad=False)
    torch.manual_seed(seed)
    assert sa.attention.plan(q, k, torch.eye(M)[None, None], dropout=share, **given).path == "fused"
    return sa.sparse_attention(q, k, torch.eye(M)[None, None], dropout=share, **given)[0]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.05])
def test_every_weight_is_kept_and_scaled_or_zero_at_the_given_rate(share, alpha):
    q, k, _ = (x.double() for x in tensors(grad=False))
    p = entmax.entmax_bisect(q @ k.mT * D**-0.5, alpha, n_iter=60)[0]
    found = dropped(share, 3, mapping="entmax", alpha=alpha).double()
    kept, sure = found != 0, p > 1e-4
    torch.testing.assert_close(found, torch.where(kept, p / (1 - share), 0.0), atol=3e-5 / (1 - share), rtol=0)
    assert binomtest(int(kept[sure].sum()), int(sure.sum()), 1 - share).pvalue > 1e-3


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_choices_are_independent(share):
    one, other, last = (native.dropout_factors((4, 300, 300), share, seed) > 0 for seed in (7, 8, 7 + 2**40))
    assert torch.equal(one, native.dropout_factors((4, 300, 300), share, 7) > 0)
    same = share**2 + (1 - share) ** 2
    pairs = {
        "seeds": (one, other),
        "high bits of seeds": (one, last),
        "heads": (one[1:], one[:-1]),
        "queries": (one[:, 1:], one[:, :-1]),
        "keys": (one[..., 1:], one[..., :-1]),
        "keys 32 apart": (one[..., 32:], one[..., :-32]),
        "transposed": (one, one.mT),
        "diagonals": (one[:, 1:, 1:], one[:, :-1, :-1]),
    }
    for name, (a, b) in pairs.items():
        if name == "transposed":
            above = torch.ones(300, 300, dtype=torch.bool).triu(1)
            a, b = a[:, above], b[:, above]
        assert binomtest(int((a == b).sum()), a.numel(), same).pvalue > 1e-4, name
    for dims in ((0, 1), (0, 2), (1, 2)):  # the rates of keys, queries and heads
        rates = one.double().mean(dims)
        spread = (share * (1 - share) * rates.numel() / one.numel()) ** 0.5
        assert ((rates - (1 - share)).abs() < 5 * spread).all()


def test_torch_s_generator_decides():
    first = dropped(0.4, 5)
    again = sa.sparse_attention(*(x.detach() for x in tensors()[:2]), torch.eye(M)[None, None], dropout=0.4)[0]
    assert torch.equal(first, dropped(0.4, 5)) and not torch.equal(first > 0, again > 0)
    q, k, v = tensors(grad=False)
    torch.manual_seed(5)
    assert torch.equal(sa.sparse_attention(q, k, v, dropout=0.0), sa.sparse_attention(q, k, v))
    untouched = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert torch.initial_seed() == 5 and torch.equal(torch.rand(3), untouched)
    with pytest.raises(ValueError, match="0 <= dropout < 1"):
        sa.sparse_attention(q, k, v, dropout=1.0)
    k, v = k.expand(1, H, M, D), v.expand(1, H, M, 7)
    assert not sdpa.scaled_dot_product_attention(q, k, v, dropout_p=1.0, mapping="sparsemax").any()


def test_second_derivatives_have_the_same_mask(short):
    x = tensors()
    torch.manual_seed(2)
    factors = (sa.sparse_attention(x[0], x[1], torch.eye(M)[None, None], dropout=0.35) > 0).double() / 0.65
    twice = []
    for inputs, attend in (
        (x, lambda *t: sa.sparse_attention(*t, dropout=0.35)),
        ([t.detach().double().requires_grad_() for t in x], lambda *t: formula(bisected(2.0), *t, factors=factors)[0]),
    ):
        torch.manual_seed(2)
        first = torch.autograd.grad(attend(*inputs).square().sum(), inputs, create_graph=True)
        twice.append((*first, *torch.autograd.grad(sum(t.square().sum() for t in first), inputs)))
    for a, b in zip(*twice):
        torch.testing.assert_close(a.double(), b, atol=2e-3 * float(b.abs().max()), rtol=0)


def test_a_dropped_weight_ignores_its_value():
    q, k, v = tensors(grad=False)
    weights = dropped(0.5, 4)
    key = int(((weights > 0).any(0).sum(0) > 5).nonzero()[0])
    v[..., key, :] = torch.nan
    torch.manual_seed(4)
    out = sa.sparse_attention(q, k, v, dropout=0.5)[0]
    assert torch.equal(out.isnan().any(-1), weights[..., key] > 0) and 0 < out.isnan().float().mean() < 1
