"""A value in the place of another is refused with a sentence that names what was probably meant; dim at construction."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import sparse_attention as sa

X = torch.randn(3, 4)
MASK = X < 9
WRONG = [
    (lambda: sa.sparsemax([1.0, 2.0]), TypeError, r"scores is a list, not a tensor; convert it with torch\.as_tensor"),
    (lambda: sa.sparsemax(torch.arange(3)), TypeError, r"scores have dtype torch.int64.*scores.float"),
    (lambda: sa.softmax(X, mask=MASK.to("meta")), ValueError, r"the mask is on meta .* pass mask.to\('cpu'\)"),
    (lambda: sa.fusedmax(X, mask=MASK[0, :2]), ValueError, r"mask of shape \(2,\) does not broadcast"),
    (lambda: sa.entmax(X, alpha=torch.full((5,), 1.5)), ValueError, r"alpha of shape \(5,\) fits neither"),
    (lambda: sa.constrained_softmax(X, torch.ones(7)), ValueError, r"bounds of shape \(7,\)"),
    (lambda: sa.pnormmax(X, p=torch.tensor(1.5), solver="pgd"), ValueError, "learn them"),
    (lambda: sa.fusedmax(X, 1.0), TypeError, r"dim=1.0 is not .* hyperparameters by name"),  # 1.0 == 1 == X.ndim - 1
    (lambda: sa.hardmax(X, True), TypeError, "dim=True is not a whole number"),
    (lambda: sa.sparsemax(X, MASK), TypeError, r"dim of shape \(3, 4\) .* give masks .* by name"),
    (lambda: sa.sparsemax(X, -1, MASK), ValueError, r"gamma is a boolean tensor .* did you mean mask=...\?"),
    (lambda: sa.sparsemax(X, mask=0.1), TypeError, "mask=0.1 is not a mask; it must be a boolean tensor"),
    (lambda: sa.sparsemax(X, mask=MASK.float()), TypeError, "must be boolean.*0 and -inf to add by mask == 0"),
    (lambda: sa.sparsemax(X, mask=MASK.long()), TypeError, "must be boolean.*lengths by torch.arange"),
    (lambda: sa.sparse_attention(X, X, X, MASK), TypeError, r"mapping is a tensor of shape \(3, 4\); if it is"),
    (lambda: sa.sparsmax, AttributeError, r"did you mean 'sparsemax'\?"),
    (lambda: sa.Sparsemax(1), TypeError, r"did you mean Sparsemax\(dim=1\) or Sparsemax\(gamma=1.0\)\?"),
    (lambda: sa.Sparsemax(dim=0.5), TypeError, "dim=0.5 is not a whole number"),
    (lambda: sa.Tvmax(dim=1), ValueError, "tvmax has no parameter 'dim'"),
    (lambda: sa.losses.sparsemax_loss(X, torch.tensor([0, 1, 2]), 0.5), TypeError, "dim=0.5|'float'"),
    (lambda: sa.losses.fenchel_young(X, torch.arange(3), sa.Sparsemax(dim=0)), ValueError, "give the loss dim=0"),
]


@pytest.mark.parametrize("call, error, message", WRONG)
def test_wrong_places(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_looks_alike_and_is_right():
    assert sa.Sparsemax(1.0).gamma == 1.0 and sa.Entmax(2).alpha == 2.0 and sa.Fusedmax(1).lam == 1.0
    assert sa.Sparsemax(gamma=1).gamma == 1.0 and sa.SparsegenLin(lam=-1).lam == -1.0
    assert torch.equal(sa.sparsemax(X, np.int64(0)), sa.sparsemax(X, 0))


@pytest.mark.parametrize(
    "kind",
    [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, np.longdouble, np.array, torch.tensor],
    ids=lambda k: k.__name__,
)
def test_numbers_of_numpy_and_of_torch(kind):
    two, x, q = kind(2), torch.rand(2, 9), torch.randn(1, 2, 12, 8)
    for name in sa.names():
        for p in sa.spec(name).params if sa.spec(name).over == "row" and not sa.spec(name).inputs else ():
            if p._inside(2) and not p.choices:
                f = sa.spec(name).function
                torch.testing.assert_close(f(x, **{p.name: two}), f(x, **{p.name: 2.0}))
                torch.testing.assert_close(sa.make(name, **{p.name: two})(x), f(x, **{p.name: 2.0}))
    for given, same in (
        ({"window": (two if isinstance(two, np.integer) else np.array(2), 0)}, {"window": (2, 0)}),
        ({"scale": two}, {"scale": 2.0}),
        ({"gamma": two}, {"gamma": 2.0}),
    ):
        torch.testing.assert_close(sa.sparse_attention(q, q, q, **given), sa.sparse_attention(q, q, q, **same))
    assert sa.TopK(k=two).k == 2 and type(sa.TopK(k=two).k) is int
    torch.testing.assert_close(sa.constrained_softmax(x, kind(1), lower=kind(0)), torch.softmax(x, -1))
    for wrong in (np.bool_(True), np.array([2.0]), np.array("2"), torch.tensor(2.0, requires_grad=True)):
        with pytest.raises(ValueError, match=r"is not a number|must be a number"):
            sa.TopK(k=wrong)


@pytest.mark.parametrize("name", [n for n in sa.names() if sa.spec(n).over == "row" and not sa.spec(n).stateful])
def test_modules_have_a_dimension(name):
    inputs = {n: {"bounds": torch.tensor(0.6), "groups": 1}[n] for n in sa.spec(name).inputs}
    x = torch.rand(2, 4, 3)
    m = sa.make(name, dim=1)
    assert torch.equal(m(x, **inputs), sa.spec(name).function(x, dim=1, **inputs))
    assert torch.equal(m(x, dim=-1, **inputs), sa.make(name)(x, **inputs))
    again = pickle.loads(pickle.dumps(m))
    assert m.dim == again.dim == 1 and again.spec is m.spec and repr(again) == repr(m)
    shown = {parameter: value for parameter, value in m.params.items() if value is not None}
    assert all(f"{parameter}={value!r}" in repr(m) for parameter, value in ({"dim": 1} | shown).items())
    assert "dim" not in repr(sa.make(name))
    mask = torch.rand(2, 4, 3) > 0.3
    assert (m(x, mask, **(inputs | {"bounds": torch.tensor(1.0)} if "bounds" in inputs else inputs))[~mask] == 0).all()
    assert inspect.signature(type(m)).parameters["dim"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_module_without_the_attribute_still_works():
    old = sa.Entmax(1.3)
    del old.__dict__["dim"]  # as pickled before modules had one
    assert torch.equal(pickle.loads(pickle.dumps(old))(X), sa.entmax(X, alpha=1.3))


CALLS = {
    "sparse_attention": lambda m: sa.sparse_attention(*torch.zeros(3, 1, 2, 5, 4), m),
    "MultiheadAttention": lambda m: sa.nn.MultiheadAttention(8, 2, mapping=m),
    "replace": lambda m: sa.nn.replace(nn.TransformerEncoderLayer(8, 2, 16), m),
    "treat_as_masked": sa.integrations.treat_as_masked,
    "fenchel_young": lambda m: sa.losses.fenchel_young(torch.zeros(1, 3), torch.tensor([0]), m),
    "KeyCache": sa.KeyCache,
    "sdpa": lambda m: sa.integrations.sdpa.scaled_dot_product_attention(*torch.zeros(3, 1, 2, 5, 4), mapping=m),
    "make": sa.make,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_mapping_is_named_with_what_was_meant(call):
    for wrong, words in (
        (sa.Sparsemax, "the class Sparsemax .did you mean 'sparsemax'"),
        (nn.Softmax, "the class Softmax .did you mean 'softmax'"),
        (None, "mapping=None"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call(wrong)


def test_a_function_of_your_own_needs_a_mask():
    def halved(scores, mask=None):
        return sa.sparsemax(scores / 2, mask=mask)

    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(sa.sparse_attention(q, q, q, halved), sa.sparse_attention(q, q, q, sa.Sparsemax(gamma=2.0)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        sa.sparse_attention(q, q, q, nn.functional.softmax)


@pytest.mark.parametrize("function", [sa.losses.fenchel_young, sa.losses.max_omega])
def test_a_call_cannot_learn(function):
    given = [torch.zeros(1, 3)] + [torch.tensor([0])] * (function is sa.losses.fenchel_young)
    with pytest.raises(ValueError, match=r"alpha='learned' needs a module.*sa.make\('entmax', alpha='learned'\)"):
        function(*given, "entmax", alpha="learned")
