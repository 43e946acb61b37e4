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
import importlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import layout

ALPHAS = (1.1, 2.0)  # for these alphas, float32 is precise enough
WIDEST = 256  # maximum channels; wider blocks do not fit into the memory of a multiprocessor

TENSORS = 11  # number of tensors in `Saved`
_FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys
# Up to this many queries of a group, without gradients, their scores are stored; see ``decoding_kernels``
_DECODED = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}


class Saved(NamedTuple):
    """Data for the backward: `TENSORS` tensors, then numbers.

    They are each query's largest score, the threshold relative to it, the blocks with support, and the forms, which decide
    which keys a query sees, and their scores.
    """

    top: Tensor  # float32 [H, n], the maximum of (alpha - 1) scale q k'
    tau: Tensor  # float32 [H, n]
    flags: Tensor  # int8 [H, query blocks, key blocks]
    mean: Tensor  # float32 [H, n, e], the mean of v weighted by p^(2 - alpha)
    lengths: Tensor | None
    spans: Tensor | None
    bias: Tensor | None  # -inf where the mask hides a key
    powers: Tensor | None  # float32 [H], 1 / (alpha - 1) if each head has its own
    scales: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None
    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    block: tuple[int, int]


class Gradients(NamedTuple):
    """Gradients: of q, k and v in their dtype; in float32 of the bias, the alphas [H], and the scales, slopes and sinks."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    alphas: Tensor | None
    scales: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None


@functools.cache
def _kernels(name: str = "attention_kernels") -> Any:
    """The module, imported on first use, since it imports Triton."""
    return importlib.import_module(f"{__package__}.{name}")


def _block(q: Tensor, v: Tensor, laden: bool) -> tuple[int, int]:
    """The numbers of queries and keys of a block: of the sizes tried, the largest that fits into registers.

    laden: there are alphas, scales, slopes, a bias or a mask.
    """
    wide, single = max(q.shape[2], v.shape[2]), q.dtype == torch.float32
    size = (32 if single else 64) // (2 if wide > 128 else 1)
    fewer_keys = 96 < wide <= 128 if single else laden and wide <= 128
    return size, size // 2 if fewer_keys else size


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
    return rows.too_old(q) if rows._load() else "Triton is not installed"


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float,
    scale: float,
    causal: bool = False,
    save: bool = True,
    **given: Any,
) -> tuple[Tensor, Saved | None]:
    """q [H, n, d], k [G, m, d] and v [G, m, e]; out [H, n, e] has q's dtype. The groups of k and v need not be adjacent in memory.

    given: lengths, spans, alphas (float ``[H]``, in place of alpha), bias, mask (added to the bias as -inf), scales, slopes,
    sinks, lead, and block, the numbers of queries and keys computed together.
    """
    (heads, n, _), m, own = q.shape, k.shape[1], given.get
    lead, block = own("lead") or (heads,), own("block")
    k, v, room = _together(k, v)
    lengths, spans, scales, slopes, sinks = map(own, ("lengths", "spans", "scales", "slopes", "sinks"))
    mask, bias, alphas = own("mask"), own("bias"), own("alphas")
    if not (lengths is spans is scales is slopes is sinks is None):
        each = lengths, spans, scales, slopes, sinks
        lengths, spans, scales, slopes, sinks = (None if x is None else x.detach().contiguous() for x in each)
    if mask is not None:
        lengths = _ends(mask, lengths, lead, m)
    bias = None if bias is None else bias.detach().resolve_neg()
    powers = None if alphas is None else (1 / (alphas.detach().double() - 1)).float()
    most = _DECODED[q.dtype] * len(k)
    few = not save and block is None and alphas is None and heads * n <= most and 0 < m < rows._LONGEST
    block = _block(q, v, not (alphas is scales is slopes is bias is mask is None)) if block is None else block
    rest = lead, alpha, scale, causal, block
    if few:
        saved = Saved(q, q, q, q, lengths, spans, bias, powers, scales, slopes, sinks, *rest)
        return _decoded(q, k, v, room, mask, saved), None
    out = q.new_empty(heads, n, v.shape[2])
    blocks, key_blocks = -(-n // block[0]), -(-m // block[1])
    top = q.new_empty(heads, n, dtype=torch.float32)
    tau = torch.empty_like(top)
    mean = q.new_empty(heads, n, v.shape[2], dtype=torch.float32) if save else top
    if mask is not None:
        plain = torch.zeros((), dtype=torch.float16, device=q.device) if bias is None else bias
        bias = torch.where(mask, plain, -torch.inf)
    flags = q.new_empty(heads, blocks, key_blocks, dtype=torch.int8)
    saved = Saved(top, tau, flags, mean, lengths, spans, bias, powers, scales, slopes, sinks, *rest)
    visible, numbers = _visible(q, saved)
    arrays, sizes = (q, k, v, *visible, out, mean, top, tau, flags, _list(flags)), (*_sizes(q, k, v), room, *numbers)
    layers, start = 4 if alpha == 1.5 and alphas is None else 3, 0 if spans is not None and bias is None else 1
    kind = _constants(q, v, saved, stages=3)
    if save and q.is_cuda and (id(kind), q.device) not in _prepared:
        _prepared.add((id(kind), q.device))
        _prepare(q, k, v, saved)
    constants = {"SAVE": save, "LAYERS": layers, "START": start, **kind}
    rows.launch(_kernels().attend_forward, heads * blocks, *arrays, *sizes, **constants)
    return out, saved if save else None


_prepared: set[tuple[int, torch.device]] = set()  # the kinds of calls whose gradients' kernels are compiled


def _prepare(q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> None:
    """Compile the kernels of `gradients` while the forward kernel is compiled; without values, on the meta device."""

    def meta(x: Any) -> Any:
        return None if x is None else x.detach().to("meta")

    g, q_, k_, v_ = (meta(x) for x in (saved.mean, q, k, v))
    of = Saved(*map(meta, saved[:TENSORS]), *saved[TENSORS:])
    rows.launcher.ahead(q.device, lambda launch: gradients(g.to(q.dtype), q_, k_, v_, of, launch=launch))


def _decoded(q: Tensor, k: Tensor, v: Tensor, room: int, mask: Tensor | None, saved: Saved) -> Tensor:
    """`forward` of few queries: their scores, the mapping of rows, and the values, read by enough programs for the device."""
    (heads, n, d), (groups, m, e), decoding_kernels = q.shape, v.shape, _kernels("decoding_kernels")
    size, single = heads // groups * n, q.dtype == torch.float32
    keys = 32 if single else 64
    blocks = -(-m // keys)
    x = q.new_empty(heads, n, m + (saved.sinks is not None), dtype=torch.float32)
    scored, weighed = _of_decoding(size, keys, d, e, single)
    seen = {"CAUSAL": bool(saved.causal), "LENGTHS": saved.lengths is not None, "SPANS": saved.spans is not None}
    forms = [q if y is None else y for y in (saved.lengths, saved.spans, saved.scales, saved.slopes, saved.sinks)]
    numbers = n, m, d, heads // groups, room, _per_head(saved, n), saved.scale
    programs = groups * -(-x.shape[2] // keys)
    rows.launch(
        decoding_kernels.decode_scores, programs, q, k, *forms, x, *numbers, FORMS=_bits(saved), **seen, **scored
    )
    if saved.bias is not None or mask is not None:
        scores = x.view(*saved.lead, n, -1)[..., :m]
        if saved.bias is not None:
            scores += saved.bias
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
    op, params = ("sparsemax", {"gamma": 1.0}) if saved.alpha == 2 else ("entmax", {"alpha": saved.alpha})
    p, _ = rows.OPS[op].forward(x, **params)
    turns = max(1, groups * blocks // (2 * _FEW))
    runs = -(-blocks // turns)
    out = q.new_empty(groups, runs, size, e, dtype=torch.float32)
    sizes = x.shape[2], m, e, size, room, turns
    rows.launch(decoding_kernels.decode_values, groups * runs, p, v, out, *sizes, **weighed)
    return out.sum(1).view(heads, n, e).to(q.dtype)


@functools.lru_cache(1024)
def _of_decoding(size: int, keys: int, d: int, e: int, single: bool) -> tuple[dict[str, int], dict[str, int]]:
    """The constants of `decode_scores` and `decode_values` for the queries of a group, but for those of the forms."""
    warps = 8 if single or max(d, e) > 128 else 4
    both = {"ROWS": max(16, 1 << (size - 1).bit_length()), "KEYS": keys, "num_warps": warps}
    return _channels("D", d) | both, _channels("E", e) | both


def gradients(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None, launch: Any = None
) -> Gradients:
    """The gradients for the q, k, v of `forward`, of the forms, and of the bias ``of`` if it is given; grad_out [H, n, e] is contiguous.

    ``launch`` replaces that of the rows, see `launcher.ahead`.
    """
    launch = launch or rows.launch
    (heads, n, _), (groups, m, _), attention_kernels = q.shape, k.shape, _kernels()
    repeat = heads // max(groups, 1)
    k, v, room = _together(k, v)
    parts = repeat if groups * saved.flags.shape[2] < _FEW else 1
    wide = torch.float32 if parts > 1 else k.dtype
    dq, dk, dv = torch.empty_like(q), *(x.new_empty(groups * parts, *x.shape[1:], dtype=wide) for x in (k, v))
    learned = saved.scales, saved.slopes, saved.sinks, saved.powers
    some = any(x is not None for x in learned)
    along = torch.empty_like(saved.top)
    dforms = torch.empty(4, heads, n, dtype=torch.float32, device=q.device) if some else along
    visible, numbers = _visible(q, saved)
    given, places = (grad_out, q, k, v, *visible), _list(saved.flags)
    sizes = (*_sizes(q, k, v), room, *numbers)
    stages = 1 if q.dtype == torch.float32 else 2  # more than that spills registers
    constants, thresholds = _constants(q, v, saved, stages), (saved.top, saved.tau, saved.flags)
    _, blocks, key_blocks = saved.flags.shape
    arrays = *given, saved.mean, *thresholds, places, along, dq, dforms
    launch(attention_kernels.attend_queries_backward, heads * blocks, *arrays, *sizes, saved.scale, **constants)
    arrays = *given, *thresholds, places, along, dk, dv
    launch(
        attention_kernels.attend_keys_backward, len(dk) * key_blocks, *arrays, *sizes, saved.scale, parts, **constants
    )
    if parts > 1:
        dk, dv = (x.view(groups, parts, *x.shape[1:]).sum(1).to(q.dtype) for x in (dk, dv))
    dbias = None
    if of is not None:
        matrices, over = _sharing(of, saved.lead)
        dbias = torch.empty(len(matrices), 1 if over else n, m, dtype=torch.float32, device=q.device)
        programs, numbers = len(matrices) * key_blocks * (1 if over else blocks), (*sizes, matrices.shape[1])
        arrays = *given, *thresholds, matrices, along, dbias
        launch(attention_kernels.attend_bias_backward, programs, *arrays, *numbers, OVER=over, **constants)
        dbias = (dbias if of.shape[-1] == m else dbias.sum(-1)).view(of.shape)
    if not some:
        return Gradients(dq, dk, dv, dbias, None, None, None, None)
    each = zip(dforms, learned)
    dscales, dslopes, dsinks, dalphas = (None if y is None else x if y is saved.scales else x.sum(1) for x, y in each)
    return Gradients(dq, dk, dv, dbias, dalphas, dscales, dslopes, dsinks)


def _sharing(of: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, bool]:
    """The heads ``[matrices, heads]`` that share a matrix of a bias, and whether all queries share its rows."""
    shape = (*[1] * (len(lead) + 2 - of.ndim), *of.shape)
    own = [i for i in range(len(lead)) if shape[i] > 1]
    order = [*own, *(i for i in range(len(lead)) if i not in own)]
    heads = torch.arange(math.prod(lead), device=of.device).view(lead).permute(order)
    return heads.reshape(math.prod(shape[i] for i in own), -1).contiguous(), shape[-2] == 1


def _together(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
    """k and v, and how many rows their groups are apart in memory; only memory in another order is copied."""
    k, v = (x.detach().resolve_neg() if x.is_neg() else x for x in (k, v))
    room = k.stride(0) // k.shape[2]
    d, e = k.shape[2], v.shape[2]
    if k.stride() == (room * d, d, 1) and v.stride() == (room * e, e, 1):
        return k, v, room
    return k.detach().contiguous(), v.detach().contiguous(), k.shape[1]


def _ends(mask: Tensor, lengths: Tensor | None, lead: tuple[int, ...], m: int) -> Tensor | None:
    """The lengths [H] after which a mask of keys, the same for all queries, hides everything: blocks there are skipped."""
    if (mask.ndim > 1 and mask.shape[-2] > 1) or mask.shape[-1] != m:
        return lengths
    ends = (mask * torch.arange(1, m + 1, device=mask.device)).amax(-1)
    ends = ends.squeeze(-1) if mask.ndim > 1 else ends
    ends = ends.expand(lead).reshape(-1).contiguous()
    return ends if lengths is None else lengths.minimum(ends)


def _list(flags: Tensor) -> Tensor:
    return torch.empty(flags.shape, dtype=torch.int32, device=flags.device)


def _per_head(saved: Saved, n: int) -> int:
    return 0 if saved.spans is None or len(saved.spans) == 1 else 2 * n


def _bits(saved: Saved) -> int:
    """FORMS: 1 with scales, 2 with slopes, 4 with sinks."""
    return (saved.scales is not None) + 2 * (saved.slopes is not None) + 4 * (saved.sinks is not None)


def _visible(q: Tensor, saved: Saved) -> tuple[tuple[Tensor, ...], tuple[float, ...]]:
    """The tensors of the forms (q for those that are not given), and the numbers: steps, the factor of the scores, and r.

    The factor is (alpha - 1) scale; where each head has its own r, it divides the factor.
    """
    alpha = saved.alpha
    at, row, key = (q, 0, 0) if saved.bias is None else layout(saved.bias, saved.lead)
    tensors: list[Any] = [q if x is None else x for x in saved[4:TENSORS]]
    steps = (_per_head(saved, q.shape[1]), row, key)
    factors = (saved.scale, 0.0) if saved.powers is not None else (saved.scale * (alpha - 1), 1 / (alpha - 1))
    return (*tensors[:3], at, *tensors[3:]), (*steps, *factors)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.shape[0] // max(k.shape[0], 1)


def _channels(name: str, width: int) -> dict[str, int]:
    """The channels of a block as one power of two from 16 or a sum of two: 80 are 64 and 16."""
    first = max(16, 1 << (width.bit_length() - 1))
    second = max(16, 1 << (width - first - 1).bit_length()) if width > first else 0
    return {name: 2 * first, f"{name}2": 0} if second == first else {name: first, f"{name}2": second}


def _constants(q: Tensor, v: Tensor, saved: Saved, stages: int) -> dict[str, Any]:
    given = (x is not None for x in (saved.lengths, saved.spans, saved.bias, saved.powers))
    widths, alpha = (q.shape[2], v.shape[2], q.dtype), saved.alpha
    kind = None if alpha not in (1.5, 2.0) else alpha  # all others share kernels
    return _of_kind(*given, kind, bool(saved.causal), _bits(saved), saved.block, *widths, stages, rows._INTERPRETED)


@functools.lru_cache(1024)
def _of_kind(
    lengths: bool, spans: bool, bias: bool, powers: bool, alpha: float | None, causal: bool, forms: int, block: tuple[int, int],
    d: int, e: int, dtype: torch.dtype, stages: int, interpreted: bool,
) -> dict[str, Any]:  # fmt: skip
    from . import attention_blocks

    rule = "EACH" if powers else {2.0: "SPARSEMAX", 1.5: "ENTMAX15", None: "ANY"}[alpha]
    seen = {"CAUSAL": causal, "LENGTHS": lengths, "SPANS": spans}
    kinds = {"RULE": getattr(attention_blocks, rule).value, "BIAS": int(bias), "FORMS": forms}
    sizes = {"ROWS": block[0], "KEYS": block[1], "CHUNK": 16 if interpreted else 256}
    channels = {**_channels("D", d), **_channels("E", e)}
    wide = dtype == torch.float32 or bias or powers or max(d, e) > 128
    return {**seen, **kinds, **sizes, **channels, "num_warps": 8 if wide else 4, "num_stages": stages}
