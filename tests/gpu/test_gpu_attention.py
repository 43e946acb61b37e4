"""Fused attention on the GPU against the composition of matrix products and mapping, in float64 on the CPU."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import sparse_attention as sa
from sparse_attention.attention import composition, forms, reading
from sparse_attention.kernels.triton import _INTERPRETED, attention, kinds, launcher
from sparse_attention.kernels.triton.attention import Saved

pytestmark = pytest.mark.gpu
KERNELS = ["attend_forward", "attend_queries_backward", "attend_keys_backward"]
SMALL_KERNELS = ["short_forward", "short_backward"]
# The last digits of tied scores depend on the processor. Half precision rounds weights and their gradients.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
if _INTERPRETED:
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    _dot = InterpreterBuilder.create_dot

    def _widened(x):
        """Triton 3.9's interpreter multiplies the bit patterns of bfloat16 as whole numbers: give it their values."""
        if x.dtype.scalar is not tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    InterpreterBuilder.create_dot = lambda self, a, b, *rest: _dot(self, _widened(a), _widened(b), *rest)

# Name, alpha, H, G, n, m, d, e, causal, lengths.
CASES = [
    ("causal, grouped", 2.0, 2, 1, 18, 37, 5, 3, True, None),
    ("causal, grouped", 1.5, 2, 1, 18, 37, 5, 3, True, None),
    ("more queries than keys", 2.0, 1, 1, 20, 7, 4, 4, True, None),
    ("lengths", 1.5, 2, 2, 5, 33, 16, 17, False, [0, 21]),
    ("causal and lengths", 1.3, 2, 2, 9, 20, 4, 4, True, [20, 15]),
    ("ties", 2.0, 1, 1, 3, 35, 4, 4, False, None),
    ("ties", 1.5, 1, 1, 3, 35, 4, 4, False, None),
    ("huge scores", 2.0, 1, 1, 4, 40, 4, 4, False, None),
    ("one query", 2.0, 2, 1, 1, 50, 8, 8, False, None),
    ("one key", 1.5, 1, 1, 3, 1, 8, 8, False, None),
    ("excluded and spoilt", 2.0, 1, 1, 4, 20, 4, 4, False, None),
    ("NaN in the padding", 1.5, 2, 2, 5, 40, 4, 4, False, [9, 21]),
    ("channels between powers of two", 1.5, 2, 1, 18, 37, 40, 36, True, None),
]
HALVES = (torch.float16, torch.bfloat16)
TYPED = [(case, torch.float32) for case in CASES] + [(case, dtype) for case in CASES[:2] for dtype in HALVES]


@pytest.fixture(autouse=True)
def blocks(monkeypatch) -> None:
    """Short sequences take the kernels of long ones, except in their own tests, whatever was measured on this device."""
    kinds.kind.cache_clear()  # of another test's blocks
    monkeypatch.setattr(kinds, "SHORT", 0)
    monkeypatch.setattr(kinds, "measured", lambda *_: (128, False))


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """So that small inputs have several."""
    monkeypatch.setattr(kinds, "_block", lambda *_: (16, 16))


def parts(saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum of (alpha - 1) scale q k' and the threshold relative to it [H, n], and the flags [H, query blocks, key blocks]."""
    (heads, n), (_, m, _, e, *_), block = saved.kind.heads_queries, saved.kind.numbers, saved.kind.block
    if saved.kind.short:
        return *saved.state.view(2, heads, n), torch.empty(0)
    blocks = heads, -(-n // block[0]), -(-m // block[1])
    top, tau, places = saved.state[heads * n * e :].split(
        [heads * n, heads * n, saved.state.numel() - heads * n * (e + 2)]
    )
    flags = places[math.prod(blocks) :].view(torch.int8)[: math.prod(blocks)]
    return top.view(heads, n), tau.view(heads, n), flags.view(blocks)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Small whole numbers over 4: every type holds them, and float32 holds their products, so that all see the same scores."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * 8).round() / 4 for shape in shapes]


def relative(found: Tensor, expected: Tensor, least: float = 1.0) -> Tensor:
    """Differences relative to the largest expected entry, in which `least` counts, too."""
    found, expected = (x.detach().cpu().double() for x in (found, expected))
    return (found - expected).abs() / expected.abs().max().clamp(min=least)


def test_differences_may_be_of_two_tensors_on_the_gpu(device) -> None:
    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
        assert relative(x, x).shape == (3,)


@pytest.mark.parametrize("small", [False, True], ids=["blocks", "short"])
@pytest.mark.parametrize("case, dtype", TYPED, ids=[f"{case[0]}, {case[1]:g}, {dtype}" for case, dtype in TYPED])
def test_the_kernels_equal_the_composition(case, dtype, small, device, launched, monkeypatch) -> None:
    if _INTERPRETED:
        monkeypatch.setattr(kinds, "_block", lambda *_: (16, 16))
    name, alpha, H, G, n, m, d, e, causal, lengths = case
    q, k, v, g = drawn(m, (H, n, d), (G, m, d), (G, m, e), (H, n, e))
    k = k[:, :1].expand_as(k) if name == "ties" else k * 2.0**14 if name == "huge scores" else k
    if name == "NaN in the padding":
        k[:, 21:], v[:, 21:] = torch.nan, torch.nan
    q[0, 0, 0] = torch.nan if name == "excluded and spoilt" else q[0, 0, 0]
    lengths = None if lengths is None else torch.tensor(lengths)
    keep = composition.visible(n, m, lengths, causal)
    q, k, v, g = (x.to(dtype) for x in (q, k, v, g))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    ours, lengths = [x.to(device).contiguous() for x in (q, k, v)], None if lengths is None else lengths.to(device)
    monkeypatch.setattr(kinds, "SHORT", 128 if small else 0)
    monkeypatch.setattr(kinds, "_LARGEST", dict.fromkeys(kinds._LARGEST, 1 << 20))  # spills change no value
    given = {"alpha": alpha, "scale": 0.25, "causal": causal, "lengths": lengths}
    out, saved = attention.forward(*ours, **given)
    found = (out, *attention.gradients(g.to(device), *ours, saved)[:3])
    assert launched == (SMALL_KERNELS if small else KERNELS)
    with sa.kernels.use("reference"):
        expected, weights = composition.attend(*wide, 0.25, composition.of_alpha(alpha), keep)
        expected = (expected, *torch.autograd.grad(expected, wide, g.double()))
    rows = slice(None)
    if name == "excluded and spoilt":  # the query with NaN is lost, the others are not; dk and dv sum over all
        assert out[0, 0].isnan().all() and found[1][0, 0].isnan().all()
        rows = slice(1, None)
        found, expected = [[x[:, rows] for x in xs[:2]] for xs in (found, expected)]
    assert max(float(relative(*pair).max()) for pair in zip(found, expected)) <= TOLERANCE[dtype]
    scores = reading.times(wide[0] * 0.25, wide[1].mT) * (alpha - 1)
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    top, tau = (x.cpu().double()[..., None] for x in parts(saved)[:2])
    support = (scores - top) - tau > 1e-7
    assert torch.equal(support[:, rows], (weights > 1e-14)[:, rows])


def learnable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def apart(tensors: list[Tensor], device: str, dtype: torch.dtype, second: bool = False, **given: Any) -> list[Tensor]:
    """`relative` for `sa.sparse_attention` of q, k, v: the output, gradients, and with `second` the gradients of these.

    Floating-point tensors in `given` are parameters with a gradient.
    """
    sides = []
    for where, to in ((device, dtype), ("cpu", torch.float64)):
        own = {key: x.to(where) if isinstance(x, Tensor) else x for key, x in given.items()}
        learned = [key for key, x in own.items() if learnable(x)]
        own |= {key: own[key].to(to, copy=True).requires_grad_() for key in learned}
        leaves = [*(x.to(where, to, copy=True).requires_grad_() for x in tensors), *(own[key] for key in learned)]
        with sa.kernels.use(sa.kernels.active() if to is dtype else "reference"):
            assert sa.attention.plan(*leaves[:3], **own).path == ("fused" if to is dtype else "composition")
            out = sa.sparse_attention(*leaves[:3], **own)
            plain = torch.autograd.grad(out.sum(), leaves, retain_graph=True)  # of a vector without memory of its own
            first = torch.autograd.grad(out.square().sum(), leaves, create_graph=second, retain_graph=True)
            again = torch.autograd.grad(sum(x.square().sum() for x in first), leaves) if second else ()
        sides.append([x.detach().cpu().double() for x in (out, *plain, *first, *again)])
    return [relative(*pair, 1e-3) for pair in zip(*sides, strict=True)]


def quarters(*shape: int) -> Tensor:
    """As `drawn`, for scores that are exact in every type."""
    return drawn(5, shape)[0]


def two(*numbers: float) -> Tensor:
    """One number for each of the heads."""
    return torch.tensor(numbers)


LEARNED: dict[str, Any] = {"scale": two(0.5, 1.5), "slopes": two(0.5, 0.25), "sink": two(0.5, -9.0)}
CAUSAL: dict[str, Any] = {"mapping": "sparsemax", "causal": True}
ENTMAX: dict[str, Any] = {"mapping": "entmax", "alpha": 1.5}
TWICE: dict[str, Any] = {"causal": True, "second": True}  # the gradients of the gradients too
WINDOW: dict[str, Any] = ENTMAX | LEARNED | {"causal": True, "window": (17, 0), "bias": quarters(2, 40, 40)}
HIDDEN = quarters(2, 2, 20, 37).masked_fill(torch.arange(37) == 3, -torch.inf)  # a bias that hides a key
LENGTHS = torch.tensor([[37, 9]])
ENDS = torch.tensor([0, 3, 3, 33, 50])
KEYS = (quarters(2, 1, 1, 70) > -0.5) & (torch.arange(70) < 50)
# B, H, G, n, m and a call: windows reach over several blocks, so that the first one seen is not the first; some queries see
# nothing, or only the sink.
SMALL, PAIR, LARGE = (2, 2, 2, 6, 6), (1, 2, 2, 20, 37), (2, 2, 2, 20, 37)
FORMS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    (SMALL, CAUSAL | TWICE),
    (SMALL, ENTMAX | TWICE),
    (SMALL, ENTMAX | TWICE | {"alpha": two(1.25, 2.0)}),
    (SMALL, CAUSAL | TWICE | {"scale": quarters(2, 2, 6, 1), "slopes": two(0.5, 0.25)}),
    (SMALL, CAUSAL | {"scale": two(0.5, 1.5), "gamma": 0.5}),
    (SMALL, CAUSAL | TWICE | {"lengths": torch.tensor([6, 4])}),
    ((1, 2, 1, 60, 70), CAUSAL | {"window": (20, 0)}),
    ((1, 2, 2, 40, 40), ENTMAX | {"window": (18, 5)}),
    ((1, 2, 1, 50, 50), ENTMAX | {"cu_seqlens": ENDS, "lengths": torch.tensor([[50, 43]])}),
    ((2, 2, 1, 50, 50), CAUSAL | {"cu_seqlens": ENDS, "slopes": two(0.5, 0.25)}),
    ((1, 2, 1, 60, 61), CAUSAL | {"window": (16, 0), "sink": two(1.0, -1.5)}),
    ((1, 2, 1, 20, 37), ENTMAX | {"alpha": 1.3, "causal": True, "sink": two(-torch.inf, 9.0)}),
    ((1, 2, 1, 40, 50), CAUSAL | {"slopes": two(0.125, 0.0)}),
    (PAIR, ENTMAX | {"slopes": two(0.125, 1.0), "sink": two(0.5, 2.0), "lengths": LENGTHS}),
    (LARGE, ENTMAX | {"scale": quarters(2, 2, 20, 1), "sink": two(0.5, 0.0)}),
    (LARGE, ENTMAX | {"bias": HIDDEN, "causal": True}),
    (LARGE, {"mapping": "sparsemax", "bias": HIDDEN[:, :1, :1]}),
    (LARGE, CAUSAL | {"bias": HIDDEN[0, 0], "slopes": two(0.5, 0.0)}),
    (PAIR, ENTMAX | LEARNED | {"alpha": 1.3, "bias": quarters(2, 20, 1), "lengths": LENGTHS}),
    (LARGE, CAUSAL | {"mask": quarters(2, 1, 20, 37) > -0.5}),
    ((2, 2, 2, 20, 70), ENTMAX | {"mask": KEYS}),
    ((1, 2, 2, 20, 70), {"mapping": "sparsemax", "mask": KEYS[0, 0, 0], "lengths": torch.tensor([[40, 70]])}),
    ((2, 2, 2, 20, 70), ENTMAX | {"mask": KEYS, "lengths": torch.tensor([70, 40])}),
    (LARGE, CAUSAL | {"lengths": torch.tensor([37, 9])}),
    ((1, 4, 2, 20, 37), ENTMAX | {"alpha": torch.tensor([1.1, 2.0, 1.5, 1.3]), "causal": True}),
    ((1, 2, 2, 40, 40), WINDOW | {"alpha": two(1.25, 1.8)}),
    ((1, 2, 2, 40, 40), WINDOW | {"mask": quarters(40) > -0.5}),
]


@pytest.mark.parametrize("form", FORMS, ids=[f"form {i} {', '.join(form[1])}" for i, form in enumerate(FORMS)])
def test_every_public_form_takes_the_kernels(form, device, launched, monkeypatch) -> None:
    """Tensors whose channels lie apart in memory. Without learned forms, short sequences have kernels of their own."""
    (B, H, G, n, m), call = form
    tensors = [x.mT for x in drawn(n, (B, H, 8, n), (B, G, 8, m), (B, G, 6, m))]
    for first in (KERNELS,) if any(map(learnable, call.values())) else (KERNELS, SMALL_KERNELS):
        monkeypatch.setattr(kinds, "SHORT", 128 if first is SMALL_KERNELS else 0)
        launched.clear()
        errors = apart(tensors, device, torch.float32, **{"scale": 0.25} | call)
        assert launched[: len(first)] == first and ("attend_bias_backward" in launched) == ("bias" in call)
        # The gradient of alpha is multiplied by 1 / (alpha - 1)^2, 100 at 1.1. In the last form, the magnitudes of the terms of a
        # scale's gradient add up to 416, and it is 1.9 at most: rounding each term by 2^-24 of it can be 1.3e-5, and each sum again.
        bound = 6e-5 if isinstance(call.get("alpha"), Tensor) else 3e-5 if form is FORMS[-1] else 1e-5
        assert max(float(x.max()) for x in errors) < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_launches_seen_before_give_the_same_bits(dtype, device, launched, monkeypatch) -> None:
    """The other tests record launches, which takes a slower way."""
    masked = {"mask": quarters(2, 1, 9, 17) > -0.5, "lengths": torch.tensor([17, 8], device=device)}
    calls: list[dict[str, Any]] = [{}, CAUSAL, masked | CAUSAL, CAUSAL | LEARNED | {"bias": quarters(9, 17)}]
    q, k, v, g = (x.to(device, dtype) for x in drawn(1, (2, 2, 9, 8), (2, 1, 17, 8), (2, 1, 17, 8), (2, 2, 9, 8)))
    results, counts = [], []
    for _ in range(3):
        for call in calls:
            call = {key: x.to(device) if isinstance(x, Tensor) else x for key, x in call.items()}
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = sa.sparse_attention(*leaves, **call)
            results += [out, *torch.autograd.grad(out, leaves, g), sa.sparse_attention(q, k, v, **call)]
        counts.append(len(launched))
        monkeypatch.setattr(launcher, "instead", None)
    each = len(results) // 3
    assert counts[0] > 15 and counts[1:] == counts[:2]
    assert all(map(torch.equal, results[: 2 * each], results[each:]))


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_heads_of_a_mask_or_a_bias_in_any_layout(name, device, launched) -> None:
    heads = 2, 3, 2, 2
    tensors, bias = drawn(0, (*heads, 3, 4), (*heads, 5, 4), (*heads, 5, 4)), quarters(2, 1, 2, 1, 3, 5)
    given = {"mask": bias > -0.5} if name == "mask" else {"bias": bias}
    errors = apart(tensors, device, torch.float32, mapping="sparsemax", scale=0.25, **given)
    assert launched[:3] == KERNELS and max(float(x.max()) for x in errors) < 1e-5


def test_blocks_that_nothing_reaches_are_not_looked_at(small_blocks, device) -> None:
    q, k = (x.to(device) for x in drawn(3, (1, 80, 8), (1, 90, 8)))
    spans = forms.spans_of(80, 90, (5, 0), None, q.device)[None]
    mask = torch.arange(90, device=device).view(1, 1, 90) < 50
    _, near = attention.forward(q, k, k, alpha=2.0, scale=0.25, spans=spans)
    _, early = attention.forward(q, k, k, alpha=2.0, scale=0.25, mask=mask, lead=(1,))
    assert (parts(near)[2] == 0).double().mean() > 0.5 and early.forms[0].max() <= 50


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_learned_forms_keep_half_precision(dtype, device, launched, monkeypatch) -> None:
    types, forward = [], attention.forward
    monkeypatch.setattr(attention, "forward", lambda q, *rest, **o: types.append(q.dtype) or forward(q, *rest, **o))
    tensors = [torch.randn(2, 2, 6, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    errors = apart([x.to(dtype) for x in tensors], device, dtype, **CAUSAL, **LEARNED)
    assert types == [dtype] and launched[:3] == KERNELS
    assert max(float(x.max()) for x in errors) < TOLERANCE[dtype] * 2


def test_the_composition_knows_learned_forms(device, launched) -> None:
    given = {key: x.to(device) for key, x in LEARNED.items()}
    q, k, v = (x.to(device) for x in drawn(3, (1, 2, 9, 4), (1, 1, 9, 4), (1, 1, 9, 4)))
    out, p = sa.sparse_attention(q, k, v, **CAUSAL, **given, need_weights=True)
    assert not {*launched} & {*KERNELS} and p.shape == (1, 2, 9, 9)
    assert float(relative(sa.sparse_attention(q, k, v, **CAUSAL, **given), out.double()).max()) < 1e-5


def all_leaves(device: str) -> list[Tensor]:
    tensors = *drawn(3, (1, 2, 9, 4), (1, 1, 9, 4), (1, 1, 9, 4)), *LEARNED.values()
    return [x.to(device).requires_grad_() for x in tensors]


def attend_learned(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
    return sa.sparse_attention(q, k, v, **CAUSAL, **dict(zip(LEARNED, learned)))


def test_compiled_calls_take_learned_forms(device, launched) -> None:
    leaves = all_leaves(device)
    both = [f(*leaves) for f in (attend_learned, torch.compile(attend_learned, backend="aot_eager", fullgraph=True))]
    plain, compiled = ([out, *torch.autograd.grad(out.square().sum(), leaves)] for out in both)
    assert max(float(relative(*pair).max()) for pair in zip(compiled, plain)) < 1e-5
    assert launched == [*KERNELS[:1] * 2, *KERNELS[1:], *KERNELS]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_kernel_that_does_not_start_is_replaced_in_the_backward(compiled, device, monkeypatch) -> None:
    from sparse_attention.attention import operator
    from sparse_attention.kernels.triton import LaunchFailed

    def broken(*_: Any) -> None:
        raise LaunchFailed("no room")

    leaves = all_leaves(device)
    expected = torch.autograd.grad(attend_learned(*leaves).square().sum(), leaves)
    given_up: list[str] = []
    monkeypatch.setattr(operator, "give_up", lambda op, error: given_up.append(f"{op}: {error}"))
    monkeypatch.setattr(attention, "gradients", broken)
    attend = torch.compile(attend_learned, backend="aot_eager") if compiled else attend_learned
    found = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
    assert given_up == ["attention: no room"]
    assert max(float(relative(*pair).max()) for pair in zip(found, expected)) < 1e-5


# H, G, n, m, d, causal; half of the heads are padded. Tolerances of the output, and of 99 % of the entries of a gradient:
# rounding may move a key at the threshold into or out of the support, and the gradient of sparsemax jumps there.
OF_MODELS = [
    (4, 4, 300, 500, 64, False),
    (4, 2, 300, 500, 64, True),
    (2, 1, 1, 700, 128, True),
    (2, 2, 65, 30, 20, True),
]
SHAPES = [(2, 1, 9, 40, 4, True)] if _INTERPRETED else OF_MODELS
LIMITS = {torch.float32: (1e-5, 1e-4), torch.float16: (2.0**-9, 2.0**-8), torch.bfloat16: (2.0**-6, 2.0**-5)}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("alpha", [2.0, 1.5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_of_models(shape, alpha, dtype, device, launched) -> None:
    heads, groups, n, m, d, causal = shape
    torch.manual_seed(0)
    tensors = [torch.randn(1, *size).to(dtype) for size in ((heads, n, d), (groups, m, d), (groups, m, d))]
    lengths = torch.full((1, heads), m)
    lengths[:, ::2] = m // 2
    out, *gradients = apart(tensors, device, dtype, mapping="entmax", alpha=alpha, causal=causal, lengths=lengths)
    assert launched == KERNELS + KERNELS[1:]  # one forward, two backwards
    error, slope = LIMITS[dtype]
    assert float(out.max()) <= error and max(float(x.flatten().quantile(0.99)) for x in gradients) <= slope


def test_hooks_and_checkpoints_see_what_is_saved(device, launched) -> None:
    leaves = [torch.randn(1, 2, 9, 4, device=device, requires_grad=True) for _ in range(3)]
    shapes: list[torch.Size] = []
    keep = lambda x: shapes.append(x.shape) or x.clone()  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = sa.sparse_attention(*leaves, "sparsemax", causal=True)
    assert {(1, 2, 9, 4), (2 * 9 * 6 + 3,)} == {
        *map(tuple, shapes)
    }  # q, k, v; the mean, thresholds, flags and list of one block
    attend = partial(sa.sparse_attention, mapping="sparsemax", causal=True)
    again = checkpoint(attend, *leaves, use_reentrant=False)
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (out, again))):
        assert torch.equal(ours, theirs)
    assert launched == KERNELS[:1] * 2 + KERNELS[1:] + KERNELS


def test_memory_need_not_be_zero_before(small_blocks, device, monkeypatch) -> None:
    """Windows and lengths hide whole blocks, whose flags the forward clears."""
    q, k = (x.to(device) for x in drawn(3, (2, 80, 8), (2, 90, 8)))
    spans = forms.spans_of(80, 90, (5, 0), None, q.device)[None]
    given = {"alpha": 2.0, "scale": 0.25, "spans": spans, "causal": True}
    out, saved = attention.forward(q, k, k, **given)
    found = out, *attention.gradients(q, q, k, k, saved)[:3]
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **more: empty(*size, **more).fill_(2))
    out, again = attention.forward(q, k, k, **given)
    assert torch.equal(parts(again)[2], parts(saved)[2]) and (parts(again)[2] == 0).any()
    assert all(map(torch.equal, found, (out, *attention.gradients(q, q, k, k, again)[:3])))


def test_no_keys_give_zeros(device) -> None:
    q, empty = torch.ones(2, 3, 4, device=device), torch.ones(1, 0, 4, device=device)
    out, saved = attention.forward(q, empty, empty, alpha=2.0, scale=1.0)
    dq, dk, _ = attention.gradients(q, q, empty, empty, saved)[:3]
    assert not out.any() and not dq.any() and dk.shape == empty.shape


def test_what_the_kernels_refuse(device) -> None:
    q = torch.ones(2, 3, 4, device=device)
    wide = torch.ones(1, 2, 257, device=device)
    assert "257 and 257 channels" in attention.refusal(wide, wide, wide, 2.0)
    assert "alpha is 1.05" in attention.refusal(q, q, q, 1.05)
    assert "torch.float64" in attention.refusal(q.double(), q.double(), q.double(), 2.0)
    assert "torch.float16" in attention.refusal(q, q.half(), q, 2.0)
    assert attention.refusal(q, q, q, 1.1) is None
    plan = sa.attention.plan(*[q.unsqueeze(0)] * 3, "entmax", alpha=torch.tensor([1.05, 2.0], device=device))
    assert plan.path == "composition" and "alpha ranges from 1.05 to 2; fused are 1.1 to 2" in plan
