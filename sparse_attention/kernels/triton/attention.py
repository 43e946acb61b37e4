"""Fused attention on the GPU: ``entmax(scale q k') v`` without the matrix of scores; kernels: ``attention_kernels``.

The contract is that of ``kernels.native.attention``, for float32, float16 and bfloat16, with forms that are channels there:

    ``scales``   float32 [H, n], factors of each query's scores
    ``slopes``   float32 [H]: ``slopes[h] * |i + m - n - j|`` is subtracted from the score of query i and key j
    ``sinks``    float32 [H], the score of one more key, whose value is 0

All of them have gradients. Scores, thresholds and sums are float32. For half-precision inputs, as in flash attention, the
weights are rounded to half precision before they are multiplied by the values, and the gradients of the scores before they
are multiplied by queries and keys. No call here waits for the device; with one alpha per head, `sa.sparse_attention` has
read their range before. Results are deterministic.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import layout

ALPHAS = (1.1, 2.0)  # where float32 is enough
WIDEST = 256  # the most channels; wider blocks do not fit into the memory of a multiprocessor

_HERE: Any = object()
_FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys
_DECODED = (
    64  # up to this many queries of a group, without gradients, their scores are stored; see ``decoding_kernels``
)


class Forms(NamedTuple):
    """What decides which keys a query sees, and their scores, in the layout of the kernels."""

    lengths: Tensor | None  # int64 [H]
    spans: Tensor | None  # int64 [1 or H, n, 2]
    bias: Tensor | None  # -inf where the mask hides a key
    powers: Tensor | None  # float32 [H], 1 / (alpha - 1) if each head has its own
    scales: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None


class Saved(NamedTuple):
    """Data for the backward: each query's largest score, the threshold relative to it, and the blocks with support."""

    top: Tensor  # float32 [H, n], the maximum of (alpha - 1) scale q k'
    tau: Tensor  # float32 [H, n]
    flags: Tensor  # int8 [H, query blocks, key blocks]
    mean: Tensor  # float32 [H, n, e], the mean of v weighted by p^(2 - alpha)
    forms: Forms
    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    block: tuple[int, int]


class Gradients(NamedTuple):
    """Those of q, k and v in their dtype; in float32 those of the bias, the alphas [H], and the scales, slopes and sinks."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    alphas: Tensor | None
    scales: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None


def _block(q: Tensor, v: Tensor) -> tuple[int, int]:
    """The queries and keys of a block: of those tried, the largest whose numbers stay in registers."""
    size = (32 if q.dtype == torch.float32 else 64) // (2 if max(q.shape[2], v.shape[2]) > 128 else 1)
    return size, size


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
    q: Tensor, k: Tensor, v: Tensor, *, alpha: float, scale: float, causal: bool = False, lengths: Tensor | None = None,
    spans: Tensor | None = None, alphas: Tensor | None = None, bias: Tensor | None = None, mask: Tensor | None = None,
    scales: Tensor | None = None, slopes: Tensor | None = None, sinks: Tensor | None = None,
    lead: tuple[int, ...] | None = None, save: bool = True, block: tuple[int, int] | None = None,
) -> tuple[Tensor, Saved | None]:  # fmt: skip
    """q [H, n, d], k [G, m, d] and v [G, m, e]; out [H, n, e] has q's dtype. The groups of k and v may be apart in memory.

    alphas are float ``[H]`` and replace alpha. A mask is added to the bias as -inf. block: the numbers of queries and keys
    computed together.
    """
    from . import attention_kernels

    (heads, n, _), m = q.shape, k.shape[1]
    lead = lead or (heads,)
    k, v, room = _together(k, v)
    lengths, spans, scales, slopes, sinks = (
        None if x is None else x.detach().contiguous() for x in (lengths, spans, scales, slopes, sinks)
    )
    if mask is not None:
        lengths = _ends(mask, lengths, lead, m)
    bias = None if bias is None else bias.detach().resolve_neg()
    powers = None if alphas is None else (1 / (alphas.detach().double() - 1)).float()
    forms = Forms(lengths, spans, bias, powers, scales, slopes, sinks)
    few = not save and alphas is None and heads * n <= _DECODED * len(k) and 0 < m < rows._LONGEST
    if few and block is None:
        return _decoded(q, k, v, room, forms, mask, lead, alpha, scale, causal), None
    block = _block(q, v) if block is None else block
    out = q.new_empty(heads, n, v.shape[2])
    top, tau = torch.empty(2, heads, n, dtype=torch.float32, device=q.device)
    mean = torch.empty(heads, n, v.shape[2], dtype=torch.float32, device=q.device) if save else top
    if mask is not None:
        plain = torch.zeros((), dtype=torch.float16, device=q.device) if bias is None else bias
        forms = forms._replace(bias=torch.where(mask, plain, -torch.inf))
    flags = torch.zeros(heads, -(-n // block[0]), -(-m // block[1]), dtype=torch.int8, device=q.device)
    saved = Saved(top, tau, flags, mean, forms, lead, alpha, scale, causal, block)
    visible, numbers = _visible(q, saved)
    rows.launch(
        attention_kernels.attend_forward, heads * flags.shape[1], q, k, v, *visible, out, mean, top, tau, flags, _list(flags),
        *_sizes(q, k, v), room, *numbers, SAVE=save, LAYERS=4 if alpha == 1.5 and alphas is None else 3,
        START=0 if spans is not None and forms.bias is None else 1, **_constants(q, v, saved, stages=3),
    )  # fmt: skip
    return out, saved if save else None


def _decoded(
    q: Tensor, k: Tensor, v: Tensor, room: int, forms: Forms, mask: Tensor | None, lead: tuple[int, ...], alpha: float,
    scale: float, causal: bool,
) -> Tensor:  # fmt: skip
    """`forward` of few queries: their scores, the mapping of rows, and the values, read by enough programs for the device."""
    from . import decoding_kernels

    (heads, n, d), (groups, m, e) = q.shape, v.shape
    size, keys = heads // groups * n, 64
    blocks = -(-m // keys)
    x = torch.empty(heads, n, m + (forms.sinks is not None), dtype=torch.float32, device=q.device)
    constants: dict[str, Any] = {"ROWS": max(16, 1 << (size - 1).bit_length()), "KEYS": keys, "num_warps": 4}
    rows.launch(
        decoding_kernels.decode_scores, groups * -(-x.shape[2] // keys), q, k,
        *(q if y is None else y for y in (forms.lengths, forms.spans, forms.scales, forms.slopes, forms.sinks)), x,
        n, m, d, heads // groups, room, _per_head(forms, n), scale, CAUSAL=causal, LENGTHS=forms.lengths is not None,
        SPANS=forms.spans is not None, FORMS=_bits(forms), **_channels("D", d), **constants,
    )  # fmt: skip
    scores = x.view(*lead, n, -1)[..., :m]
    if forms.bias is not None:
        scores += forms.bias
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    op, params = ("sparsemax", {"gamma": 1.0}) if alpha == 2 else ("entmax", {"alpha": alpha})
    p, _ = rows.OPS[op].forward(x.view(-1, x.shape[2]), **params)
    turns = max(1, groups * blocks // (2 * _FEW))
    out = torch.empty(groups, -(-blocks // turns), size, e, dtype=torch.float32, device=q.device)
    rows.launch(
        decoding_kernels.decode_values, groups * out.shape[1], p, v, out, x.shape[2], m, e, size, room, turns,
        **_channels("E", e), **constants,
    )  # fmt: skip
    return out.sum(1).view(heads, n, e).to(q.dtype)


def backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients dq, dk, dv for the q, k, v of `forward`; grad_out [H, n, e] is contiguous and has their dtype."""
    return gradients(grad_out, q, k, v, saved)[:3]


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None) -> Gradients:
    """The gradients of `backward`, of the parameters, and of the bias ``of`` if it is given."""
    from . import attention_kernels

    (heads, n, _), (groups, m, _) = q.shape, k.shape
    repeat, forms = heads // max(groups, 1), saved.forms
    k, v, room = _together(k, v)
    parts = repeat if groups * saved.flags.shape[2] < _FEW else 1
    wide = torch.float32 if parts > 1 else k.dtype
    dq, dk, dv = torch.empty_like(q), *(x.new_empty(groups * parts, *x.shape[1:], dtype=wide) for x in (k, v))
    learned = (forms.scales, forms.slopes, forms.sinks, forms.powers)
    dforms = None if learned == (None,) * 4 else torch.empty(4, heads, n, dtype=torch.float32, device=q.device)
    visible, numbers = _visible(q, saved)
    given, along, places = (grad_out, q, k, v, *visible), torch.empty_like(saved.top), _list(saved.flags)
    sizes = (*_sizes(q, k, v), room, *numbers)
    stages = 1 if q.dtype == torch.float32 else 2  # more than that spills registers
    constants, thresholds = _constants(q, v, saved, stages), (saved.top, saved.tau, saved.flags)
    rows.launch(
        attention_kernels.attend_queries_backward, heads * saved.flags.shape[1], *given, saved.mean, *thresholds, places, along,
        dq, q if dforms is None else dforms, *sizes, saved.scale, **constants,
    )  # fmt: skip
    rows.launch(
        attention_kernels.attend_keys_backward, len(dk) * saved.flags.shape[2], *given, *thresholds, places, along, dk, dv,
        *sizes, saved.scale, parts, **constants,
    )  # fmt: skip
    if parts > 1:
        dk, dv = (x.view(groups, parts, *x.shape[1:]).sum(1).to(q.dtype) for x in (dk, dv))
    dbias = None
    if of is not None:
        matrices, over = _sharing(of, saved.lead)
        dbias = torch.empty(len(matrices), 1 if over else n, m, dtype=torch.float32, device=q.device)
        programs = len(matrices) * saved.flags.shape[2] * (1 if over else saved.flags.shape[1])
        rows.launch(
            attention_kernels.attend_bias_backward, programs, *given, *thresholds, matrices, along, dbias, *sizes,
            matrices.shape[1], OVER=over, **constants,
        )  # fmt: skip
        dbias = (dbias if of.shape[-1] == m else dbias.sum(-1)).view(of.shape)
    each = [None] * 4 if dforms is None else [x if y is not None else None for x, y in zip(dforms, learned)]
    dscales, dslopes, dsinks, dalphas = (x if x is None or i == 0 else x.sum(1) for i, x in enumerate(each))
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
    k, v = (x.detach().resolve_neg() for x in (k, v))
    room = k.stride(0) // k.shape[2]
    if all(x.stride() == (room * x.shape[2], x.shape[2], 1) for x in (k, v)):
        return k, v, room
    return k.contiguous(), v.contiguous(), k.shape[1]


def _ends(mask: Tensor, lengths: Tensor | None, lead: tuple[int, ...], m: int) -> Tensor | None:
    """The lengths [H] behind which a mask of keys, the same for all queries, hides everything: no block there is looked at."""
    if (mask.ndim > 1 and mask.shape[-2] > 1) or mask.shape[-1] != m:
        return lengths
    ends = (mask * torch.arange(1, m + 1, device=mask.device)).amax(-1)
    ends = ends.squeeze(-1) if mask.ndim > 1 else ends
    ends = ends.expand(lead).reshape(-1).contiguous()
    return ends if lengths is None else lengths.minimum(ends)


def apart(saved: Saved) -> tuple[list[Tensor], list[Any]]:
    """The tensors of `Saved`, which autograd must keep so that hooks and checkpoints see them, and the rest, for `together`."""
    flat = [*saved[:4], *saved.forms, *saved[5:]]
    return [x for x in flat if isinstance(x, Tensor)], [_HERE if isinstance(x, Tensor) else x for x in flat]


def together(tensors: list[Tensor], rest: list[Any]) -> Saved:
    """The inverse of `apart`."""
    following, size = iter(tensors), len(Forms._fields)
    flat: list[Any] = [next(following) if x is _HERE else x for x in rest]
    parts: list[Any] = [*flat[:4], Forms(*flat[4 : 4 + size]), *flat[4 + size :]]
    return Saved(*parts)


def _list(flags: Tensor) -> Tensor:
    return torch.empty(flags.shape, dtype=torch.int32, device=flags.device)


def _per_head(forms: Forms, n: int) -> int:
    return 0 if forms.spans is None or len(forms.spans) == 1 else 2 * n


def _bits(forms: Forms) -> int:
    """FORMS: 1 with scales, 2 with slopes, 4 with sinks."""
    return sum(1 << i for i, x in enumerate((forms.scales, forms.slopes, forms.sinks)) if x is not None)


def _visible(q: Tensor, saved: Saved) -> tuple[tuple[Tensor, ...], tuple[float, ...]]:
    """The tensors of the forms (q for those that are not given), and the numbers: steps, the factor of the scores, and r.

    The factor is (alpha - 1) scale; where each head has its own r, it divides the factor.
    """
    forms, alpha = saved.forms, saved.alpha
    at, row, key = (q, 0, 0) if forms.bias is None else layout(forms.bias, saved.lead)
    tensors = [q if x is None else x for x in forms]
    steps = (_per_head(forms, q.shape[1]), row, key)
    factors = (saved.scale, 0.0) if forms.powers is not None else (saved.scale * (alpha - 1), 1 / (alpha - 1))
    return (*tensors[:3], at, *tensors[3:]), (*steps, *factors)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.shape[0] // max(k.shape[0], 1)


def _channels(name: str, width: int) -> dict[str, int]:
    """The channels of a block as one power of two from 16 or a sum of two: 80 are 64 and 16."""
    first = max(16, 1 << (width.bit_length() - 1))
    second = max(16, 1 << (width - first - 1).bit_length()) if width > first else 0
    return {name: 2 * first, f"{name}2": 0} if second == first else {name: first, f"{name}2": second}


def _constants(q: Tensor, v: Tensor, saved: Saved, stages: int) -> dict[str, Any]:
    from . import attention_blocks

    forms = saved.forms
    rule = "EACH" if forms.powers is not None else {2.0: "SPARSEMAX", 1.5: "ENTMAX15"}.get(saved.alpha, "ANY")
    wide = q.dtype == torch.float32 or forms.bias is not None or rule == "EACH" or max(q.shape[2], v.shape[2]) > 128
    return {
        "RULE": getattr(attention_blocks, rule), "CAUSAL": saved.causal, "LENGTHS": forms.lengths is not None,
        "SPANS": forms.spans is not None, "BIAS": int(forms.bias is not None), "FORMS": _bits(forms), "ROWS": saved.block[0],
        "KEYS": saved.block[1], **_channels("D", q.shape[2]), **_channels("E", v.shape[2]), "CHUNK": 16 if rows._INTERPRETED else 256,
        "num_warps": 8 if wide else 4, "num_stages": stages,
    }  # fmt: skip
