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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import Gradients, layout
from . import devices

ALPHAS = (1.1, 2.0)  # for these alphas, float32 is precise enough
WIDEST = 256  # maximum channels; wider blocks do not fit into the memory of a multiprocessor
# Up to this many queries of a group, without gradients, their scores are stored, see `_of_few`
_DECODED = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
# Up to this many queries and keys, all keys fit into one block, which has kernels of its own, see ``short_kernels``
SHORT = 128
SHORT_KEYS = (32, 64, 128)  # of such a block: few sizes, since each is compiled
TENSORS = 8  # number of tensors in `Saved`
_FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys
_LARGEST = {torch.float32: 64 * 64, torch.float16: 128 * 128, torch.bfloat16: 128 * 128}  # keys times channels


class Saved(NamedTuple):
    """Data for the backward: `TENSORS` tensors, then numbers.

    They are what the forward kernel wrote, and the forms, which decide which keys a query sees, and their scores.
    """

    state: Tensor  # float32, see `attention_blocks.parts_of`; empty before the forward
    lengths: Tensor | None
    spans: Tensor | None
    bias: Tensor | None  # -inf where the mask hides a key; or uint8, the mask alone
    powers: Tensor | None  # float32 [H], 1 / (alpha - 1) if each head has its own
    scales: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None
    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    block: tuple[int, int]
    sizes: tuple[int, int, int, int]  # heads, queries, keys, channels of values
    short: bool = False  # computed by ``short_kernels``


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

    given: lengths, spans, alphas (float ``[H]``, in place of alpha), bias, mask (added to the bias as -inf), scales, slopes and sinks.
    lead: H before heads were merged. q is contiguous; all three may have more dimensions in the place of H and G, which the result then has, too.
    """
    heads, groups, n, m, d, e = _sizes(q.shape, k.shape, v.shape)
    k, v, room = together(k, v)
    lead = lead or (heads,)
    lengths = spans = bias = mask = powers = scales = slopes = sinks = None
    if given:
        own = given.get
        each = map(own, ("lengths", "spans", "scales", "slopes", "sinks"))
        lengths, spans, scales, slopes, sinks = (None if x is None else x.detach().contiguous() for x in each)
        mask, bias, alphas = own("mask"), own("bias"), own("alphas")
        bias = None if bias is None else bias.detach().resolve_neg()
        powers = None if alphas is None else (1 / (alphas.detach().double() - 1)).float()
    learned = not (bias is powers is scales is slopes is sinks is None)
    most = min(SHORT, devices.measured(q.get_device())[0]) if q.is_cuda else SHORT
    block = _short(m, d, e, q.dtype) if heads and 0 < m <= most and 0 < n <= most and not learned else None
    small = block is not None
    if not (small or mask is None):
        lengths = _ends(mask, lengths, lead, m)
    few = not (small or save) and powers is None and 0 < m < rows._LONGEST
    if few and heads * n <= _DECODED[q.dtype] * groups:
        forms = lengths, spans, None, None, scales, slopes, sinks
        saved = Saved(q, *forms, lead, alpha, scale, causal, (0, 0), (heads, n, m, e))
        return _of_few(q, k, v, room, bias, mask, saved), None
    if block is None:
        laden = not (powers is scales is slopes is bias is mask is None)
        newer = q.dtype == torch.float32 and rows.capability(q.get_device()) >= (9, 0)
        block = _block(d, e, q.dtype, laden, bias is not None, newer)
    if mask is not None:
        bias = mask.view(torch.uint8) if bias is None else torch.where(mask, bias, -torch.inf)
    out = torch.empty_like(q) if e == d else q.new_empty(*q.shape[:-1], e)
    blocks, key_blocks = -(-n // block[0]), -(-m // block[1])
    places = heads * blocks * key_blocks  # in a list of blocks, and the number of their flags
    size = 2 * heads * n if small else heads * n * (e + 2 if save else 2) + places + -(-places // 4)
    state = torch.empty(size, dtype=torch.float32, device=q.device)
    forms = lengths, spans, bias, powers, scales, slopes, sinks
    saved = Saved(state, *forms, lead, alpha, scale, causal, block, (heads, n, m, e), small)
    visible, numbers = _visible(q, saved)
    (start,) = _starters(q, saved, save, False)
    if save and q.is_cuda and (id(start), q.device) not in _prepared:
        _prepared.add((id(start), q.device))
        prepare(q, k, v, saved)
    tensors = q, k, v, *visible, out, state
    sizes = n, m, d, e, heads // max(groups, 1), room, *numbers
    if not small and (found := devices.lists(q, k, v, saved, start)) is not None:
        programs, listed, lists, start = found
        listed.go(programs, *tensors, lists, *sizes, heads)
    start.go(heads * blocks, *tensors, *sizes)
    return out, saved if save else None


def _of_few(
    q: Tensor, k: Tensor, v: Tensor, room: int, bias: Tensor | None, mask: Tensor | None, saved: Saved
) -> Tensor:
    """`forward` of few queries: their scores, the mapping of rows, and the values, read by enough programs for the device."""
    (heads, n, m, e), d = saved.sizes, q.shape[-1]
    groups, device = k.shape[:-2].numel(), q.device
    size, single = heads // groups * n, q.dtype == torch.float32
    keys = 32 if single else 64
    blocks = -(-m // keys)
    x = torch.empty(heads, n, m + (saved.sinks is not None), dtype=torch.float32, device=device)
    scored, weighed = _starters_of_few(size, keys, d, e, single, saved.spans is not None, _bits(saved))
    (lengths, spans, _, _, _, *learned), (sees, per_head, *_) = _visible(q, saved)
    programs, numbers = groups * -(-x.shape[2] // keys), (n, m, d, heads // groups, room, sees, per_head, saved.scale)
    scored.go(programs, q, k, lengths, spans, *learned, x, *numbers)
    if bias is not None:
        x.view(*saved.lead, n, -1)[..., :m].add_(bias)
    if mask is not None:
        x.view(*saved.lead, n, -1)[..., :m].masked_fill_(~mask, -torch.inf)
    op, params = ("sparsemax", {"gamma": 1.0}) if saved.alpha == 2 else ("entmax", {"alpha": saved.alpha})
    p, _ = rows.OPS[op].forward(x, **params)
    turns = max(1, groups * blocks // (2 * _FEW))
    runs = -(-blocks // turns)
    # the parts of runs are added up in float32
    shape, dtype = ((*q.shape[:-1], e), q.dtype) if runs == 1 else ((groups, runs, size, e), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=device)
    weighed.go(groups * runs, p, v, out, x.shape[2], m, e, size, room, turns)
    return out if runs == 1 else out.sum(1).to(q.dtype).view(*q.shape[:-1], e)


_prepared: set[tuple[int, torch.device]] = set()  # the kinds of calls whose gradients' kernels are compiled


def prepare(q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> None:
    """Compile the kernels of `gradients` while the forward kernel is compiled: without values, on the meta device."""
    given: Any = q, k, v, *saved[:TENSORS]
    without: Any = (None if x is None else x.detach().to("meta") for x in given)
    q_, k_, v_, *kept = without
    with torch.cuda.device(q.get_device()):
        gradients(q_.new_empty(*q.shape[:-1], v.shape[-1]), q_, k_, v_, Saved(*kept, *saved[TENSORS:]))


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None) -> Gradients:
    """The gradients for the q, k, v of `forward` in their dtype, and in float32 those of the forms and of the bias ``of``, if given.

    grad_out is contiguous.
    """
    heads, groups, n, m, d, e = _sizes(q.shape, k.shape, v.shape)
    blocks, key_blocks = -(-n // saved.block[0]), -(-m // saved.block[1])
    repeat = heads // max(groups, 1)
    dq, (k, v, room) = torch.empty_like(q), together(k, v)
    parts = repeat if groups * key_blocks < _FEW else 1
    if parts == 1 and k.is_contiguous():
        dk, dv = torch.empty_like(k), torch.empty_like(v)
    else:
        wide = torch.float32 if parts > 1 else k.dtype
        dk, dv = (x.new_empty(groups * parts, m, x.shape[-1], dtype=wide) for x in (k, v))
    visible, numbers = _visible(q, saved)
    given = grad_out, q, k, v, *visible, saved.state
    sizes = n, m, d, e, repeat, room, *numbers, saved.scale
    *of_queries, of_keys = _starters(q, saved, True, True)
    learned = saved.scales, saved.slopes, saved.sinks, saved.powers
    some = any(x is not None for x in learned)
    if saved.short:
        of_keys.go(groups * parts, *given, dq, dk, dv, *sizes, parts)
    else:
        along = torch.empty(heads * (n + blocks * key_blocks), dtype=torch.float32, device=q.device)
        dforms = torch.empty(4, heads, n, dtype=torch.float32, device=q.device) if some else along
        of_queries[0].go(heads * blocks, *given, along, dq, dforms, *sizes)
        of_keys.go(groups * parts * key_blocks, *given, along, dk, dv, *sizes, parts)
    if parts > 1:
        dk, dv = (x.view(groups, parts, m, x.shape[-1]).sum(1).to(q.dtype) for x in (dk, dv))
    dbias = None
    if of is not None:
        from .attention_kernels import attend_bias_backward

        matrices, over = _sharing(of, saved.lead)
        dbias = torch.empty(len(matrices), 1 if over else n, m, dtype=torch.float32, device=q.device)
        programs = len(matrices) * key_blocks * (1 if over else blocks)
        start = rows.starter(attend_bias_backward, OVER=over, **of_queries[0].constants)
        start.go(programs, *given, matrices, along, dbias, *sizes[:-1], matrices.shape[1])
        dbias = (dbias if of.shape[-1] == m else dbias.sum(-1)).view(of.shape)
    if not some:
        return Gradients(dq, dk, dv, None, dbias)
    each = zip(dforms, learned)
    dscales, dslopes, dsinks, dalphas = (None if y is None else x if y is saved.scales else x.sum(1) for x, y in each)
    return Gradients(dq, dk, dv, dalphas, dbias, dscales, dslopes, dsinks)


def _sharing(of: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, bool]:
    """The heads ``[matrices, heads]`` that share a matrix of a bias, and whether all queries share its rows."""
    shape = (*[1] * (len(lead) + 2 - of.ndim), *of.shape)
    own = [i for i in range(len(lead)) if shape[i] > 1]
    order = [*own, *(i for i in range(len(lead)) if i not in own)]
    heads = torch.arange(math.prod(lead), device=of.device).view(lead).permute(order)
    return heads.reshape(math.prod(shape[i] for i in own), -1).contiguous(), shape[-2] == 1


def _ends(mask: Tensor, lengths: Tensor | None, lead: tuple[int, ...], m: int) -> Tensor | None:
    """The lengths [H] after which a mask of keys, the same for all queries, hides everything: blocks there are skipped."""
    if (mask.ndim > 1 and mask.shape[-2] > 1) or mask.shape[-1] != m:
        return lengths
    ends = (mask * torch.arange(1, m + 1, device=mask.device)).amax(-1)
    ends = ends.squeeze(-1) if mask.ndim > 1 else ends
    ends = ends.expand(lead).reshape(-1).contiguous()
    return ends if lengths is None else lengths.minimum(ends)


_RULES = {2.0: "SPARSEMAX", 1.5: "ENTMAX15"}


def _starters(q: Tensor, saved: Saved, save: bool, backward: bool) -> tuple[rows.Starter, ...]:
    """What starts the kernels, the same for the same kind of call."""
    rule = _RULES.get(saved.alpha, "ANY") if saved.powers is None else "EACH"
    biased = 0 if saved.bias is None else 2 if saved.bias.dtype == torch.uint8 else 1
    kind = rule, saved.spans is not None, biased, _bits(saved)
    return _of_kind(*kind, saved.block, q.shape[-1], saved.sizes[3], q.dtype, save, backward, saved.short)


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
        return (rows.starter(attention_kernels.attend_forward, SAVE=save, MARKED=False, **shared, num_stages=3),)
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


@functools.lru_cache(64)
def no_lengths(device: torch.device) -> Tensor:
    """Stands for lengths that are not given; it is not read. It has no memory, which could be that of a CUDA graph."""
    return torch.empty(0, dtype=torch.int64, device=device)


def _bits(saved: Saved) -> int:
    """FORMS: 1 with scales, 2 with slopes, 4 with sinks."""
    return (saved.scales is not None) + 2 * (saved.slopes is not None) + 4 * (saved.sinks is not None)


def _visible(q: Tensor, saved: Saved) -> tuple[tuple[Tensor, ...], tuple[float, ...]]:
    """The tensors of the forms (q for those that are not given), and the numbers: steps, the factor of the scores, and r.

    The factor is (alpha - 1) scale; where each head has its own r, it divides the factor.
    """
    alpha, scale = saved.alpha, saved.scale
    forms: Any = saved[1:TENSORS]
    lengths, spans, bias, powers, scales, slopes, sinks = forms
    # an argument, not a constant, so that one kernel is compiled for causal attention, padding, both and neither
    sees = (1 if saved.causal else 0) + (0 if lengths is None else 2)
    per_head = 0 if spans is None or len(spans) == 1 else 2 * q.shape[-2]
    factors = (scale * (alpha - 1), 1 / (alpha - 1)) if powers is None else (scale, 0.0)
    if lengths is spans is bias is powers is scales is slopes is sinks is None:
        return (no_lengths(q.device), *(q,) * 7), (sees, 0, 0, 0, *factors)
    at, row, key = (q, 0, 0) if bias is None else layout(bias, saved.lead)
    tensors: list[Any] = [q if x is None else x for x in forms]
    tensors[0] = no_lengths(q.device) if lengths is None else lengths
    return (*tensors[:3], at, *tensors[3:]), (sees, per_head, row, key, *factors)


def _whole(d: int, e: int) -> int:
    """The channels of all blocks of a kernel: one power of two.

    On an H200 (Triton 3.6), kernels in float32 whose blocks differed, by 16 and 32 channels or 32 and 16 more, gave wrong values.
    A likely cause: Triton 3.6 and 3.7 fail there with some kernels of several products (triton-lang/triton, 10486 and 11366).
    """
    return max(16, 1 << (max(d, e) - 1).bit_length())
