"""Fused attention on the GPU: ``entmax(scale q k') v`` without the matrix of scores; kernels: ``attention_kernels``.

The contract is that of ``kernels.native.attention``, for float32, float16 and bfloat16. Scores, thresholds and sums are
float32. For half-precision inputs, as in flash attention, the weights are rounded to half precision before they are
multiplied by the values, and the gradients of the scores before they are multiplied by queries and keys. No call here waits
for the device; with one alpha per head, `sa.sparse_attention` has read their range before. Results are deterministic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import layout

ALPHAS = (1.1, 2.0)  # where float32 is enough
WIDEST = 128  # the most channels; wider blocks do not fit into the memory of a multiprocessor


_HERE: Any = object()
_FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys


class Saved(NamedTuple):
    """Data for the backward: each query's largest score, the threshold relative to it, and the blocks with support."""

    top: Tensor  # float32 [H, n], the maximum of (alpha - 1) scale q k'
    tau: Tensor  # float32 [H, n]
    flags: Tensor  # int8 [H, query blocks, key blocks]
    mean: Tensor  # float32 [H, n, e], the mean of v weighted by p^(2 - alpha)
    lengths: Tensor | None
    spans: Tensor | None
    bias: Tensor | None  # -inf where the mask hides a key
    powers: Tensor | None  # float32 [H], 1 / (alpha - 1) if each head has its own
    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    pinned: bool
    block: tuple[int, int]


def _block(q: Tensor) -> tuple[int, int]:
    """The queries and keys of a block: of those tried, the largest whose numbers stay in registers."""
    return (32, 32) if q.dtype == torch.float32 else (64, 64)


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
    spans: Tensor | None = None, alphas: Tensor | None = None, pinned: bool = False, bias: Tensor | None = None,
    mask: Tensor | None = None, lead: tuple[int, ...] | None = None, save: bool = True, block: tuple[int, int] | None = None,
) -> tuple[Tensor, Saved | None]:  # fmt: skip
    """q [H, n, d], k [G, m, d] and v [G, m, e] are contiguous; out [H, n, e] has q's dtype.

    The other arguments are those of ``kernels.native.attention``; alphas are float ``[H]`` and replace alpha. A mask is
    added to the bias as -inf. block: the numbers of queries and keys computed together.
    """
    from . import attention_kernels

    (heads, n, _), m = q.shape, k.shape[1]
    block = _block(q) if block is None else block
    out = q.new_empty(heads, n, v.shape[2])
    top, tau = torch.empty(2, heads, n, dtype=torch.float32, device=q.device)
    mean = torch.empty(heads, n, v.shape[2], dtype=torch.float32, device=q.device) if save else top
    lengths, spans = (None if x is None else x.contiguous() for x in (lengths, spans))
    bias = None if bias is None else bias.detach().resolve_neg()
    if mask is not None:
        lengths = _ends(mask, lengths, lead or (heads,), m)
        plain = torch.zeros((), dtype=torch.float16, device=q.device) if bias is None else bias
        bias = torch.where(mask, plain, -torch.inf)
    flags = torch.zeros(heads, -(-n // block[0]), -(-m // block[1]), dtype=torch.int8, device=q.device)
    powers = None if alphas is None else (1 / (alphas.detach().double() - 1)).float()
    saved = Saved(
        top, tau, flags, mean, lengths, spans, bias, powers, lead or (heads,), alpha, scale, causal, pinned, block
    )  # fmt: skip
    visible, steps = _visible(q, saved)
    rows.launch(
        attention_kernels.attend_forward, heads * flags.shape[1], q, k, v, *visible, out, mean, top, tau, flags, _list(flags),
        *_sizes(q, k, v), *steps, *_factors(saved), SAVE=save,
        LAYERS=4 if alpha == 1.5 and alphas is None else 3, START=0 if spans is not None and bias is None else 1,
        **_constants(q, v, saved, stages=3),
    )  # fmt: skip
    return out, saved if save else None


def backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients dq, dk, dv for the q, k, v of `forward`; grad_out [H, n, e] is contiguous and has their dtype."""
    return gradients(grad_out, q, k, v, saved)[:3]


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None) -> Any:
    """The gradients of `backward` and, in float32, those of the bias ``of`` and of the alphas [H], or None."""
    from . import attention_kernels

    (heads, n, _), (groups, m, _) = q.shape, k.shape
    repeat = heads // max(groups, 1)
    parts = repeat if groups * saved.flags.shape[2] < _FEW else 1
    wide = torch.float32 if parts > 1 else k.dtype
    dq, dk, dv = torch.empty_like(q), *(x.new_empty(groups * parts, *x.shape[1:], dtype=wide) for x in (k, v))
    dbias = None if of is None else torch.zeros(heads, n, m, dtype=torch.float32, device=q.device)
    dalphas = None if saved.powers is None else torch.empty(heads, n, dtype=torch.float32, device=q.device)
    visible, steps = _visible(q, saved)
    given, along, places = (grad_out, q, k, v, *visible), torch.empty_like(saved.top), _list(saved.flags)
    sizes = (*_sizes(q, k, v), *steps, *_factors(saved), saved.scale)
    stages = 1 if q.dtype == torch.float32 else 2  # more than that spills registers
    constants, thresholds = _constants(q, v, saved, stages), (saved.top, saved.tau, saved.flags, places, along)
    rows.launch(
        attention_kernels.attend_queries_backward, heads * saved.flags.shape[1], *given, saved.mean, *thresholds, dq,
        *(q if x is None else x for x in (dbias, dalphas)), *sizes, **(constants if dbias is None else constants | {"BIAS": 2}),
    )  # fmt: skip
    rows.launch(
        attention_kernels.attend_keys_backward, len(dk) * saved.flags.shape[2], *given, *thresholds, dk, dv, *sizes, parts,
        **constants,
    )  # fmt: skip
    if parts > 1:
        dk, dv = (x.view(groups, parts, *x.shape[1:]).sum(1).to(q.dtype) for x in (dk, dv))
    if of is not None and dbias is not None:
        dbias = dbias.view(*saved.lead, n, m).sum_to_size(of.shape)
    return dq, dk, dv, dbias, None if dalphas is None else dalphas.sum(1)


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
    return [x for x in saved if isinstance(x, Tensor)], [_HERE if isinstance(x, Tensor) else x for x in saved]


def together(tensors: list[Tensor], rest: list[Any]) -> Saved:
    """The inverse of `apart`."""
    following = iter(tensors)
    parts: list[Any] = [next(following) if x is _HERE else x for x in rest]
    return Saved(*parts)


def _list(flags: Tensor) -> Tensor:
    return torch.empty(flags.shape, dtype=torch.int32, device=flags.device)


def _visible(q: Tensor, saved: Saved) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The tensors that say what queries see (q for those that are not given), and the steps in their memory."""
    at, row, key = q, 0, 0
    if saved.bias is not None:
        at, row, key = layout(saved.bias, saved.lead)
    per_head = 0 if saved.spans is None or len(saved.spans) == 1 else 2 * q.shape[1]
    tensors = (
        *(q if x is None else x for x in (saved.lengths, saved.spans, saved.bias)),
        at,
        q if saved.powers is None else saved.powers,
    )
    return tensors, (per_head, row, key)


def _factors(saved: Saved) -> tuple[float, float]:
    """The factor of the scores, (alpha - 1) scale, and r; where each head has its own r, it divides the factor."""
    return (saved.scale, 0.0) if saved.powers is not None else (saved.scale * (saved.alpha - 1), 1 / (saved.alpha - 1))


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.shape[0] // max(k.shape[0], 1)


def _constants(q: Tensor, v: Tensor, saved: Saved, stages: int) -> dict[str, Any]:
    width, values = (max(16, 1 << (x.shape[2] - 1).bit_length()) for x in (q, v))
    rule = "EACH" if saved.powers is not None else {2.0: "SPARSEMAX", 1.5: "ENTMAX15"}.get(saved.alpha, "ANY")
    from . import attention_blocks

    return {
        "RULE": getattr(attention_blocks, rule), "CAUSAL": saved.causal, "LENGTHS": saved.lengths is not None,
        "SPANS": saved.spans is not None, "PINNED": saved.pinned and saved.spans is not None,
        "BIAS": int(saved.bias is not None), "ROWS": saved.block[0], "KEYS": saved.block[1], "WIDTH": width, "VALUES": values,
        "CHUNK": 16 if rows._INTERPRETED else 256,
        "num_warps": 8 if q.dtype == torch.float32 or saved.bias is not None or rule == "EACH" else 4,
        "num_stages": stages,
    }  # fmt: skip
