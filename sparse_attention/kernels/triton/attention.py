"""Fused attention on the GPU: ``entmax(scale q k') v`` without the matrix of scores; kernels: ``attention_kernels``.

The contract is that of ``kernels.native.attention``, for float32, float16 and bfloat16, with three more arguments, which need extra channels there:

    ``scales``   float32 [H, n], factors of each query's scores
    ``slopes``   float32 [H]: ``slopes[h] * |i + m - n - j|`` is subtracted from the score of query i and key j
    ``sinks``    float32 [H], the score of one more key, whose value is 0

All of them have gradients. Scores, thresholds and sums are float32. For half-precision inputs, as in flash attention, the
weights are rounded to half precision before they are multiplied by the values, and the gradients of the scores before they
are multiplied by queries and keys. No call here waits for the device; with one alpha per head, `sa.sparse_attention` has
already read the range of the alphas. Results are deterministic.
"""

from __future__ import annotations

import functools
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import Gradients

ALPHAS = (1.1, 2.0)  # for these alphas, float32 is precise enough
WIDEST = 256  # maximum channels; wider blocks do not fit into the memory of a multiprocessor
# Up to this many queries of a group, without gradients, their scores are stored, see `_of_few`
_DECODED = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
# Up to this many queries and keys, all keys fit into one block, which has kernels of its own, see ``short_kernels``
SHORT = 128
SHORT_KEYS = (32, 64, 128)  # of such a block: few sizes, since each is compiled
# The forms as the kernels take them. bias: -inf where a mask hides a key, or uint8: the mask alone. powers: float32 [H], 1 / (alpha - 1)
# if each head has its own
FORMS = ("lengths", "spans", "bias", "powers", "scales", "slopes", "sinks")
_FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys
_LARGEST = {torch.float32: 64 * 64, torch.float16: 128 * 128, torch.bfloat16: 128 * 128}  # keys times channels


class Saved(NamedTuple):
    """Data for the backward."""

    state: Tensor  # float32, written by the forward kernel, see `attention_blocks.parts_of`
    forms: tuple[Tensor, ...]  # those that were given, see `FORMS`
    kind: Kind


def _block(d: int, e: int, dtype: torch.dtype, laden: bool, biased: bool, newer: bool) -> tuple[int, int]:
    """The numbers of queries and keys of a block: of the sizes tried, the largest that fits into registers.

    laden: there are alphas, scales, slopes, a bias or a mask. newer: products of float32 take four warps of sm_90 or newer.
    """
    wide, single = max(d, e), dtype == torch.float32
    size = (32 if single and (wide > 64 or laden or not newer) else 64) // (2 if wide > 128 else 1)
    if single and biased and 96 < wide <= 128:  # for the gradient of the bias
        return size // 2, size
    fewer_keys = 64 < wide <= 128 if single else laden and wide <= 128
    return size, size // 2 if fewer_keys else size


@functools.lru_cache(4096)
def _short(m: int, d: int, e: int, dtype: torch.dtype) -> tuple[int, int] | None:
    """`_block` for ``short_kernels``; None if the registers do not hold m keys with d and e channels."""
    keys = next(x for x in SHORT_KEYS if m <= x)
    if max(d, e) > 128 or keys * _whole(d, e) > _LARGEST[dtype]:
        return None
    return 16 if keys > 64 and dtype == torch.float32 else 32, keys


def record(device: int | None = None) -> Path:
    """The file in Triton's cache with the number of `measured`; ``python -m sparse_attention.kernels.triton --measure`` writes it."""
    from triton import knobs

    return Path(knobs.cache.dir) / f"sparse_attention_short_{torch.cuda.get_device_name(device)}"


@functools.cache
def measured(device: int) -> int:
    """The number of keys up to which ``short_kernels`` were faster than blocks on a device; the most they take if not measured."""
    with suppress(ImportError, AttributeError, OSError, ValueError):
        return int(record(device).read_text())
    return SHORT_KEYS[-1]


def refusal(q: Tensor, k: Tensor, v: Tensor, alpha: float) -> str | None:
    """The reason why the kernels cannot take these tensors, as a clause; None if they can."""
    if not (q.is_cuda or (rows._INTERPRETED and q.device.type == "cpu")):
        return f"the Triton kernels run on CUDA devices, q is on {q.device}"
    if not ALPHAS[0] <= alpha <= ALPHAS[1]:
        return f"alpha is {alpha}; the Triton kernels take {ALPHAS[0]} to {ALPHAS[1]:g}, where float32 is enough"
    if (error := rows.given_up.get("attention")) is not None:
        return str(error)
    if q.dtype not in rows._DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"the Triton kernels take float32, float16 or bfloat16, not {q.dtype}, {k.dtype} and {v.dtype}"
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return f"heads have {q.shape[-1]} and {v.shape[-1]} channels, the Triton kernels take up to {WIDEST}"
    return rows.too_old(q.get_device()) if rows._load() else "Triton is not installed"


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float,
    scale: float,
    causal: bool = False,
    save: bool = True,
    lead: tuple[int, ...] = (),
    **given: Any,
) -> tuple[Tensor, Saved | None]:
    """q [H, n, d], k [G, m, d] and v [G, m, e]; out [H, n, e] has q's dtype. The groups of k and v need not be adjacent in memory.

    given: lengths (int64, the same number of adjacent heads has each), spans, alphas (float ``[H]``, in place of alpha), bias, mask (added to the bias as -inf), scales, slopes and sinks.
    lead: H before heads were merged. q is contiguous; all three may have more dimensions in the place of H and G, which the result then has, too.
    """
    shapes, device = (q.shape, k.shape, v.shape), q.get_device()
    k, v, room = together(k, v)
    lead = lead or (q.shape[:-2].numel(),)
    most = min(SHORT, measured(device)) if q.is_cuda else SHORT
    forms: tuple[Tensor, ...] = ()
    known: tuple[Any, ...] = _NONE
    every: Any
    if given:
        own = given.get
        mask, bias, alphas = own("mask"), own("bias"), own("alphas")
        each = map(own, ("lengths", "spans", "scales", "slopes", "sinks"))
        lengths, spans, *learned = (None if x is None else _dense(x) for x in each)
        powers = None if alphas is None else (1 / (alphas.detach().double() - 1)).float()
        if bias is None:
            bias = mask if mask is None else mask.view(torch.uint8)
        else:
            bias = bias.detach().resolve_neg()
            bias = bias if mask is None else torch.where(mask, bias, -torch.inf)
        every = lengths, spans, bias, powers, *learned
        has = tuple(None if x is None else x.dtype for x in every)
        layout = None if bias is None else (bias.shape, bias.stride())
        known = has, None if lengths is None else len(lengths), None if spans is None else len(spans), layout
    kind = _kind(*shapes, room, q.dtype, device, save, most, lead, alpha, scale, causal, *known)
    if given:
        if kind.ends:
            every = _ends(every[2], lengths, lead), *every[1:]
        if kind.copies:
            every = *every[:2], every[2].expand(*lead, *every[2].shape[-2:]).contiguous(), *every[3:]
        forms = tuple(x for x in every if x is not None)
    if kind.few:
        return _of_few(q, k, v, forms, kind), None
    out = torch.empty_like(q) if kind.shape is None else q.new_empty(kind.shape)
    state = torch.empty(kind.state, dtype=torch.float32, device=q.device)
    saved = Saved(state, forms, kind) if save else None
    if saved is not None and q.is_cuda and kind.unprepared(device):
        prepare(q, k, v, saved)
    kind.forward(q, k, v, *forms, out, state)
    return out, saved


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() and not x.is_neg() else x.detach().resolve_neg().contiguous()


def _of_few(q: Tensor, k: Tensor, v: Tensor, forms: tuple[Tensor, ...], kind: Kind) -> Tensor:
    """`forward` of few queries: their scores, the mapping of rows, and the values, read by enough programs for the device."""
    n, m, d, e, repeat, room, sees, per_head, *_ = kind.numbers
    heads, groups, device = kind.heads_queries[0], k.shape[:-2].numel(), q.device
    size, single = repeat * n, q.dtype == torch.float32
    keys = 32 if single else 64
    blocks = -(-m // keys)
    given = iter(forms)
    lengths, spans, bias, _, *learned = (next(given) if x else None for x in kind.has)
    x = torch.empty(heads, n, m + (learned[2] is not None), dtype=torch.float32, device=device)
    bits = sum(bit for bit, form in zip((1, 2, 4), learned) if form is not None)
    scored, weighed = _starters_of_few(size, keys, d, e, single, spans is not None, bits)
    lengths = rows.no_lengths(device) if lengths is None else lengths
    programs, numbers = groups * -(-x.shape[2] // keys), (n, m, d, repeat, room, sees, per_head, kind.scale)
    scored.go(programs, q, k, lengths, *(q if y is None else y for y in (spans, *learned)), x, *numbers)
    if bias is not None:
        scores = x.view(*kind.lead, n, -1)[..., :m]
        scores.masked_fill_(bias == 0, -torch.inf) if bias.dtype == torch.uint8 else scores.add_(bias)
    op, params = ("sparsemax", {"gamma": 1.0}) if kind.alpha == 2 else ("entmax", {"alpha": kind.alpha})
    p, _ = rows.OPS[op].forward(x, **params)
    turns = max(1, groups * blocks // (2 * _FEW))
    runs = -(-blocks // turns)
    # the parts of runs are added up in float32
    shape, dtype = ((*q.shape[:-1], e), q.dtype) if runs == 1 else ((groups, runs, size, e), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=device)
    weighed.go(groups * runs, p, v, out, x.shape[2], m, e, size, room, turns)
    return out if runs == 1 else out.sum(1).to(q.dtype).view(*q.shape[:-1], e)


_prepared: set[tuple[int, int]] = set()  # the kinds of calls whose gradients' kernels are compiled


def prepare(q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> None:
    """Compile the kernels of `gradients` while the forward kernel is compiled: without values, on the meta device."""
    q_, k_, v_, state, *forms = (x.detach().to("meta") for x in (q, k, v, saved.state, *saved.forms))
    with torch.cuda.device(q.get_device()):
        gradients(q_.new_empty(*q.shape[:-1], v.shape[-1]), q_, k_, v_, Saved(state, tuple(forms), saved.kind))


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None) -> Gradients:
    """The gradients for the q, k, v of `forward` in their dtype, and in float32 those of the forms and of the bias ``of``, if given.

    grad_out is contiguous.
    """
    state, forms, kind = saved
    dq, of_k, of_v = torch.empty_like(q), k.shape, v.shape
    if kind.parts == 1:
        dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v))
    else:
        parts = of_k[:-2].numel(), kind.parts
        dk, dv = (x.new_empty(*parts, *x.shape[-2:], dtype=torch.float32) for x in (k, v))
    k, v, _ = together(k, v)
    given = grad_out.resolve_neg() if grad_out.is_neg() else grad_out, q, k, v, *forms, state
    if kind.short:
        kind.of_keys(*given, dq, dk, dv)
    else:
        along = torch.empty(kind.along, dtype=torch.float32, device=q.device)
        dforms = along.new_empty(4, *kind.heads_queries) if kind.learned else along
        kind.of_queries(*given, along, dq, *([dforms] if kind.learned else []))
        kind.of_keys(*given, along, dk, dv)
    if kind.parts > 1:
        dk, dv = (x.sum(1).to(q.dtype).view(shape) for x, shape in ((dk, of_k), (dv, of_v)))
    if of is None and not kind.learned:
        return Gradients(dq, dk, dv, None, None)
    dbias = None if of is None else _of_bias(given, along, kind, of)
    if not kind.learned:
        return Gradients(dq, dk, dv, None, dbias)
    powers, *has = kind.has[3:]
    summed = (None if y is None else x.sum(1) for x, y in zip(dforms[1:], (*has[1:], powers)))
    dslopes, dsinks, dalphas = summed
    dscales = None if has[0] is None else dforms[0]
    return Gradients(dq, dk, dv, dalphas, dbias, dscales, dslopes, dsinks)


def _of_bias(given: tuple[Tensor, ...], along: Tensor, kind: Kind, of: Tensor) -> Tensor:
    """The gradient of the bias ``of``. given: what the other backward kernels get before what they write."""
    from .attention_kernels import attend_bias_backward

    matrices, over = _sharing(of, kind.lead)
    (_, n), m = kind.heads_queries, given[2].shape[-2]
    dbias = torch.empty(len(matrices), 1 if over else n, m, dtype=torch.float32, device=of.device)
    programs = len(matrices) * -(-m // kind.block[1]) * (1 if over else -(-n // kind.block[0]))
    start = rows.starter(attend_bias_backward, OVER=over, **kind.constants)
    places = (0, 1, 2, 3, *_places(kind.has, 4, 1), len(given) - 1)
    tensors = (given[i] if i >= 0 else rows.no_lengths(of.device) for i in places)
    start.go(programs, *tensors, matrices, along, dbias, *kind.numbers, matrices.shape[1])
    return (dbias if of.shape[-1] == m else dbias.sum(-1)).view(of.shape)


def _sharing(of: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, bool]:
    """The heads ``[matrices, heads]`` that share a matrix of a bias, and whether all queries share its rows."""
    shape = (*[1] * (len(lead) + 2 - of.ndim), *of.shape)
    own = [i for i in range(len(lead)) if shape[i] > 1]
    order = [*own, *(i for i in range(len(lead)) if i not in own)]
    heads = torch.arange(math.prod(lead), device=of.device).view(lead).permute(order)
    return heads.reshape(math.prod(shape[i] for i in own), -1).contiguous(), shape[-2] == 1


def _ends(mask: Tensor, lengths: Tensor | None, lead: tuple[int, ...]) -> Tensor:
    """The lengths after which a mask of keys, the same for all queries, hides everything: blocks there are skipped."""
    ends = (mask * torch.arange(1, mask.shape[-1] + 1, device=mask.device)).amax(-1)
    ends = ends.squeeze(-1) if mask.ndim > 1 else ends
    ends = ends.expand(lead).reshape(-1).contiguous()
    return ends if lengths is None else lengths.repeat_interleave(len(ends) // len(lengths)).minimum(ends)


_RULES = {2.0: "SPARSEMAX", 1.5: "ENTMAX15"}
_NONE: tuple[Any, ...] = (None,) * len(FORMS), None, None, None
_NO_STEPS = (1, 1, 0, 0, 0, 0, 0)  # of a bias that is not given


@functools.lru_cache(1024)
def _steps(sizes: tuple[int, ...], strides: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...] | None:
    """size1, size2, s0, s1, s2, row and key of a bias, see ``attention_kernels``; None if its heads need more than three steps."""
    extra = len(lead) + 2 - len(sizes)
    *own, row, last = (1,) * extra + tuple(sizes)
    *steps, by, key = (0,) * extra + strides
    found = rows._layout((*own, last), (*steps, key), (*lead, last))
    return found and (*found[:-1], by if row > 1 else 0, found[-1])


def _places(has: tuple[torch.dtype | None, ...], first: int, q: int) -> tuple[int, ...]:
    """Which of a kernel's tensors each form is, if those that are given begin with the ``first``; others are ``q`` or, for lengths, -1."""
    return tuple(
        first + sum(x is not None for x in has[:i]) if has[i] is not None else q if i else -1 for i in range(len(has))
    )


class Kind:
    """What calls share whose sizes, dtypes, numbers and forms are the same: all that need not be found out again.

    most: as many keys may be `short`. has: the dtypes of the `FORMS`, None for one that is not given. lengths and spans: how many there are.
    layout: the shape and the strides of the bias.
    """

    __slots__ = (
        "along", "alpha", "block", "constants", "copies", "ends", "few", "forward", "has", "heads_queries", "lead", "learned",
        "numbers", "of_keys", "of_queries", "parts", "ready", "scale", "shape", "short", "state",
    )  # fmt: skip

    def __init__(
        self, a: torch.Size, b: torch.Size, c: torch.Size, room: int, dtype: torch.dtype, device: int, save: bool, most: int,
        lead: tuple[int, ...], alpha: float, scale: float, causal: bool, has: tuple[torch.dtype | None, ...], lengths: int | None,
        spans: int | None, layout: tuple[tuple[int, ...], tuple[int, ...]] | None,
    ):  # fmt: skip
        heads, groups, n, m, d, e = _sizes(a, b, c)
        powers, scales, slopes, sinks = learned = [x is not None for x in has[3:]]
        biased = 0 if layout is None else 2 if has[2] == torch.uint8 else 1
        block = None
        if heads and 0 < m <= most and 0 < n <= most and not (biased == 1 or any(learned)):
            block = _short(m, d, e, dtype)
        self.short = block is not None
        self.few = (
            not (self.short or save or powers) and 0 < m < rows._LONGEST and heads * n <= _DECODED[dtype] * groups
        )
        # a mask of keys, the same for all queries
        self.ends = (
            biased == 2
            and not self.short
            and layout is not None
            and (*layout[0][-2:-1], 1)[0] == 1
            and layout[0][-1] == m
        )
        if self.ends:
            has, lengths = (torch.int64, *has[1:]), heads
        steps = _NO_STEPS if layout is None else _steps(*layout, lead)
        self.copies = steps is None and not self.few
        if layout is not None and steps is None:  # of the copy
            *_, row, last = layout[0]
            steps = 1, 1, row * last, 0, 0, last if row > 1 else 0, 1 if last > 1 else 0
        sees = (1 if causal else 0) + (2 * (heads // lengths) if lengths else 0)
        # `sees` is an argument, not a constant, so that one kernel is compiled for causal attention, padding, both and neither.
        # The factor of the scores is (alpha - 1) scale; where each head has its own r, it divides the factor.
        factors = (scale, 0.0) if powers else (scale * (alpha - 1), 1 / (alpha - 1))
        repeat = heads // max(groups, 1)
        per_head = 2 * n if spans is not None and spans > 1 else 0
        self.numbers = n, m, d, e, repeat, room, sees, per_head, *steps, *factors  # type: ignore[misc]
        self.lead, self.has, self.learned, self.heads_queries = lead, has, any(learned), (heads, n)
        self.alpha, self.scale = alpha, scale
        if self.few:
            return
        laden, newer = (
            bool(biased) or powers or scales or slopes,
            dtype == torch.float32 and rows.capability(device) >= (9, 0),
        )
        self.block = block = block or _block(d, e, dtype, laden, biased == 1, newer)
        blocks, key_blocks = -(-n // block[0]), -(-m // block[1])
        places = heads * blocks * key_blocks  # in a list of blocks, and the number of their flags
        self.state = 2 * heads * n if self.short else heads * n * (e + 2 if save else 2) + places + -(-places // 4)
        self.along, self.shape = heads * n + places, None if d == e else (*a[:-1], e)
        self.parts = repeat if groups * key_blocks < _FEW else 1
        rule = "EACH" if powers else _RULES.get(alpha, "ANY")
        kind = rule, spans is not None, biased, scales + 2 * slopes + 4 * sinks, block, d, e, dtype
        many = sum(x is not None for x in has)
        (start,) = _of_kind(*kind, save, False, self.short)
        self.forward = start.fixed(heads * blocks, (0, 1, 2, *_places(has, 3, 0), 3 + many, 4 + many), self.numbers)
        self.ready = False
        if not save:
            return
        *of_queries, of_keys = _of_kind(*kind, True, True, self.short)
        self.constants = of_keys.constants
        given, first = (0, 1, 2, 3, *_places(has, 4, 1), 4 + many), 5 + many  # the first that is written
        numbers, programs = (*self.numbers, scale), groups * self.parts * (1 if self.short else key_blocks)
        self.of_keys = of_keys.fixed(programs, (*given, first, first + 1, first + 2), (*numbers, self.parts))
        if of_queries:
            self.constants = of_queries[0].constants
            written = first, first + 1, first + 2 if self.learned else first
            self.of_queries = of_queries[0].fixed(heads * blocks, (*given, *written), numbers)

    def unprepared(self, device: int) -> bool:
        """True once for all kinds that share kernels: those of the gradients are to be compiled beside the forward's."""
        if self.ready:
            return False
        self.ready = True
        many = len(_prepared)
        _prepared.add((id(self.constants), device))
        return len(_prepared) > many


_kind = functools.lru_cache(4096)(Kind)


@functools.lru_cache(1024)
def _of_kind(
    rule: str, spans: bool, bias: int, forms: int, block: tuple[int, int], d: int, e: int, dtype: torch.dtype, save: bool, backward: bool, small: bool,
) -> tuple[rows.Starter, ...]:  # fmt: skip
    from . import attention_blocks, attention_kernels, short_kernels

    shared = {"RULE": getattr(attention_blocks, rule).value, "SPANS": spans, "BIAS": bias, "FORMS": forms}
    shared |= {"ROWS": block[0], "KEYS": block[1], "WIDE": _whole(d, e)}
    single = dtype == torch.float32
    if small:
        many = backward and block[1] > 64  # with 4 warps, Triton 3.6 spills 824 bytes
        shared |= {"num_warps": 8 if many or block[1] * max(d, e) > (2048 if single else 4096) else 4, "num_stages": 1}
        return (rows.starter(short_kernels.short_backward if backward else short_kernels.short_forward, **shared),)
    shared["num_warps"] = 8 if single or bias or rule == "EACH" or max(d, e) > 128 else 4
    if not backward:
        return (rows.starter(attention_kernels.attend_forward, SAVE=save, **shared, num_stages=3),)
    shared["num_stages"] = 1 if single else 2  # more than that spills registers
    split = 1 + (single and block[0] == 64)  # the same
    of_keys = rows.starter(attention_kernels.attend_keys_backward, **shared, SPLIT=split)
    return rows.starter(attention_kernels.attend_queries_backward, **shared), of_keys


@functools.lru_cache(1024)
def _starters_of_few(size: int, keys: int, d: int, e: int, single: bool, spans: bool, forms: int) -> list[rows.Starter]:
    """What starts `decode_scores` and `decode_values` for the queries of a group."""
    from . import short_kernels as few

    warps = 8 if single or max(d, e) > 128 else 4
    both = {"ROWS": max(16, 1 << (size - 1).bit_length()), "KEYS": keys, "WIDE": _whole(d, e), "num_warps": warps}
    return [rows.starter(few.decode_scores, SPANS=spans, FORMS=forms, **both), rows.starter(few.decode_values, **both)]


@functools.lru_cache(4096)
def _sizes(a: torch.Size, b: torch.Size, c: torch.Size) -> tuple[int, int, int, int, int, int]:
    """Heads and groups of q, k and v of these shapes, the numbers of queries and keys, and the channels of keys and values."""
    return a[:-2].numel(), b[:-2].numel(), a[-2], c[-2], a[-1], c[-1]


def together(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
    """k and v, and how many rows their groups are apart in memory; only memory in another order is copied."""
    if k.is_contiguous() and v.is_contiguous() and not (k.is_neg() or v.is_neg()):
        return k, v, k.shape[-2]
    k, v = (x.detach().resolve_neg().reshape(-1, *x.shape[-2:]) for x in (k, v))
    room = k.stride(0) // k.shape[2]
    d, e = k.shape[2], v.shape[2]
    if k.stride() == (room * d, d, 1) and v.stride() == (room * e, e, 1):
        return k, v, room
    return k.contiguous(), v.contiguous(), k.shape[1]


def _whole(d: int, e: int) -> int:
    """The channels of all blocks of a kernel: one power of two.

    On an H200 (Triton 3.6), kernels in float32 whose blocks differed, by 16 and 32 channels or 32 and 16 more, gave wrong values.
    A likely cause: Triton 3.6 and 3.7 fail there with some kernels of several products (triton-lang/triton, 10486 and 11366).
    """
    return max(16, 1 << (max(d, e) - 1).bit_length())
