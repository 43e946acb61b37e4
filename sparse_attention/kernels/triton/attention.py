"""Fused attention on the GPU: ``entmax(scale q k') v`` without the matrix of scores; kernels: ``attention_kernels``.

The contract is that of ``kernels.native.attention``, for float32, float16 and bfloat16. Scores, thresholds and sums are
float32. For half-precision inputs, as in flash attention, the weights are rounded to half precision before they are
multiplied by the values, and the gradients of the scores before they are multiplied by queries and keys. No call here waits
for the device; with one alpha per head, `sa.sparse_attention` has read their range before. Results are deterministic. The kernels are tested in Triton's interpreter and compiled ahead of time;
they have never been run on a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import triton as rows
from ..native.attention_shape import layout

ALPHAS = (1.1, 2.0)  # where float32 is enough
WIDEST = 128  # the most channels; wider blocks do not fit into the memory of a multiprocessor


class Saved(NamedTuple):
    """Data for the backward: each query's largest score, the threshold relative to it, and the blocks with support."""

    top: Tensor  # float32 [H, n], the maximum of (alpha - 1) scale q k'
    tau: Tensor  # float32 [H, n]
    flags: Tensor  # int8 [H, query blocks, key blocks]
    lengths: Tensor | None
    spans: Tensor | None
    bias: Tensor | None  # -inf where the mask hides a key
    powers: Tensor | None  # float32 [H], 1 / (alpha - 1) if each head has its own
    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    pinned: bool
    block: int


def refusal(q: Tensor, k: Tensor, v: Tensor, alpha: float) -> str | None:
    """The reason why the kernels cannot take these tensors, as a clause; None if they can."""
    if not (q.is_cuda or (rows._INTERPRETED and q.device.type == "cpu")):
        return f"the Triton kernels run on CUDA devices, q is on {q.device}"
    if not ALPHAS[0] <= alpha <= ALPHAS[1]:
        return f"alpha is {alpha}; the Triton kernels take {ALPHAS[0]} to {ALPHAS[1]:g}, where float32 is enough"
    if q.dtype not in rows._DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"the Triton kernels take float32, float16 or bfloat16, not {q.dtype}, {k.dtype} and {v.dtype}"
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return f"heads have {q.shape[-1]} and {v.shape[-1]} channels, the Triton kernels take up to {WIDEST}"
    return None if rows._load() else "Triton is not installed"


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: float, scale: float, causal: bool = False, lengths: Tensor | None = None,
    spans: Tensor | None = None, alphas: Tensor | None = None, pinned: bool = False, bias: Tensor | None = None,
    mask: Tensor | None = None, lead: tuple[int, ...] | None = None, save: bool = True, block: int = 64,
) -> tuple[Tensor, Saved | None]:  # fmt: skip
    """q [H, n, d], k [G, m, d] and v [G, m, e] are contiguous; out [H, n, e] has q's dtype.

    The other arguments are those of ``kernels.native.attention``; alphas are float ``[H]`` and replace alpha. A mask is
    added to the bias as -inf.
    """
    from . import attention_kernels

    (heads, n, _), m = q.shape, k.shape[1]
    out = q.new_empty(heads, n, v.shape[2])
    top, tau = torch.empty(2, heads, n, dtype=torch.float32, device=q.device)
    lengths, spans = (None if x is None else x.contiguous() for x in (lengths, spans))
    bias = None if bias is None else bias.detach().resolve_neg()
    if mask is not None:
        plain = torch.zeros((), dtype=torch.float16, device=q.device) if bias is None else bias
        bias = torch.where(mask, plain, -torch.inf)
    flags = torch.zeros(heads, -(-n // block), -(-m // block), dtype=torch.int8, device=q.device)
    powers = None if alphas is None else (1 / (alphas.detach().double() - 1)).float()
    saved = Saved(top, tau, flags, lengths, spans, bias, powers, lead or (heads,), alpha, scale, causal, pinned, block)
    visible, steps = _visible(q, saved)
    rows.launch(
        attention_kernels.attend_forward, heads * flags.shape[1], q, k, v, *visible, out, top, tau, flags,
        *_sizes(q, k, v), *steps, _factor(saved), **_constants(q, v, saved),
    )  # fmt: skip
    return out, saved if save else None


def backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients dq, dk, dv for the q, k, v of `forward`; grad_out [H, n, e] is contiguous and has their dtype."""
    return gradients(grad_out, q, k, v, saved)[:3]


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of: Tensor | None = None) -> Any:
    """The gradients of `backward` and, in float32, those of the bias ``of`` and of the alphas [H], or None."""
    from . import attention_kernels

    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    (heads, n, _), m = q.shape, k.shape[1]
    dbias = None if of is None else torch.zeros(heads, n, m, dtype=torch.float32, device=q.device)
    dalphas = None if saved.powers is None else torch.empty(heads, n, dtype=torch.float32, device=q.device)
    visible, steps = _visible(q, saved)
    given = (grad_out, q, k, v, *visible, saved.top, saved.tau, saved.flags, torch.empty_like(saved.top))
    sizes = (*_sizes(q, k, v), *steps, _factor(saved), saved.scale)
    constants = _constants(q, v, saved)
    rows.launch(
        attention_kernels.attend_queries_backward, heads * saved.flags.shape[1], *given, dq,
        *(q if x is None else x for x in (dbias, dalphas)), *sizes, **(constants if dbias is None else constants | {"BIAS": 2}),
    )  # fmt: skip
    rows.launch(
        attention_kernels.attend_keys_backward, k.shape[0] * saved.flags.shape[2], *given, dk, dv, *sizes, **constants
    )
    if of is not None and dbias is not None:
        dbias = dbias.view(*saved.lead, n, m).sum_to_size(of.shape)
    return dq, dk, dv, dbias, None if dalphas is None else dalphas.sum(1)


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


def _factor(saved: Saved) -> float:
    """Of the scores: (alpha - 1) scale, or the scale where each head divides it by its own power."""
    return saved.scale if saved.powers is not None else saved.scale * (saved.alpha - 1)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.shape[0] // max(k.shape[0], 1)


def _constants(q: Tensor, v: Tensor, saved: Saved) -> dict[str, Any]:
    width, values = (max(16, 1 << (x.shape[2] - 1).bit_length()) for x in (q, v))
    return {
        "R": 0.0 if saved.powers is not None else 1 / (saved.alpha - 1), "CAUSAL": saved.causal, "LENGTHS": saved.lengths is not None,
        "SPANS": saved.spans is not None, "PINNED": saved.pinned and saved.spans is not None,
        "BIAS": int(saved.bias is not None), "ROWS": saved.block, "KEYS": saved.block, "WIDTH": width, "VALUES": values,
        "num_warps": 4,
    }  # fmt: skip
