"""A block of `sdpa.use` replaces torch's function in code of others, also recomputed or compiled, and names what it cannot reach."""

import contextlib
import warnings

import entmax
import pytest
import torch
import torch.nn.functional as F
from test_sdpa import MAPPINGS, made, reference
from torch import nn
from torch.nn.attention.bias import causal_upper_left
from torch.utils import checkpoint

import sparse_attention as sa
from sparse_attention.integrations import sdpa


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


CALLS = [*((name, False) for name in MAPPINGS), ("sparsemax", True)]
CALLS += [pytest.param(name, True, marks=pytest.mark.slow) for name in ("softmax", "entmax")]


@pytest.mark.parametrize(("name", "compiled"), CALLS)
def test_use_leaves_calls_that_name_their_mapping(name, compiled):
    q, k, v = made(6, 6)
    ours, f = MAPPINGS[name]

    def named(q, k, v):
        return sa.sparse_attention(q, k, v, causal=True, **ours) + sdpa.scaled_dot_product_attention(q, k, v, **ours)

    def both(q, k, v):
        return named(q, k, v) + 100 * F.scaled_dot_product_attention(q, k, v)

    named_, both_ = (torch.compile(x, backend="eager", fullgraph=True) if compiled else x for x in (named, both))
    expected = reference(f, q, k, v, is_causal=True) + reference(f, q, k, v)
    torch.testing.assert_close(named_(q, k, v), expected)
    with sdpa.use("sparsemax"):
        torch.testing.assert_close(both_(q, k, v), expected + 100 * reference(entmax.sparsemax, q, k, v))
    torch.testing.assert_close(both_(q, k, v), expected + 100 * reference(torch.softmax, q, k, v))
    with pytest.raises(RuntimeError, match="nothing in this block called"), sdpa.use("sparsemax"):
        named_(q, k, v)
    if name == "softmax" and not compiled:  # what torch's function takes, and the operator under it does not
        lists = ([y.transpose(0, 1) for y in x.detach()] for x in (q, k, v))
        nested = [torch.nested.as_nested_tensor(x, layout=torch.jagged).transpose(1, 2) for x in lists]
        with sdpa.use("sparsemax"):
            assert F.scaled_dot_product_attention(*nested).is_nested
            causal = sdpa.scaled_dot_product_attention(q, k, v, causal_upper_left(6, 6), **ours)
            parts = sdpa.scaled_dot_product_attention(*nested, **ours).unbind()
        torch.testing.assert_close(causal, reference(f, q, k, v, is_causal=True))
        torch.testing.assert_close(torch.stack(parts), reference(f, q, k, v))


CHECKPOINTS = {
    "reentrant": lambda f, x: checkpoint.checkpoint(f, x, use_reentrant=True),
    "not": lambda f, x: checkpoint.checkpoint(f, x, use_reentrant=False),
    "nested": lambda f, x: checkpoint.checkpoint(CHECKPOINTS["not"], f, x, use_reentrant=True),
    "sequential": lambda f, x: checkpoint.checkpoint_sequential([f, nn.Identity()], 2, x, use_reentrant=False),
    "compiled": lambda f, x: torch.compile(lambda x: CHECKPOINTS["not"](f, x), backend="aot_eager")(x),
}


@pytest.mark.parametrize("how", CHECKPOINTS)
@pytest.mark.parametrize("where", ["inside", "outer block", "no block", "another block"])
def test_a_checkpoint_recomputes_with_the_mapping_of_its_first_pass(how, where):
    def block(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).sin()

    def gradient(f, name):
        x = made(12, 12)[0].detach().requires_grad_()
        with sdpa.use("entmax"):
            F.scaled_dot_product_attention(x, x, x)
            with sdpa.use(name):
                out = f(block, 2 * x).sum()
                if where == "inside":
                    out.backward()
            if where == "outer block":
                out.backward()
        with sdpa.use("softmax") if where == "another block" else contextlib.nullcontext():
            F.scaled_dot_product_attention(x, x, x)
            if x.grad is None:
                torch.autograd.backward(out)
        return x.grad

    for name in ("sparsemax", "softmax"):
        expected = gradient(lambda f, x: f(x), name)
        assert torch.equal(gradient(CHECKPOINTS[how], name), expected)
    assert not torch.allclose(expected, gradient(CHECKPOINTS[how], "sparsemax"))


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_block_within_a_checkpoint(how):
    def block(x):
        with sdpa.use("sparsemax"):
            return F.scaled_dot_product_attention(x, x, x)

    xs = [made(12, 12)[0].detach().requires_grad_() for _ in range(2)]
    for f, x in zip((lambda x: CHECKPOINTS[how](block, x), block), xs):
        f(x).sin().sum().backward()
    assert torch.equal(xs[0].grad, xs[1].grad)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.scaled_dot_product_attention(x, x, x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(F.scaled_dot_product_attention(x, x, x), x, grad)[0]


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: F.scaled_dot_product_attention(x, x, x), lambda x: x.clone(), (x,))


RECOMPUTED = [Own.apply, lambda x: checkpoint.checkpoint(Own.apply, x, use_reentrant=False)]
RECOMPUTED += [torch.compile(lambda x: Own.apply(x), backend="eager")]
UNREACHED = [*((f, "OwnBackward recomputes") for f in RECOMPUTED)]
UNREACHED += [(branches, "cond runs functions in a graph of its own")]


@pytest.mark.parametrize(("f", "why"), UNREACHED, ids=["function", "checkpoint", "compiled", "cond"])
def test_attention_that_no_block_can_reach_is_refused(f, why):
    x = made(4, 4)[0].detach().requires_grad_()
    with pytest.raises(RuntimeError, match=why), sdpa.use("sparsemax"):
        f(x)
    if f is not branches:
        with sdpa.use("sparsemax"), torch.no_grad():  # without a backward pass there is nothing to refuse
            torch.testing.assert_close(f(x), sa.sparse_attention(x, x, x))


@pytest.mark.parametrize("module", [nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2, 8)], ids=type)
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


class _ByHand(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend, self.softmax = attend, nn.Softmax(-1)

    def forward(self, x):
        return self.attend(self, x)


class _ByHandAttn(_ByHand):
    pass


OWN = {
    "method": lambda self, x: (x @ x.mT).softmax(-1) @ x,
    "module": lambda self, x: self.softmax(x @ x.mT) @ x,
    "function": lambda self, x: F.softmax(x @ x.mT, -1, dtype=torch.float32) @ x,
    "dropout": lambda self, x: torch.bmm(F.dropout((x[0] @ x[0].mT).softmax(-1), 0.1), x[0]).view(x.shape),
    "einsum": lambda self, x: torch.einsum("bhij,bhjd->bhid", F.dropout((x @ x.mT).softmax(-1), 0.1), x),
}
NOT_OWN = {
    "no softmax": lambda self, x: x,
    "gate": lambda self, x: x * x.softmax(-1),  # only a name tells that this is attention
    "named": lambda self, x: sa.sparse_attention(x, x, x, "softmax", need_weights=True)[0],
}


@pytest.mark.parametrize("how", [*OWN, *NOT_OWN])
@pytest.mark.parametrize("kind", [_ByHand, _ByHandAttn])
def test_use_names_attention_that_stays_softmax(kind, how):
    class Fused(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    by_hand, x = kind({**OWN, **NOT_OWN}[how]), torch.randn(1, 2, 5, 4)
    named = how in OWN or (how == "gate" and kind is _ByHandAttn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with sdpa.use("sparsemax"):
            nn.Sequential(by_hand, Fused(), by_hand)(x)
    assert [f"but {kind.__name__} (2 calls) computed softmax" in str(w.message) for w in told] == [True] * named
    with pytest.raises(RuntimeError, match=f"{kind.__name__} .1 call" if named else "use sa"), sdpa.use("sparsemax"):
        by_hand(x)


def test_functional_attention_in_code_of_others_gets_advice_that_helps():
    class Pool(nn.Module):
        def forward(self, x):
            w, b = torch.eye(4), torch.zeros(4)
            return F.multi_head_attention_forward(
                x, x, x, 4, 2, w.repeat(3, 1), b.repeat(3), None, None, False, 0.0, w, b
            )[0]

    pool, x = Pool(), torch.randn(5, 1, 4)
    with pytest.raises(RuntimeError, match="Pool calls multi_head_attention_forward itself"), sdpa.use("sparsemax"):
        pool(x)
    with pytest.raises(ValueError, match=r"F\.multi_head_attention_forward itself, write sa\.nn"):
        sa.nn.replace(pool, "sparsemax")
    with pytest.raises(RuntimeError, match=r"use sa\.nn\.replace"), sdpa.use("sparsemax"):
        nn.MultiheadAttention(4, 2)(x, x, x)
