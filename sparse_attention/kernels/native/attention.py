"""Fused attention on the CPU: ``mapping(scale q k') v`` for sparsemax and entmax15 without the matrix of scores.

This is a separate library (``src/attention.cpp``), compiled on first use in a few seconds. For each query, it stores
only the candidate keys, computes the exact threshold on them, and keeps only the support for the backward pass; see
docs/reference/kernels.md. Arrays are float32: q [H, n, d], k [G, m, d], v [G, m, e]; query head h reads group ``h // (H // G)``.

    ``alpha``    2.0 for sparsemax, 1.5 for entmax15
    ``causal``   query i sees the keys 0 .. i + m - n: the ends are aligned, as a cache needs (torch aligns the starts)
    ``lengths``  int64 [H] or [G]: keys at this position and after are padding
    ``spans``    int64 [1, n, 2] or [H, n, 2]: a query sees the keys from the first number to below the second

A query without keys gives zeros. A score of -inf excludes its key; NaN or +inf among the scores of a query makes its
row NaN, as everywhere in this package. Values outside the support are never read, so a NaN there has no effect. Results
do not depend on the number of threads, with one exception: with fewer groups than threads, the sums in dk and dv are
computed in another order (but each run gives the same bits).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import build
from .memory import address, dense

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_POWERS = {2.0: 1, 1.5: 2}  # p = (s - tau)_+^power
ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # dtypes in decoding

_library: ctypes.CDLL | None = None
_failure = ""
_lock = threading.Lock()


def _load() -> ctypes.CDLL | None:
    """The library, built if necessary; None if that failed (``_failure`` holds the reason)."""
    global _library, _failure
    if _library is not None or _failure:
        return _library
    with _lock:
        if _library is None and not _failure:
            try:
                _library = _bound(build.load("attention"))
            except (build.BuildError, AttributeError, OSError) as error:
                _failure = f"{error}. {getattr(error, 'advice', build.BuildError.advice)}"
    return _library


def _bound(library: ctypes.CDLL) -> ctypes.CDLL:
    sizes, real = ctypes.POINTER(ctypes.c_int64), ctypes.c_double
    out = [ctypes.POINTER(ctypes.c_void_p)] * 2  # the second may be null
    library.attention_forward.argtypes = [
        *[_POINTER] * 4, sizes, real, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, *out, _INT,
    ]  # fmt: skip
    library.attention_spans.argtypes = [_POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER]
    library.attention_backward.argtypes = [*[_POINTER] * 4, sizes, real, _INT, *[_POINTER] * 5, _INT]
    library.attention_panel_sizes.argtypes = [ctypes.c_int64, sizes]
    library.attention_panel_sizes.restype = None
    library.attention_screen.argtypes = [_POINTER, ctypes.c_int64, _INT]
    library.attention_decode.argtypes = [*[_POINTER] * 4, ctypes.c_int64, _INT]
    library.attention_free.argtypes = [_POINTER]
    library.attention_free.restype = None
    library.sparse_attention_isa.restype = ctypes.c_char_p
    return library


@dataclass(frozen=True)
class Saved:
    """The support: row r = h n + i has the ``columns`` from ``row_pointers[r]`` to ``row_pointers[r + 1]``.

    The weights P on the support are stored only on request.
    """

    row_pointers: Tensor  # int64 [H n + 1]
    columns: Tensor  # [entries], increasing within a row; uint16 for up to 65536 keys, else int32
    weights_: Tensor | None  # float32 [entries], > 0
    heads: int
    queries: int
    keys: int
    pairs: int  # number of pairs of a query and a key that it may see
    alpha: float
    scale: float

    @property
    def density(self) -> float:
        """The share of pairs in the support, among all pairs that mask and lengths allow."""
        return self.columns.numel() / self.pairs if self.pairs else 0.0

    def weights(self) -> Tensor:
        """P as a dense tensor [H, n, m]. Raises ``ValueError`` if P was not stored."""
        if self.weights_ is None:
            raise ValueError("P was not kept; call forward(..., weights=True)")
        p = self.weights_.new_zeros(self.heads * self.queries, self.keys)
        rows = torch.repeat_interleave(torch.arange(p.shape[0]), self.row_pointers.diff())
        p[rows, self.columns.long()] = self.weights_
        return p.view(self.heads, self.queries, self.keys)


def refusal(q: Tensor, k: Tensor, v: Tensor, alpha: float, decoding: bool = False) -> str | None:
    """Why the fused kernel cannot take these tensors, as a clause, or None. The first call builds the library.

    ``decoding``: for `step`, which also takes half precision, the same in all three.
    """
    dtype = q.dtype if decoding and q.dtype in ELEMENTS else torch.float32
    if alpha not in _POWERS:
        return f"alpha is {alpha}; fused are 2.0 (sparsemax) and 1.5 (entmax15)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided:
            return f"{name} is not a plain dense tensor"
        if x.device.type != "cpu" or x.dtype != dtype:
            return f"{name} is {x.dtype} on {x.device}; fused is {str(dtype)[6:]} on the CPU"
        if x.ndim != 3:
            return f"{name} has {x.ndim} dimensions; fused are 3: heads, positions, channels"
    if k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2] or (q.shape[0] and q.shape[0] % max(k.shape[0], 1)):
        return f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit each other"
    if not q.shape[0] or not k.shape[0] or not q.shape[2] or not v.shape[2]:
        return "a dimension is empty"
    if k.shape[1] >= 2**31 - 4096:
        return "more keys than 32 bit columns can count"
    if _load() is None:
        return f"there are no native kernels: {_failure}"
    return None


def spans_of(mask: Tensor) -> Tensor | None:
    """The spans int64 [..., 2] of a mask, bool [..., m] on the CPU; None if the keys of some row are not together, or if
    there is no library."""
    library = _load()
    mask = dense(mask)
    spans = torch.empty(*mask.shape[:-1], 2, dtype=torch.int64)
    rows = spans.numel() // 2
    at = None if library is None else address(mask, torch.bool, rows * mask.shape[-1])
    return spans if library and library.attention_spans(at, rows, mask.shape[-1], spans.data_ptr()) else None


def _visible(heads: int, n: int, m: int, causal: bool, lengths: Tensor | None, spans: Tensor | None) -> Tensor:
    """The number of keys that each query sees: int64 [H, n], or a shape that broadcasts to it."""
    limits = torch.full((1, 1), m)
    if lengths is not None:
        limits = limits.minimum(lengths.view(heads, 1))
    if causal:
        limits = limits.minimum(torch.arange(1 + m - n, 1 + m))
    if spans is not None:
        limits = limits.minimum(spans[..., 1]) - spans[..., 0]
    return limits.clamp(min=0)


def _per_head(lengths: Tensor | None, heads: int, groups: int) -> Tensor | None:
    if lengths is None:
        return None
    if lengths.shape not in ((heads,), (groups,)):
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)}; pass ({heads},), one per head, or ({groups},), one per group"
        )
    lengths = dense(lengths.to("cpu", torch.int64))
    return lengths if lengths.shape == (heads,) else lengths.repeat_interleave(heads // groups)


def _adopt(address: int | None, entries: int, kind: Any, dtype: torch.dtype) -> Tensor:
    """A tensor that uses memory of the library; the memory is freed with the tensor."""
    assert _library is not None
    if not address or not entries:
        _library.attention_free(address)
        return torch.empty(0, dtype=dtype)
    buffer = (kind * entries).from_address(address)
    weakref.finalize(buffer, _library.attention_free, address).atexit = False
    return torch.frombuffer(buffer, dtype=dtype)


def _addresses(q: Tensor, k: Tensor, v: Tensor) -> list[int]:
    (heads, n, d), (groups, m, e) = q.shape, v.shape
    return [address(x, torch.float32, c) for x, c in ((q, heads * n * d), (k, groups * m * d), (v, groups * m * e))]


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * 6)(q.shape[0], k.shape[0], q.shape[1], k.shape[1], q.shape[2], v.shape[2])


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float,
    scale: float,
    causal: bool = False,
    lengths: Tensor | None = None,
    spans: Tensor | None = None,
    save: bool = True,
    weights: bool = False,
) -> tuple[Tensor, Saved | None]:
    """Returns out [H, n, e] and, if ``save``, the data that ``backward`` needs, including P if ``weights``.

    Call it only with tensors for which ``refusal`` returns None. Raises ``MemoryError``.
    """
    library = _load()
    assert library is not None, _failure
    q, k, v = (dense(x.detach()) for x in (q, k, v))
    (heads, n, _), (groups, m, _) = q.shape, k.shape
    lengths = _per_head(lengths, heads, groups)
    if spans is not None and spans.shape not in ((1, n, 2), (heads, n, 2)):
        raise ValueError(f"spans has shape {tuple(spans.shape)}; pass (1, {n}, 2) or ({heads}, {n}, 2)")
    spans = None if spans is None else dense(spans)
    out = q.new_empty(heads, n, v.shape[2])
    pointers = torch.empty(heads * n + 1, dtype=torch.int64) if save else None
    columns, p = ctypes.c_void_p(), ctypes.c_void_p() if save and weights else None
    failed = library.attention_forward(
        *_addresses(q, k, v),
        out.data_ptr(),
        _sizes(q, k, v),
        scale,
        causal,
        None if lengths is None else address(lengths, torch.int64, heads),
        None if spans is None else address(spans, torch.int64, spans.numel()),
        spans is not None and spans.shape[0] > 1,
        _POWERS[alpha],
        None if pointers is None else pointers.data_ptr(),
        columns,
        p,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(
            f"no memory for the support of {heads} x {n} queries over {m} keys; use fewer heads at a time"
        )
    if pointers is None:
        return out, None
    limits, entries = _visible(heads, n, m, causal, lengths, spans), int(pointers[-1])
    pairs = int(limits.sum()) * (heads * n // limits.numel() if limits.numel() else 0)
    kept = None if p is None else _adopt(p.value, entries, ctypes.c_float, torch.float32)
    kind, dtype = (ctypes.c_uint16, torch.uint16) if m <= 65536 else (ctypes.c_int32, torch.int32)
    at = _adopt(columns.value, entries, kind, dtype)
    return out, Saved(pointers, at, kept, heads, n, m, pairs, alpha, scale)


def backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients dq, dk and dv for ``grad_out`` [H, n, e]. Raises ``MemoryError``."""
    assert _library is not None
    g, q, k, v = (dense(x.detach()) for x in (grad_out, q, k, v))
    pointers, columns = saved.row_pointers, saved.columns
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    failed = _library.attention_backward(
        *_addresses(q, k, v),
        address(g, torch.float32, q.shape[0] * q.shape[1] * v.shape[2]),
        _sizes(q, k, v),
        saved.scale,
        _POWERS[saved.alpha],
        address(pointers, torch.int64, q.shape[0] * q.shape[1] + 1),
        address(columns, torch.uint16 if k.shape[1] <= 65536 else torch.int32, int(pointers[-1])),
        dq.data_ptr(),
        dk.data_ptr(),
        dv.data_ptr(),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"no memory for the gradients at {saved.columns.numel()} entries; use fewer heads at a time")
    return dq, dk, dv


def instruction_set() -> str:
    """``avx512``, ``avx2`` or ``portable``. Raises ``RuntimeError`` if there is no library."""
    library = _load()
    if library is None:
        raise RuntimeError(f"the fused attention is unavailable: {_failure}")
    return str(library.sparse_attention_isa().decode())
