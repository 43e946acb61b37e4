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
from typing import Any

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import Gradients
from . import attention_arguments as args
from .attention_arguments import TENSORS, Saved

ALPHAS = (1.1, 2.0)  # for these alphas, float32 is precise enough
WIDEST = 256  # maximum channels; wider blocks do not fit into the memory of a multiprocessor
# Up to this many queries of a group, without gradients, their scores are stored; see ``decoding``
_DECODED = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
# Up to this many queries and keys, all keys fit into one block, which has kernels of its own, see ``short_kernels``
SHORT = 128
SHORT_KEYS = (32, 64, 128)  # of such a block: few sizes, since each is compiled
_LARGEST = {torch.float32: 64 * 64, torch.float16: 128 * 128, torch.bfloat16: 128 * 128}  # keys times channels


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


def _short(q: Tensor, n: int, m: int, d: int, e: int) -> tuple[int, int] | None:
    """`_block` for ``short_kernels``; None if they do not take n queries and m keys with d and e channels."""
    most = min(SHORT, measured(q.get_device())) if q.is_cuda else SHORT
    if not (0 < m <= most and 0 < n <= most and _fits(m, d, e, q.dtype)):
        return None
    keys = 32 if m <= 32 else 64 if m <= 64 else 128  # see `SHORT_KEYS`
    return 16 if keys > 64 and q.dtype == torch.float32 else 32, keys


@functools.lru_cache(4096)
def _fits(m: int, d: int, e: int, dtype: torch.dtype) -> bool:
    """Whether the registers hold a block of `_short`."""
    return max(d, e) <= 128 and next(x for x in SHORT_KEYS if m <= x) * args.whole(d, e) <= _LARGEST[dtype]


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

    given: lengths, spans, alphas (float ``[H]``, in place of alpha), bias, mask (added to the bias as -inf), scales, slopes and sinks.
    lead: H before heads were merged. q is contiguous; all three may have more dimensions in the place of H and G, which the result then has, too.
    """
    heads, groups, n, m, d, e = args.sizes(q.shape, k.shape, v.shape)
    k, v, room = args.together(k, v)
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
    block = None if learned or not heads else _short(q, n, m, d, e)
    small = block is not None
    if not (small or mask is None):
        lengths = _ends(mask, lengths, lead, m)
    few = not (small or save) and powers is None and 0 < m < rows._LONGEST
    if few and heads * n <= _DECODED[q.dtype] * groups:
        from . import decoding  # loads Triton

        forms = lengths, spans, None, None, scales, slopes, sinks
        saved = Saved(q, *forms, lead, alpha, scale, causal, (0, 0), (heads, n, m, e))
        return decoding.forward(q, k, v, room, bias, mask, saved), None
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
    visible, numbers = args.visible(q, saved)
    (start,) = _starters(q, saved, save, False)
    if save and q.is_cuda and (id(start), q.device) not in _prepared:
        _prepared.add((id(start), q.device))
        prepare(q, k, v, saved)
    start.go(heads * blocks, q, k, v, *visible, out, state, n, m, d, e, heads // max(groups, 1), room, *numbers)
    return out, saved if save else None


_prepared: set[tuple[int, torch.device]] = set()  # the kinds of calls whose gradients' kernels are compiled


def prepare(q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> None:
    """Compile the kernels of `gradients` while the forward kernel is compiled: without values, on the meta device."""

    def meta(x: Any) -> Any:
        return None if x is None else x.detach().to("meta")

    q_, k_, v_ = map(meta, (q, k, v))
    g, of = q_.new_empty(*q.shape[:-1], v.shape[-1]), Saved(*map(meta, saved[:TENSORS]), *saved[TENSORS:])
    gradients(g, q_, k_, v_, of, through=lambda starter: rows.launcher.ahead(starter, q.device))


def gradients(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None, through: Any = None
) -> Gradients:
    """The gradients for the q, k, v of `forward` in their dtype, and in float32 those of the forms and of the bias ``of``, if given.

    grad_out is contiguous. ``through`` gives what takes the place of a `Starter`, see `launcher.ahead`.
    """
    heads, groups, n, m, d, e = args.sizes(q.shape, k.shape, v.shape)
    blocks, key_blocks = -(-n // saved.block[0]), -(-m // saved.block[1])
    repeat = heads // max(groups, 1)
    dq, (k, v, room) = torch.empty_like(q), args.together(k, v)
    parts = repeat if groups * key_blocks < args.FEW else 1
    if parts == 1 and k.is_contiguous():
        dk, dv = torch.empty_like(k), torch.empty_like(v)
    else:
        wide = torch.float32 if parts > 1 else k.dtype
        dk, dv = (x.new_empty(groups * parts, m, x.shape[-1], dtype=wide) for x in (k, v))
    visible, numbers = args.visible(q, saved)
    given = grad_out, q, k, v, *visible, saved.state
    sizes = n, m, d, e, repeat, room, *numbers, saved.scale
    starters = _starters(q, saved, True, True)
    *of_queries, of_keys = starters if through is None else map(through, starters)
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
    kind = rule, saved.spans is not None, biased, args.bits(saved)
    return _of_kind(*kind, saved.block, q.shape[-1], saved.sizes[3], q.dtype, save, backward, saved.short)


@functools.lru_cache(1024)
def _of_kind(
    rule: str, spans: bool, bias: int, forms: int, block: tuple[int, int], d: int, e: int, dtype: torch.dtype, save: bool, backward: bool, small: bool,
) -> tuple[rows.Starter, ...]:  # fmt: skip
    from . import attention_blocks, attention_kernels, short_kernels

    kinds = {"RULE": getattr(attention_blocks, rule).value, "SPANS": spans, "BIAS": bias, "FORMS": forms}
    shared = {**kinds, "ROWS": block[0], "KEYS": block[1], "WIDE": args.whole(d, e)}
    single = dtype == torch.float32
    if small:
        shared |= {"num_warps": 8 if block[1] * max(d, e) > (2048 if single else 4096) else 4, "num_stages": 1}
        return (rows.starter(short_kernels.short_backward if backward else short_kernels.short_forward, **shared),)
    shared["num_warps"] = 8 if single or bias or rule == "EACH" or max(d, e) > 128 else 4
    if not backward:
        return (rows.starter(attention_kernels.attend_forward, SAVE=save, **shared, num_stages=3),)
    shared["num_stages"] = 1 if single else 2  # more than that spills registers
    split = 1 + (single and block[0] == 64)  # the same
    of_keys = rows.starter(attention_kernels.attend_keys_backward, **shared, SPLIT=split)
    return rows.starter(attention_kernels.attend_queries_backward, **shared), of_keys
