r"""Attention variants that the kernels compute without a matrix of scores: windows, packed sequences, ALiBi, sinks.

With windows and packed sequences, each query sees one contiguous range of keys, a span. The Triton kernels take ALiBi's slopes and sinks as they are.
Elsewhere they become one more channel of queries and keys. For slopes, this channel adds :math:`s_h j` to the score of key j (:math:`s_h i` is constant in a row, so a
mapping with :math:`\pi(x + c) = \pi(x)` ignores it). For sinks, the channel is 0 for every other key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..describe import number_of
from ..rows.masked import readable
from ..rows.shape import broadcasts, foreign, transformed

Window = tuple[int | None, int | None]


class Inputs(NamedTuple):
    """The tensors of a fused call other than q, k and v, in the kernels' layout, where H is the product of ``Numbers.lead``."""

    lengths: Tensor | None = None  # int64 [H]; on a GPU, adjacent heads may share one
    spans: Tensor | None = None  # int64 [1 or H, n, 2]
    alphas: Tensor | None = None  # [H], in place of alpha
    bias: Tensor | None = None  # broadcastable to [*lead, n, m]
    mask: Tensor | None = None  # the same
    scales: Tensor | None = None  # float32 [H, n]; these three only on a GPU, elsewhere they are channels of q and k
    slopes: Tensor | None = None  # float32 [H]
    sinks: Tensor | None = None  # float32 [H]


class Numbers(NamedTuple):
    """The numbers of a fused call."""

    lead: tuple[int, ...]
    alpha: float
    scale: float
    causal: bool
    pinned: bool = False  # every query sees key 0
    dropout: float = 0.0
    seed: int = 0
    lam: float | None = None
    short: bool = False  # computed by `short`


def spans_of(
    n: int, m: int, window: Window | None, cu_seqlens: Tensor | None, device: Any, cu_seqlens_k: Tensor | None = None
) -> Tensor | None:
    """The spans int64 ``[n, 2]`` of a window and of packed sequences; None without both.

    In a sequence, the last query is at the position of the last key, which counts for the window.

    Raises:
        TypeError, ValueError: the window is not a pair of whole numbers >= 0 or None; the boundaries do not rise from
            0 to n (``cu_seqlens_k``: to m) or are not equally many; n and m differ, and ``cu_seqlens_k`` is not given.
    """
    packed, at = None, torch.arange(m - n, m, device=device)
    if cu_seqlens is not None or cu_seqlens_k is not None:
        packed, at = _of_sequences(n, m, cu_seqlens, cu_seqlens_k, device)
    if window is None:
        return packed
    found = _of_window(at, m, window)
    return found if packed is None else together(found, packed)


def _of_window(at: Tensor, m: int, window: Window) -> Tensor:
    """The spans of queries at the positions ``at [n]``."""
    sides = tuple(map(number_of, window)) if isinstance(window, (tuple, list)) else ()
    if len(sides) != 2 or any(
        x is not None and (not isinstance(x, int) or isinstance(x, bool) or x < 0) for x in sides
    ):
        raise ValueError(
            f"window={window!r} must be (left, right): how many keys before and after it a query sees; None means no limit"
        )
    left = torch.zeros_like(at) if sides[0] is None else at - sides[0]
    right = torch.full_like(at, m) if sides[1] is None else at + sides[1] + 1
    return torch.stack([left, right], -1).clamp(0, m)


def _of_sequences(
    n: int, m: int, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, device: Any
) -> tuple[Tensor, Tensor]:
    """The spans of the sequences, and the position of each query among the keys, ``[n]``."""
    if cu_seqlens_k is None and n != m:
        raise ValueError(
            f"cu_seqlens needs as many queries as keys; there are {n} queries and {m} keys: "
            "give the ends of the keys as cu_seqlens_k"
        )
    ends = _ends("cu_seqlens", cu_seqlens, n, device)
    keys = ends if cu_seqlens_k is None else _ends("cu_seqlens_k", cu_seqlens_k, m, device)
    if len(keys) != len(ends):
        raise ValueError(f"cu_seqlens has {len(ends) - 1} sequences and cu_seqlens_k {len(keys) - 1}")
    at = torch.arange(n, device=device)
    of = torch.searchsorted(ends, at, right=True)
    return torch.stack([keys[of - 1], keys[of]], -1), at + (keys - ends)[of]


def _ends(name: str, given: Any, n: int, device: Any) -> Tensor:
    if not isinstance(given, Tensor) or given.dtype not in (torch.int32, torch.int64) or given.ndim != 1:
        raise TypeError(f"{name} must be an int32 or int64 tensor [B + 1]: 0, then the end of each of the B sequences")
    ends = given.to(device=device, dtype=torch.int64)
    if not (foreign(ends) or transformed()) and ends.device.type == "cpu":
        known = ends.tolist()
        if known[:1] != [0] or known[-1:] != [n] or sorted(known) != known:
            raise ValueError(f"{name}={known} must rise from 0 to {n}, the number of positions")
    return ends


def together(a: Tensor, b: Tensor) -> Tensor:
    """The keys in both spans ``[..., n, 2]``."""
    first = a[..., 0].maximum(b[..., 0])
    return torch.stack([first, a[..., 1].minimum(b[..., 1]).maximum(first)], -1)


def per_head(name: str, x: Tensor, q: Tensor) -> Tensor:
    """``x [H]`` as ``[H, 1, 1]``, in float32 at least. Raises ValueError if q ``[..., H, n, d]`` has another number of heads."""
    heads = q.shape[-3] if q.ndim > 2 else 1
    if not isinstance(x, Tensor) or x.shape != (heads,):
        raise ValueError(f"{name} must be a tensor ({heads},), one number per head, not {getattr(x, 'shape', x)}")
    same_device(name, x, q)
    return x.to(torch.promote_types(q.dtype, torch.float32)).view((heads, 1, 1) if q.ndim > 2 else (1, 1))


def same_device(name: str, x: Tensor, q: Tensor) -> None:
    """Raise ValueError if ``x`` is on another device than q."""
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device} and q on {q.device}; move them to one device")


def of_heads(name: str, x: Any, q: Tensor | None) -> Any:
    """A hyperparameter for the rows of scores ``[..., H, n, m]``: tensors ``[H]`` and ``[H, 1, 1]`` have one per head.

    Anything else is returned unchanged (see `rows.shape.per_row`). Raises ValueError for ``[x]`` with x not H.
    """
    if not isinstance(x, Tensor) or x.numel() == 1 or q is None:
        return x
    heads = q.shape[-3] if q.ndim > 2 else 1
    if x.ndim == 1 and x.shape != (heads,):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; give ({heads},) for one number per head, or ({heads}, n) for one per query"
        )
    if x.shape not in ((heads,), (heads, 1, 1)):
        return x
    return x.reshape(*[1] * (q.ndim - 3), heads, 1, 1)


def lengths_of_heads(lengths: Tensor, lead: tuple[int, ...], k: Tensor) -> Tensor | None:
    """Convert lengths to int64 ``[..., H]``, from one per batch entry ``[B]`` or one per head ``[B, H]``; None: all keys."""
    found = lengths_of(lengths, lead, k)
    return None if found is None else found[(..., *[None] * (len(lead) - found.ndim))].expand(lead)


def lengths_of(lengths: Tensor, lead: tuple[int, ...], k: Tensor) -> Tensor | None:
    """Lengths as int64 on the device of k; None: all keys. Raises what `lengths_of_heads` raises."""
    if not isinstance(lengths, Tensor) or lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        kind = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"lengths is {kind}; it must be a tensor of whole numbers, the number of visible keys")
    m, rest = k.shape[-2], len(lead) - lengths.ndim
    fits = rest >= 0 and all(given in (1, there) for given, there in zip(lengths.shape, lead))
    if not fits:
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)}, and the batch and head dimensions of q are {tuple(lead)}; give one length per batch entry [B], or per head [B, H]"
        )
    if k.device.type == "cpu" and not foreign(lengths) and not transformed():
        low, high = (int(x) for x in lengths.aminmax()) if lengths.numel() else (0, 0)
        if low < 0 or high > m:
            raise ValueError(f"lengths range from {low} to {high}; each must be between 0 and {m}, the number of keys")
        if low == m:
            return None
    return lengths.to(device=k.device, dtype=torch.int64)


def per_query(name: str, x: Tensor, q: Tensor) -> Tensor:
    """``x`` as a factor of q ``[..., H, n, d]``: one number, one per head ``[H]``, or broadcastable to ``[..., H, n, 1]``."""
    if x.dtype == torch.bool or (x.ndim and not x.dtype.is_floating_point):
        raise TypeError(f"{name} is {x.dtype}; it must be a number or a floating-point tensor")
    shape = (*q.shape[:-1], 1)
    shaped = x.reshape(-1, 1, 1) if x.ndim == 1 and q.ndim > 2 else x
    if not broadcasts(shaped.shape, shape):
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} must be one number, one per head or one per query: give a shape that "
            f"broadcasts to {shape}, or ({shape[-3] if q.ndim > 2 else 1},)"
        )
    if shaped.ndim:
        same_device(name, x, q)
    elif shaped.device != q.device:  # one number may be elsewhere, as in torch
        shaped = shaped.to(q.device)
    return shaped.to(torch.float64 if q.dtype == torch.float64 else torch.float32)


def places(n: int, like: Tensor) -> Tensor:
    """The positions of the last n queries or keys, counted from the last one: 1 - n to 0, ``[n, 1]``."""
    return torch.arange(1 - n, 1, device=like.device, dtype=like.dtype).unsqueeze(-1)


def with_slopes(q: Tensor, k: Tensor, slopes: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q and k with one more channel, which adds ``slopes[h] * place`` of a key to its score; slopes ``[H, 1, 1]``."""
    return _channel(q, slopes / scale), _channel(k, places(k.shape[-2], k))


def present(logits: Tensor, known: bool) -> tuple[Tensor, Tensor | None]:
    """Finite scores of sinks ``[H, 1, 1]``, and which heads have a sink, bool; None means all. A head with -inf has none.

    If the values must not be read and the weights are ``known`` to be an entmax, -1e30 gives such a sink the weight 0.
    """
    gone = logits == -torch.inf
    if readable(logits) and not gone.any():
        return logits, None
    if known and not readable(logits):
        return logits.clamp(min=-1e30), None
    return logits.masked_fill(gone, 0.0), ~gone


def with_sink(q: Tensor, k: Tensor, v: Tensor, logits: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with one more channel and a first key with the value 0 and the given scores, ``[H, n or 1, 1]``."""
    marks = torch.zeros(k.shape[-2] + 1, 1, device=k.device, dtype=k.dtype)
    marks[0] = 1
    return _channel(q, logits / scale), _channel(F.pad(k, (0, 0, 1, 0)), marks), F.pad(v, (0, 0, 1, 0))


def _channel(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat([x, values.expand(*x.shape[:-1], 1)], -1)
