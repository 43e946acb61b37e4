"""Attention of jagged tensors agrees with the loop over single sequences, in values and gradients."""

import pytest
import torch

import sparse_attention as sa
from sparse_attention.attention import nested

LENGTHS, OTHERS = (40, 0, 7, 35, 40, 1, 100), (30, 4, 0, 35, 30, 2, 60)
MAPPINGS = {name: {} for name in ("sparsemax", "softmax", "oscarmax", "sigmoid")}
MAPPINGS |= {"entmax": {"alpha": torch.tensor([1.3, 1.5, 1.7, 2.0])}, "fusedmax": {"lam": 0.1}}
HEADS = torch.tensor([0.1, 0.2, 0.3, 0.4])
FORMS = {"plain": {}, "causal": {"causal": True}, "window": {"window": (3, 3)}}
FORMS |= {name: {name: HEADS} for name in ("slopes", "sink", "scale")}
FORMS |= {"causal slopes": {"slopes": HEADS, "causal": True}}
pytestmark = pytest.mark.filterwarnings("ignore")


def jagged(parts):
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MAPPINGS)
def test_it_is_the_loop_over_sequences(name, form):
    torch.manual_seed(0)
    dtype = torch.float64 if form in ("window", "sink") else torch.float32
    given = {**FORMS[form], **MAPPINGS[name]}
    for others, groups in ((LENGTHS, 4), (LENGTHS, 2), (OTHERS, 2)):
        shapes = (LENGTHS, 4, 8), (others, groups, 8), (others, groups, 6)
        q, k, v = ([torch.randn(n, h, d, dtype=dtype, requires_grad=True) for n in ns] for ns, h, d in shapes)
        out = sa.sparse_attention(jagged(q), jagged(k), jagged(v), name, **given)
        alone = [sa.sparse_attention(*(x.transpose(0, 1) for x in one), name, **given) for one in zip(q, k, v)]
        torch.testing.assert_close(out.unbind(), tuple(alone), atol=1e-5, rtol=1e-4)
        leaves = [*q, *k, *v]
        slopes = torch.autograd.grad(out.values().cos().sum(), leaves)
        expected = torch.autograd.grad(sum(x.cos().sum() for x in alone), leaves, materialize_grads=True)
        torch.testing.assert_close(slopes, expected, atol=3e-5, rtol=1e-4)


def test_one_fused_call_of_packed_sequences_or_one_for_each_length(monkeypatch):
    calls = []
    monkeypatch.setattr(
        nested, "checked", lambda *x, f=nested.checked, **given: calls.append(x[0].shape) or f(*x, **given)
    )
    x = torch.nested.nested_tensor([torch.randn(n, 8) for n in (40, 60, 40)], layout=torch.jagged)
    out = sa.sparse_attention(x, x, x)
    assert calls == [(1, 140, 8)] and (out + x).shape == x.shape
    calls.clear()
    sa.sparse_attention(x, x, x, "oscarmax")
    assert calls[1:] == [(2, 1, 40, 8), (1, 1, 60, 8)]
    calls.clear()
    sa.sparse_attention(x, x, x, slopes=torch.ones(1), causal=True)  # positions of the pack would cost precision
    assert calls == [(2, 1, 40, 8), (1, 1, 60, 8)]
    none = torch.nested.nested_tensor([torch.randn(0, 8)] * 2, layout=torch.jagged)
    assert sa.sparse_attention(none, none, none).shape == none.shape


REFUSED = {
    "mask": (torch.ones(1, 1, dtype=torch.bool), "mask cannot be used with nested q, k and v: hide keys with causal"),
    "lengths": (torch.tensor([1, 1]), "lengths cannot be used with nested"),
    "cu_seqlens": (torch.tensor([0, 5]), "cu_seqlens cannot be used with nested"),
    "bias": (torch.ones(1), "bias cannot be used with nested q, k and v: use slopes"),
    "need_weights": (True, "need_weights cannot be used with nested .* one call for each sequence"),
    "scale": (torch.ones(3), r"scale has shape \(3,\); nested tensors take one number per head, \(1,\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused(name):
    x = torch.nested.nested_tensor([torch.randn(n, 8) for n in (3, 2)], layout=torch.jagged)
    value, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        sa.sparse_attention(x, x, x, **{name: value})


def test_what_does_not_match_is_refused():
    lengths = (3, 2), (2, 3), (1,)
    x, y, z = (jagged([torch.randn(n, 2, 8) for n in ns]) for ns in lengths)
    strided = torch.nested.nested_tensor([torch.randn(2, 3, 8)] * 2)
    for tensors, error, says in (
        ((x, x, y), ValueError, "the sequences of v must have the same lengths as those of k"),
        ((x, z, z), ValueError, "q has 2 sequences and k 1"),
        ((x, torch.randn(2, 2, 3, 8), x), TypeError, "k is not jagged; q, k and v must all be nested"),
        ((x, x, strided), TypeError, r"v is not jagged; .*layout=torch\.jagged"),
        ((x.transpose(1, 2), x, x), ValueError, r"nested q .* must be \[B, H, \*, d\] or .*transpose\(1, 2\)"),
    ):
        with pytest.raises(error, match=says):
            sa.sparse_attention(*tensors)
