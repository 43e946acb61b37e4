"""The short way of a call that was seen before asks for what the long way asks for, and refuses what that refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
import sparse_attention as sa
from sparse_attention.attention import direct
from sparse_attention.kernels.triton import attention


def sides() -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 5)
    return (q, k, v), {"mask": torch.ones(2, 1, 6, 9, dtype=torch.bool), "lengths": torch.tensor([9, 4])}


META = torch.device("meta")
WRONG: dict[str, Any] = {
    **{f"{name} of another dtype": {name: lambda x: x.half()} for name in "qkv"},
    **{f"{name} of whole numbers": {name: lambda x: x.long()} for name in "qkv"},
    **{f"{name} of another device": {name: lambda x: x.to(META)} for name in "kv"},
    **{f"{name} with fewer dimensions": {name: lambda x: x[0]} for name in "qkv"},
    **{f"{name} is sparse": {name: lambda x: x.to_sparse()} for name in "qkv"},
    **{f"{name} is a list": {name: lambda x: x.tolist()} for name in "qkv"},
    "q of 7 channels": {"q": lambda x: x[..., :7]},
    "q of 3 heads": {"q": lambda x: x[:, :3]},
    "q of another batch": {"q": lambda x: x.repeat(2, 1, 1, 1)[:3]},
    "k of 8 keys": {"k": lambda x: x[..., :8, :]},
    "v of one group": {"v": lambda x: x[:, :1]},
    "mask of numbers": {"mask": lambda x: x.float()},
    "mask of 8 keys": {"mask": lambda x: x[..., :8]},
    "mask of 5 dimensions": {"mask": lambda x: x.expand(2, 2, 1, 6, 9)},
    "mask of another device": {"mask": lambda x: x.to(META)},
    "mask is a list": {"mask": lambda x: x.tolist()},
    "mask is sparse": {"mask": lambda x: x.to_sparse()},
    "lengths of 3 sequences": {"lengths": lambda x: torch.tensor([9, 4, 1])},
    "lengths too large": {"lengths": lambda x: x + 1},
    "lengths below 0": {"lengths": lambda x: x - 5},
    "lengths of floats": {"lengths": lambda x: x.float()},
    "lengths of booleans": {"lengths": lambda x: x > 5},
    "lengths is a list": {"lengths": lambda x: x.tolist()},
    "scale is infinite": {"scale": lambda _: float("inf")},
    "scale of 3 heads": {"scale": lambda _: torch.ones(3)},
    "mapping unknown": {"mapping": lambda _: "sparsmax"},
    "mapping over a sequence": {"mapping": lambda _: "fertility"},
    "mapping is a number": {"mapping": lambda _: 2},
    "gamma is 0": {"gamma": lambda _: 0.0},
    "no such parameter": {"gama": lambda _: 1.0},
    "torch's name": {"is_causal": lambda _: True},
    "dropout of 1": {"dropout": lambda _: 1.0},
    "a window of one side": {"window": lambda _: (1,)},
    "slopes of 3 heads": {"slopes": lambda _: torch.ones(3)},
    "a sink of another device": {"sink": lambda _: torch.ones(4, device=META)},
    "a scale of another device": {"scale": lambda _: torch.ones(4, device=META)},
    "a bias of 8 keys": {"bias": lambda _: torch.zeros(8)},
    "a bias of another device": {"bias": lambda _: torch.zeros(9, device=META)},
    "a bias of whole numbers": {"bias": lambda _: torch.zeros(9, dtype=torch.int64)},
    "slopes are a list": {"slopes": lambda _: [1.0] * 4},
    "a scale of whole numbers": {"scale": lambda _: torch.ones(4, dtype=torch.int64)},
    "packed sequences of other lengths": {"cu_seqlens": lambda _: torch.tensor([0, 6])},
    "a module with parameters": {"mapping": lambda _: sa.make("sparsemax"), "gamma": lambda _: 1.0},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_wrong_call_after_a_right_one_raises_what_it_did(wrong, recorded, monkeypatch) -> None:
    tensors, forms = sides()
    right = {**dict(zip("qkv", tensors)), **forms, "mapping": "sparsemax"}
    ways = []
    with sa.kernels.use("triton"):
        for way in (direct.attend, lambda *_: None):  # the second: as if no call were known
            monkeypatch.setattr(sa.attention.attention, "direct", way)
            attend(right)
            recorded.clear()
            changed = {**right, **{name: change(right.get(name)) for name, change in wrong.items()}}
            with pytest.raises((TypeError, ValueError, KeyError)) as error:
                attend(changed)
            assert recorded == []
            ways.append((type(error.value), str(error.value)))
    assert ways[0] == ways[1]


@pytest.mark.parametrize("name", ["scale", "slopes", "sink"])
def test_a_cache_with_a_form_on_another_device(name, recorded) -> None:
    k, q = torch.empty(2, 9, 8, device=META), torch.empty(2, 1, 8, device=META)
    with sa.kernels.use("triton"):
        cache = sa.KeyCache("sparsemax", **{name: torch.ones(2)}).append(k, k)
        with pytest.raises(ValueError, match=f"{name} is on cpu and q on meta; move them to one device"):
            cache.attend(q)
    assert recorded == []


def attend(given: dict[str, Any]) -> Any:
    given = dict(given)
    return sa.sparse_attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


ROWS: dict[str, Any] = {
    "mask of numbers": lambda x, mask: (x, mask.float()),
    "mask of another length": lambda x, mask: (x, mask[..., :8]),
    "mask of another device": lambda x, mask: (x, mask.to(META)),
    "mask is sparse": lambda x, mask: (x, mask.to_sparse()),
    "scores of whole numbers": lambda x, mask: (x.long(), mask),
    "scores are sparse": lambda x, mask: (x.to_sparse(), None),
    "scores are a list": lambda x, mask: (x.tolist(), mask),
}


@pytest.mark.parametrize("change", ROWS.values(), ids=list(ROWS))
def test_wrong_rows_after_right_ones_raise_what_they_did(change, recorded, monkeypatch) -> None:
    x, mask = torch.randn(4, 9), torch.ones(4, 9, dtype=torch.bool)
    with sa.kernels.use("triton"):
        sa.sparsemax(x, mask=mask)
        assert recorded == ["simplex_forward"]
        with pytest.raises((TypeError, ValueError)) as first:
            x, mask = change(x, mask)
            sa.sparsemax(x, mask=mask)
        assert recorded == ["simplex_forward"]
    with sa.kernels.use("reference"), pytest.raises(type(first.value)) as second:
        sa.sparsemax(x, mask=mask)
    assert str(first.value) == str(second.value)


def test_a_number_as_mask_may_be_on_the_cpu(recorded) -> None:
    with sa.kernels.use("triton"):
        sa.sparsemax(torch.randn(4, 9), mask=torch.tensor(True))
    assert recorded == ["simplex_forward"]


GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "lengths": {"lengths": torch.tensor([9, 4])},
    "lengths of heads": {"lengths": torch.tensor([[9, 4, 1, 0], [0, 1, 2, 3]])},
    "lengths of heads alike": {"lengths": torch.tensor([[9, 4, 1, 0]])},
    "mask": {"mask": torch.rand(6, 9) > 0.3},
    "mask of keys": {"mask": torch.rand(2, 1, 1, 9) > 0.3},
    "scale": {"scale": 0.5},
    "entmax": {"mapping": "entmax", "alpha": 1.5},
    "gamma": {"gamma": 0.5, "scale": 2.0},
    "sparsegen": {"mapping": "sparsegen_lin", "lam": 0.25},
    "module": {"mapping": sa.make("entmax", alpha=1.5)},
    "bias": {"bias": torch.randn(6, 9).half(), "gamma": 0.5},
    "slopes and sink": {"slopes": torch.rand(4), "sink": torch.rand(4), "causal": True, "gamma": 0.5},
    "window": {"window": (3, 1)},
    "scale of heads": {"scale": torch.rand(4)},
    "scale of queries": {"scale": torch.rand(2, 1, 6, 1), "mask": torch.rand(6, 9) > 0.3, "bias": torch.randn(6, 9)},
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return a == b


@pytest.mark.parametrize("given", GIVEN.values(), ids=list(GIVEN))
def test_the_short_way_asks_the_kernels_for_what_the_long_way_asks(given, recorded, monkeypatch) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def forward(*tensors: Any, **more: Any) -> Any:
        flat = tuple(x.reshape(-1, *x.shape[-2:]) for x in tensors)
        asked = {name: x for name, x in more.items() if x is not None}
        if "lengths" in asked:  # as one for each head
            asked["lengths"] = asked["lengths"].repeat_interleave(8 // len(asked["lengths"]))
        calls.append((flat, asked))
        return attention_forward(*tensors, **more)

    attention_forward = attention.forward
    monkeypatch.setattr(attention, "forward", forward)
    for learned in (False, True):
        calls.clear()
        tensors = [x.requires_grad_(learned) for x in sides()[0]]
        with sa.kernels.use("triton"):
            for way in (direct.attend, lambda *_: None):
                monkeypatch.setattr(sa.attention.attention, "direct", way)
                out = sa.sparse_attention(*tensors, **given)
                assert out.shape == (2, 4, 6, 5) and (out.grad_fn is not None) == learned
                if learned:
                    assert [x.shape for x in torch.autograd.grad(out.sum(), tensors)] == [x.shape for x in tensors]
        (short, asked), (long, expected) = calls
        assert all(map(equal, short, long)) and asked.keys() == expected.keys()
        assert all(equal(asked[name], x) for name, x in expected.items())
    named = {"mapping": "sparsemax", **given}
    names = ("mapping", "mask", "causal", "lengths", "scale")
    rest = [named.pop(name, False if name == "causal" else None) for name in names]
    forms = {name: named.pop(name) for name in ("bias", "slopes", "window", "cu_seqlens", "sink") if name in named}
    with sa.kernels.use("triton"):
        assert direct.attend(*tensors, *rest, named, forms) is not None


def test_calls_that_take_the_long_way(recorded) -> None:
    (q, k, v), _ = sides()
    none = (None, False, None, None, {}, {})
    with sa.kernels.use("triton"):
        assert direct.attend(q, k, v, "sparsemax", *none) is not None
        for mapping in ("softmax", "fusedmax", sa.make("entmax", alpha="learned"), sa.sparsemax, "no such mapping"):
            assert direct.attend(q, k, v, mapping, *none) is None
        assert direct.attend(q, k, v, "entmax", None, False, None, None, {"alpha": 1.05}, {}) is None
        assert direct.attend(q, k, v, "entmax", None, False, None, None, {"alpha": torch.tensor(1.5)}, {}) is None
        assert direct.attend(q.double(), k.double(), v.double(), "sparsemax", *none) is None
        assert direct.attend(q, k[:1], v[:1], "sparsemax", *none) is None  # broadcasts
        assert torch.func.vmap(lambda q: torch.as_tensor(direct.attend(q, k, v, "sparsemax", *none) is None))(
            q[None]
        ).all()
        with torch.device("meta"):  # a mode
            assert direct.attend(q, k, v, "sparsemax", *none) is None
    with sa.kernels.use("reference"):
        assert direct.attend(q, k, v, "sparsemax", *none) is None


def test_known_mappings_are_not_kept_without_end(recorded, monkeypatch) -> None:
    tensors, _ = sides()
    monkeypatch.setattr(direct, "_KNOWN", 10)
    with sa.kernels.use("triton"):
        for i in range(25):
            sa.sparse_attention(*tensors, "sparsemax", gamma=1.0 + i)
    assert len(direct._known) <= 10
