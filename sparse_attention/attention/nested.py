"""Attention within each sequence of jagged tensors. Nothing is padded, and no query sees another sequence.

If the mapping has a fused kernel, the packed sequences are one call with ``cu_seqlens``. Otherwise, and with slopes,
sequences of equal lengths share a call, for which the lengths are read on the CPU. torch.compile breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..rows.ragged import alike, eager, ends_of, packed, together
from ..rows.shape import jagged
from .call import Call, checked
from .choice import choose

_INSTEAD = {
    **dict.fromkeys(("lengths", "cu_seqlens", "cu_seqlens_k"), "the tensors have their own lengths"),
    "mask": "hide keys with causal or window, or leave them out of k and v",
    "bias": "use slopes, or one call for each sequence",
    "need_weights": "use one call for each sequence, q.unbind()",
}


def attend(run: Callable[[Call], Any], q: Tensor, k: Tensor, v: Tensor, mapping: Any, given: dict[str, Any]) -> Tensor:
    """`sparse_attention` of jagged q ``[B, H, *, d]`` and k, v ``[B, G, *, d]``, or of all three without heads.

    Args:
        run: computes a checked call.
        given: the other arguments. Tensors have one number, or one for each head.
    Returns:
        jagged, like q; it can be combined with q in arithmetic.
    Raises:
        TypeError: one of q, k and v is not jagged. ValueError: the shapes or lengths do not match, or an argument cannot
            be used with nested tensors.
    """
    for name, instead in _INSTEAD.items():
        if given.get(name) is not None and given[name] is not False:
            raise ValueError(f"{name} cannot be used with nested q, k and v: {instead}")
    heads = q.shape[1] if q.ndim == 4 else 1
    for name, x in given.items():
        if isinstance(x, Tensor) and x.numel() not in (1, heads):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; nested tensors take one number per head, ({heads},)")
    ends, values = unpacked(q, k, v)
    if given.get("slopes") is None:  # slopes times positions in the whole pack would be rounded more
        keys = None if ends[0] is ends[1] or torch.equal(*ends) else ends[1]
        call = checked(*values, mapping, **{**given, "cu_seqlens": ends[0], "cu_seqlens_k": keys})
        if choose(call).path == "fused":
            return _nested(run(call), q)
    return by_length(lambda q, k, v: run(checked(q, k, v, mapping, **given)), q, k, v)


def by_length(function: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``function(q [b, H, n, d], k [b, G, m, d], v [b, G, m, e])`` on the sequences of each n and m.

    Arguments, result and errors are those of `attend`.
    """
    ends, tensors = unpacked(q, k, v)
    rows = [x.movedim(-2, 0) for x in tensors]  # [N, H, d]
    if not len(rows[0]):
        return _nested(tensors[0].new_zeros(*tensors[0].shape[:-1], v.shape[-1]), q)
    parts, places = [], []
    for queries, keys in together(*ends):
        out = function(*(x[at].transpose(1, 2) for x, at in zip(rows, (queries, keys, keys))))
        parts.append(out.transpose(1, 2).flatten(0, 1))
        places.append(queries.flatten())
    return _nested(packed(parts, places).movedim(0, -2), q)


eager(attend)
eager(by_length)


def unpacked(q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """The ends of the sequences of q and of k, int64 ``[B + 1]``, and the values of q, k and v as ``[H, N, d]``."""
    ends, values = [], []
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not jagged(x):
            raise TypeError(f"{name} is not jagged; q, k and v must all be nested tensors with layout=torch.jagged")
        if x.ndim != q.ndim or x.ndim not in (3, 4) or x._ragged_idx != x.ndim - 2:  # type: ignore[attr-defined]
            raise ValueError(f"nested {name} {tuple(x.shape)} must be [B, H, *, d] or [B, *, d]; see transpose(1, 2)")
        ends.append(ends_of(x, name))
        values.append(x.values() if x.ndim == 4 else x.values().unsqueeze(0))  # type: ignore[operator]
    alike(ends[2], ends[1], "v", "k")
    if len(ends[0]) != len(ends[1]):
        raise ValueError(f"q has {len(ends[0]) - 1} sequences and k {len(ends[1]) - 1}; they must have equally many")
    return (ends[0], ends[1]), (values[0], values[1], values[2])


def _nested(out: Tensor, q: Any) -> Tensor:
    """``[H, N, e]`` with the ragged dimension of q, ``[B, H, *, e]`` or ``[B, *, e]``."""
    values = out if q.ndim == 4 else out.squeeze(0)
    return torch.nested.nested_tensor_from_jagged(values, q.offsets(), jagged_dim=q.ndim - 2)
