"""Attention with any mapping, by the fastest exact path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rows.masked import readable
from ..rows.shape import PLAIN, autocasts, certain, jagged
from . import composition, operator
from .call import Call, checked, on_gpu, with_old_keywords
from .choice import Plan, arguments, choose
from .direct import attend as direct
from .forms import Window
from .nested import attend
from .reading import finite

Attends = str | torch.nn.Module | Callable[..., Tensor]


@with_old_keywords
def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, mapping: Attends = "sparsemax", mask: Tensor | None = None, causal: bool = False,
    lengths: Tensor | None = None, scale: float | Tensor | None = None, dropout: float = 0.0, need_weights: bool = False,
    *, bias: Tensor | None = None, slopes: Tensor | None = None, window: Window | None = None,
    cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None, sink: Tensor | None = None,
    softcap: float | None = None, **params: Any,
) -> Any:  # fmt: skip
    r"""Attention :math:`\pi(s\,QK^\top)V` with a mapping :math:`\pi` instead of softmax. Every path is exact.

    There are three paths. For sparsemax, entmax with alpha 1.05 to 4 and, on a CPU, fusedmax, a fused kernel (native on a CPU; Triton
    on CUDA) stores no scores, and its gradient reads only the support. Softmax uses torch's own attention.
    Everything else uses the composition of two matrix products and the mapping. ``sa.attention.plan`` takes the same
    arguments and returns the path that will be taken, with the reason.

    Args:
        q: ``[..., H, n, d]``, floating point; also ``[n, d]``.
        k: ``[..., G, m, d]`` with H a multiple of G. Head h reads group ``h // (H // G)`` (grouped-query attention;
            G = 1 is multi-query attention).
        v: ``[..., G, m, e]``. Dimensions before the heads broadcast. All three may be jagged nested tensors
            ``[B, H, *, d]`` or ``[B, *, d]``: each sequence of q attends to the same one of k and v, without
            padding. mask, lengths, bias, cu_seqlens and need_weights then raise errors; tensors have one number per head.
        mapping: a name from ``sa.names("simplex")``, a module ``sa.make(...)``, or your own function or module, which
            is called as ``f(scores [..., H, n, m], mask=keep)`` with keep bool or None.
        mask: bool, broadcastable to ``[..., H, n, m]``, True = keep.
        causal: query i sees keys 0 to i + m - n, so the last query sees all keys. (torch's is_causal aligns the first
            query and the first key instead; for n = m both are the same.)
        lengths: the number of visible keys (right padding), as integers: ``[B]`` with one length per entry of q's first
            dimension, or ``[B, H]`` with one length per head.
        scale: factor for the scores; by default ``d ** -0.5``. A tensor may be learned: ``[H]``, one factor per head, or
            broadcastable to ``[..., H, n, 1]``, one per query.
        dropout: the share of the weights set to zero, below 1; the others are scaled by ``1 / (1 - dropout)``. As in
            torch's function, dropout is applied in every call and uses torch's generator; each path drops different weights.
        need_weights: also return the weights, as they are before dropout.
        bias: added to the scores, floating point, broadcastable to ``[..., H, n, m]``.
        slopes: ``[H]``, ALiBi: subtracts ``slopes[h] * |i - j|`` from the score of key j for a query at position i. If
            queries see later keys, this costs a matrix ``[H, n, m]``, except in the Triton kernels.
        window: (left, right), the numbers of keys that a query sees before and after its position; None means no
            limit. Positions are aligned as for causal.
        cu_seqlens: ``[B + 1]``, the ends of B sequences packed one after another, beginning with 0; a query sees the
            keys of its own sequence.
        cu_seqlens_k: the same of the keys, if they differ; ``causal`` and ``window`` then hold in each sequence.
        sink: ``[H]``, the score of an extra key with value 0, before the first key. Every query sees it, and its weight is
            not returned. A score of -inf means that the head has no sink.
        softcap: scores become ``softcap * tanh(scores / softcap)`` before anything is added to them.
        params: parameters of a mapping given by name (``gamma=0.5``, ``alpha=1.5``, ``bounds=...``), numbers or
            tensors: ``[H]``, one per head, or as many dimensions as q, broadcastable to ``[..., H, n, 1]``. If one
            is called q, k or bias, pass ``mapping=sa.make(name, k=...)``.
    Returns:
        ``[..., H, n, e]`` in q's dtype, nested if q is; with need_weights also the weights ``[..., H, n, m]``. A query that sees no key
        gives zeros and gets no gradient. float16 and bfloat16 are computed in float32 and rounded once, with or without
        autocast (softmax follows torch's function).
    Raises:
        TypeError: the tensors are not floating point or have different dtypes; the mask is not boolean.
        ValueError: the shapes do not match, a parameter is out of range, or the mapping does not map score vectors.

    The result is deterministic. It is twice differentiable, except for softmax of long rows without weights and under
    torch.compile, where torch raises an error. Under torch.func and in forward mode, the composition is used.
    """
    forms: Any = {}
    if not (bias is slopes is window is cu_seqlens is sink is None):
        forms = {"bias": bias, "slopes": slopes, "window": window, "cu_seqlens": cu_seqlens, "sink": sink}
    if (
        q.__class__ in PLAIN
        and on_gpu(q)
        and cu_seqlens_k is softcap is None
        and need_weights is False
        and dropout.__class__ in (float, int)
        and dropout == 0.0
        and (out := direct(q, k, v, mapping, mask, causal, lengths, scale, params, forms)) is not None
    ):
        return out
    more: Any = {"cu_seqlens_k": cu_seqlens_k, "softcap": softcap}
    if any(x.__class__ not in PLAIN and jagged(x) for x in (q, k, v)):
        more |= {"mask": mask, "causal": causal, "lengths": lengths, "scale": scale, "dropout": dropout}
        return attend(_run, q, k, v, mapping, {**more, "need_weights": need_weights, **forms, **params})
    return _run(
        checked(q, k, v, mapping, mask, causal, lengths, scale, dropout, need_weights, **forms, **more, **params)
    )


def _run(call: Call) -> Any:
    run = {"composition": _composed, "sdpa": _sdpa, "fused": _fused}[choose(call).path]
    if not autocasts(call.q):
        return run(call)
    with torch.autocast(call.q.device.type, enabled=False):
        return run(call)


@with_old_keywords
def plan(
    q: Tensor, k: Tensor, v: Tensor | None = None, mapping: Attends = "sparsemax", *rest: Any, **given: Any
) -> Plan:
    """The path that ``sparse_attention`` takes for the same arguments, and the reason. If v is omitted, k replaces it.

    Raises:
        TypeError, ValueError: as in ``sparse_attention``.
    """
    return choose(checked(q, k, k if v is None else v, mapping, *rest, **given))


def _composed(call: Call) -> Any:
    if call.short:
        return _fused(call)
    wide = torch.promote_types(torch.promote_types(call.q.dtype, torch.float32), call.k.dtype)
    q, k, v = (x.to(wide) for x in (call.q, call.k, call.v))
    out, weights = composition.attend(q, k, v, call.plain_scale, call.weigh, call.keep(), call.dropout)
    out = out.to(call.dtype)
    return (out, weights[..., call.sink :].to(call.dtype)) if call.need_weights else out


replacing: list[Any] = []  # the active blocks of `integrations.sdpa.use`


def torchs() -> Callable[..., Tensor]:
    """torch's attention by softmax, by a name that the blocks of `integrations.sdpa.use` do not replace."""
    return torch.ops.aten.scaled_dot_product_attention.default if replacing else F.scaled_dot_product_attention


def _sdpa(call: Call) -> Tensor:
    # torch's function takes a bias in the dtype of q; in half precision, its product with a factor would be rounded.
    scaled = call.bias is not None and call.factor != 1.0
    dtype = torch.promote_types(call.q.dtype, torch.float32) if scaled else call.q.dtype
    q, k, v = (x.to(dtype) for x in (call.q, call.k, call.v))
    free = all(x is None for x in (call.mask, call.lengths, call.spans, call.bias))
    aligned = free and certain(q.shape[-2] == k.shape[-2])
    given: dict[str, Any] = {"is_causal": call.causal} if aligned else {"attn_mask": _mask(call, dtype)}
    grouped: dict[str, Any] = {"enable_gqa": True} if q.ndim > 2 and q.shape[-3] != k.shape[-3] else {}
    e = v.shape[-1]
    if e < q.shape[-1]:  # torch's fast path needs values as wide as keys
        v = F.pad(v, (0, q.shape[-1] - e))
    out = torchs()(q, k, v, scale=call.scale, dropout_p=call.dropout, **given, **grouped)
    if readable(out) and not finite(out):
        return _composed(call)  # torch's function multiplies masked values by 0
    return out[..., :e].to(call.dtype)


def _mask(call: Call, dtype: torch.dtype) -> Tensor | None:
    """The mask for torch's function: bool, or the bias with -inf where a key is hidden; with two dimensions or more."""
    keep, mask = call.keep(), call.bias
    if mask is not None:
        mask = mask.to(dtype) * call.factor
        mask = mask if keep is None else torch.where(keep, mask, -torch.inf)
    else:
        mask = keep
    return mask if mask is None or mask.ndim > 1 else mask.expand(1, call.k.shape[-2])


def _fused(call: Call) -> Tensor:
    q, k, v, inputs, numbers = call.arguments or arguments(call)
    if call.dropout:
        numbers = numbers._replace(seed=int(torch.randint(2**63 - 1, (), device="cpu")))
    run: Any = operator.opaque if call.foreign else operator.run
    out = run(numbers, q, k, v, *inputs)
    return out.view(*call.q.shape[:-1], v.shape[-1]).to(call.dtype)
