"""Attention from lists of scores on the GPU against the composition in float64 on the CPU; full lists are left to the kernels of blocks."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from test_gpu_attention import KERNELS, TOLERANCE, drawn, learnable, parts, quarters, relative, two
from torch import Tensor

import sparse_attention as sa
from sparse_attention.kernels.triton import _INTERPRETED, attention, kinds, launcher

pytestmark = pytest.mark.gpu
ROWS, KEYS = (16, 32) if _INTERPRETED else (64, 64)
FULL = 2.0
SPARSEMAX: dict[str, Any] = {"mapping": "sparsemax", "causal": True}
ENTMAX: dict[str, Any] = {"mapping": "entmax", "alpha": 1.5}
ENDS = torch.tensor([0, 3, 30, 41])
HIDDEN = quarters(1, 1, 70).masked_fill(torch.arange(70) == 3, -torch.inf)
# H, G, n, m, d, e and a call: several blocks of queries and keys. Some queries see nothing, or only the sink.
FORMS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 1, 18, 150, 8, 8), SPARSEMAX),
    ((1, 1, 18, 70, 40, 24), ENTMAX | {"alpha": 1.3}),
    ((2, 2, 18, 40, 8, 6), ENTMAX | {"alpha": two(1.25, 2.0), "lengths": torch.tensor([[40, 9]])}),
    ((2, 2, 40, 20, 8, 8), SPARSEMAX | {"slopes": two(0.5, 0.25), "sink": two(0.5, -9.0)}),
    ((1, 1, 33, 130, 8, 8), ENTMAX | {"window": (37, 5), "scale": quarters(1, 1, 33, 1)}),
    ((1, 1, 41, 41, 8, 8), {"mapping": "sparsemax", "cu_seqlens": ENDS, "sink": two(0.5)}),
    ((1, 1, 18, 70, 8, 8), ENTMAX | {"bias": HIDDEN}),
]


@pytest.fixture(autouse=True)
def listed(monkeypatch) -> None:
    """Lists for short sequences, too. A program handles several blocks of queries."""
    for name, value in {"LISTED": True, "LONG": 1, "multiprocessors": lambda *_: 1}.items():
        monkeypatch.setattr(kinds, name, value)
    kinds.kind.cache_clear()
    monkeypatch.setattr(kinds, "SHORT", 0)
    monkeypatch.setattr(kinds, "_block", lambda *_: (ROWS, KEYS))


@pytest.fixture
def alone(monkeypatch) -> Iterator[list[str]]:
    """The names of the kernels that were started; nothing computes what is marked."""
    names: list[str] = []

    def recorded(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        launcher.instead = None
        try:
            if not constants.get("MARKED"):
                launcher.starter(kernel, **constants).go(programs, *arguments)
        finally:
            launcher.instead = recorded
        if not arguments[0].is_meta:
            names.append(kernel.fn.__name__)

    launcher.instead = recorded
    yield names
    launcher.instead = None


def apart(tensors: list[Tensor], device: str, dtype: torch.dtype, call: dict[str, Any]) -> list[float]:
    """The largest differences, relative to the largest entry, in the output and the gradients, also of learned forms."""
    sides = []
    for where, to in ((device, dtype), ("cpu", torch.float64)):
        own = {key: x.to(where) if isinstance(x, Tensor) else x for key, x in call.items()}
        own |= {key: x.to(to, copy=True).requires_grad_() for key, x in own.items() if learnable(x)}
        leaves = [x.to(where, to, copy=True)[None].requires_grad_() for x in tensors]
        with sa.kernels.use(sa.kernels.active() if to is dtype else "reference"):
            out = sa.sparse_attention(*leaves, scale=own.pop("scale", 0.25), **own)
            leaves += [x for x in own.values() if learnable(x)]
            sides.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    return [float(relative(*pair, 1e-3).max()) for pair in zip(*sides, strict=True)]


@pytest.mark.parametrize("form", FORMS, ids=[f"form {i} {', '.join(form[1])}" for i, form in enumerate(FORMS)])
def test_lists_alone_equal_the_composition(form, device, alone, monkeypatch) -> None:
    (H, G, n, m, d, e), call = form
    if d > 8:
        monkeypatch.setattr(kinds, "_block", lambda *_: (ROWS, 64))
    errors = apart(drawn(n, (H, n, d), (G, m, d), (G, m, e)), device, torch.float32, call)
    assert alone[:4] == ["attend_listed", *KERNELS]
    assert max(errors) < (6e-5 if isinstance(call.get("alpha"), Tensor) else 1e-5)


@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_half_precision(alpha, device, alone) -> None:
    tensors = drawn(7, (1, 18, 24), (1, 70, 24), (1, 70, 24))
    out, *gradients = apart([x.bfloat16() for x in tensors], device, torch.bfloat16, ENTMAX | {"alpha": alpha})
    assert out < TOLERANCE[torch.bfloat16] and max(gradients) < 2.0**-5


def equal(q: Tensor, k: Tensor) -> None:
    """More keys have weight than fit on a list."""
    q[:, :ROWS] = 0.0


def ascending(q: Tensor, k: Tensor) -> None:
    """Every key beats those seen before it, and for the other queries none does."""
    q[:, :ROWS], q[:, ROWS:], k[:] = 1.0, -1.0, -torch.arange(k.shape[1]).view(1, -1, 1) / 64


def spoilt(q: Tensor, k: Tensor) -> None:
    q[0, 3, 0] = torch.nan


def infinite(q: Tensor, k: Tensor) -> None:
    k[0, 5], q[0, 0], q[0, 1:] = torch.inf, 1.0, -1.0


def random(q: Tensor, k: Tensor) -> None:
    """All lists suffice."""


@pytest.mark.parametrize("spoil", [random, equal, ascending, spoilt, infinite])
def test_what_does_not_fit_on_lists_is_left_to_blocks(spoil: Callable[..., None], device, alone, monkeypatch) -> None:
    """That is the first block of queries here. All bits of it are those of the kernels of blocks. Memory need not be zero before."""
    monkeypatch.setattr(kinds, "PLACES", (KEYS, KEYS))
    q, k, v = drawn(8, (1, 2 * ROWS, 8), (1, 3 * KEYS + 4, 8), (1, 3 * KEYS + 4, 8))
    spoil(q, k)
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, **more: empty(*size, **more).view(torch.int8).fill_(1).view(torch.float32)
    )
    q, k, v = (x.to(device) for x in (q, k, v))
    given = {"sinks": torch.tensor([12.0], device=device)} if spoil is random else {}  # in some rows, the largest score
    forward = partial(attention.forward, q, k, v, alpha=2.0, scale=0.5, **given)
    assert (parts(forward()[1])[1][0, ::ROWS] == FULL).tolist() == [spoil is not random, False]
    monkeypatch.setattr(launcher, "instead", None)
    out, saved = forward()
    monkeypatch.setattr(kinds, "LISTED", False)
    expected, other = forward()
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5, equal_nan=True)
    for mine, right in zip((out, *parts(saved)), (expected, *parts(other)), strict=True):
        first = slice(0 if spoil is random else ROWS if mine.ndim < 3 or mine is out else 1)
        assert torch.equal(mine[:, first].nan_to_num(7), right[:, first].nan_to_num(7))
        torch.testing.assert_close(mine, right, atol=1e-6, rtol=1e-5, equal_nan=True)
