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

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import Gradients
from . import kinds
from .kinds import Kind

ALPHAS = (1.1, 2.0)  # for these alphas, float32 is precise enough
WIDEST = 256  # maximum channels; wider blocks do not fit into the memory of a multiprocessor


class Saved(NamedTuple):
    """Data for the backward."""

    state: Tensor  # float32, written by the forward kernel, see `attention_blocks.parts_of`
    forms: tuple[Tensor, ...]  # those that were given, see `kinds.FORMS`
    kind: Kind


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
    forms: tuple[Tensor, ...] = ()
    known: tuple[Any, ...] = kinds.NONE
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
    kind = kinds.kind(
        *shapes, room, q.dtype, device, save, (kinds.SHORT, kinds.LISTED), lead, alpha, scale, causal, *known
    )
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
    if kind.lists:
        kind.listed(q, k, v, *forms, out, state, q.new_empty(kind.lists, dtype=torch.float32))
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
    scored, weighed = kinds.of_few(size, keys, d, e, single, spans is not None, bits)
    lengths = rows.no_lengths(device) if lengths is None else lengths
    programs, numbers = groups * -(-x.shape[2] // keys), (n, m, d, repeat, room, sees, per_head, kind.scale)
    scored.go(programs, q, k, lengths, *(q if y is None else y for y in (spans, *learned)), x, *numbers)
    if bias is not None:
        scores = x.view(*kind.lead, n, -1)[..., :m]
        scores.masked_fill_(bias == 0, -torch.inf) if bias.dtype == torch.uint8 else scores.add_(bias)
    op, params = ("sparsemax", {"gamma": 1.0}) if kind.alpha == 2 else ("entmax", {"alpha": kind.alpha})
    p, _ = rows.OPS[op].forward(x, **params)
    turns = max(1, groups * blocks // (2 * kinds.FEW))
    runs = -(-blocks // turns)
    # the parts of runs are added up in float32
    shape, dtype = ((*q.shape[:-1], e), q.dtype) if runs == 1 else ((groups, runs, size, e), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=device)
    weighed.go(groups * runs, p, v, out, x.shape[2], m, e, size, room, turns)
    return out if runs == 1 else out.sum(1).to(q.dtype).view(*q.shape[:-1], e)


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
    places = (0, 1, 2, 3, *kinds.spread(kind.has, 4, 1), len(given) - 1)
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
