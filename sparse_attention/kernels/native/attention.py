"""Fused attention on the CPU: ``mapping(scale q k') v`` for entmax with alpha 1.05 to 4 and fusedmax, without the matrix of scores.

This is a separate library (``src/attention.cpp``), compiled on first use in a few seconds. For each query, it stores
only the candidate keys, computes the exact threshold on them, and keeps only the support for the backward pass; see
docs/reference/kernels.md. Arrays are float32: q [H, n, d], k [G, m, d], v [G, m, e]; query head h reads group ``h // (H // G)``.

    ``alpha``    2.0 for sparsemax, 1.5 for entmax15
    ``lam``      above 0: fusedmax with this lam instead, and ``alpha`` is 2
    ``alphas``   float [H], one for each head instead; it has a gradient
    ``causal``   query i sees the keys 0 .. i + m - n: the ends are aligned, as a cache needs (torch aligns the starts)
    ``lengths``  int64 [H]: keys at this position and after are padding
    ``spans``    int64 [1, n, 2] or [H, n, 2]: a query sees the keys from the first number to below the second
    ``pinned``   every query also sees key 0
    ``bias``     added to the scores, broadcastable to [*lead, n, m], where H is the product of ``lead`` ([H] by default);
                 it has a gradient
    ``mask``     bool, broadcastable to the same: the keys that a query sees
    ``dropout``  below 1: this share of the weights, chosen by a hash of ``seed`` (int64), row and key, is set to zero, and the
                 others are divided by ``1 - dropout``; forward and backward compute the same choice, and store none

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
from .attention_shape import ALPHAS, Gradients, Shape, layout, shape_of
from .memory import dense, places

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_POWERS = {2.0: 1, 1.5: 2}  # in decoding: p = (s - tau)_+^power
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
    sizes, shape = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(Shape)
    out = [ctypes.POINTER(ctypes.c_void_p)] * 2  # the second may be null
    library.attention_forward.argtypes = [shape, *[_POINTER] * 5, *out, _INT]
    library.attention_columns.argtypes = [_POINTER, _POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER]
    library.attention_dropout.argtypes = [ctypes.c_double, *[ctypes.c_int64] * 3, _POINTER]
    library.attention_spans.argtypes = [_POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER]
    library.attention_backward.argtypes = [shape, *[_POINTER] * 12, _INT]
    library.attention_scatter.argtypes = [shape, *[_POINTER] * 5, ctypes.c_int64, ctypes.c_int64, _POINTER]
    library.attention_panel_sizes.argtypes = [ctypes.c_int64, sizes]
    library.attention_screen.argtypes = [_POINTER, ctypes.c_int64, _INT]
    library.attention_decode.argtypes = [*[_POINTER] * 4, ctypes.c_int64, _INT]
    library.attention_free.argtypes = [_POINTER]
    for name in ("columns", "dropout", "scatter", "panel_sizes", "free"):
        getattr(library, f"attention_{name}").restype = None
    library.sparse_attention_isa.restype = ctypes.c_char_p
    return library


@dataclass(frozen=True)
class Saved:
    """The support: row r = h n + i has the ``columns`` from ``row_pointers[r]`` to ``row_pointers[r + 1]``.

    A row takes 2 bytes per entry (4 beyond 65,536 keys), or one bit per key if that is less (``src/attention_support.h``).
    The weights P on the support are stored only on request and for fusedmax, which marks the first of each run of equal
    neighbours by a minus sign.
    """

    row_pointers: Tensor  # int64 [H n + 1]
    held: Tensor  # uint8, the support as the library holds it
    weights_: Tensor | None  # float32 [entries], > 0
    of: Shape
    lead: tuple[int, ...]


def refusal(q: Tensor, k: Tensor, v: Tensor, alpha: float, decoding: bool = False) -> str | None:
    """Why the fused kernel cannot take these tensors, as a clause, or None. The first call builds the library.

    q, k and v are dense, on the CPU, not empty, and fit each other (`sparse_attention.attention.call`).
    `forward` and `backward` take every alpha of `ALPHAS` in float32; ``decoding`` takes only 1.5 and 2, but also half
    precision, if q, k and v have the same dtype.
    """
    dtype = q.dtype if decoding and q.dtype in ELEMENTS else torch.float32
    if not decoding and not ALPHAS[0] <= alpha <= ALPHAS[1]:
        return f"alpha is {alpha}; fused are {ALPHAS[0]} to {ALPHAS[1]}"
    if decoding and alpha not in _POWERS:
        return f"alpha is {alpha}; fused are 2.0 (sparsemax) and 1.5 (entmax15)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != dtype:
            return f"{name} is {x.dtype}; fused is {str(dtype)[6:]}"
    if k.shape[1] >= 2**31 - 4096:
        return "more keys than 32 bit columns can count"
    if _load() is None:
        return f"there are no native kernels: {_failure}"
    return None


def spans_of(mask: Tensor) -> Tensor | None:
    """The spans int64 [..., 2] of a mask, bool [..., m] on the CPU; None if the keys of some row are not contiguous, or if
    there is no library."""
    library = _load()
    mask = dense(mask)
    spans = torch.empty(*mask.shape[:-1], 2, dtype=torch.int64)
    rows = spans.numel() // 2
    at = mask.data_ptr(), rows, mask.shape[-1], spans.data_ptr()
    return spans if library and library.attention_spans(*at) else None


def dropout_factors(shape: tuple[int, int, int], dropout: float, seed: int) -> Tensor:
    """What `forward` multiplies the weights by, float32 of the shape [H, n, m]: 0 or ``1 / (1 - dropout)``."""
    assert _library is not None
    factors = torch.empty(shape)
    _library.attention_dropout(dropout, seed, shape[0] * shape[1], shape[2], factors.data_ptr())
    return factors


def _adopt(address: int | None, entries: int, kind: Any, dtype: torch.dtype) -> Tensor:
    """A tensor that uses memory of the library; the memory is freed with the tensor."""
    assert _library is not None
    if not address or not entries:
        _library.attention_free(address)
        return torch.empty(0, dtype=dtype)
    buffer = (kind * entries).from_address(address)
    weakref.finalize(buffer, _library.attention_free, address).atexit = False
    return torch.frombuffer(buffer, dtype=dtype)


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, save: bool = True, weights: bool = False, lam: float | None = None, **call: Any
) -> tuple[Tensor, Saved | None]:
    """Attention; ``call`` has the arguments listed at the top of this file. Returns out [H, n, e] and, if ``save``, the data that ``backward`` needs, including P (before dropout) if ``weights``.

    Call it only with tensors for which ``refusal`` returns None. Raises ``MemoryError``.
    """
    library = _load()
    assert library is not None, _failure
    q, k, v = (dense(x.detach()) for x in (q, k, v))
    (heads, n, _), m = q.shape, k.shape[1]
    of = shape_of(q, k, v, lam=lam, **call)
    out = q.new_empty(heads, n, v.shape[2])
    pointers = torch.empty(heads * n + 2, dtype=torch.int64) if save else None
    held, p = ctypes.c_void_p(), ctypes.c_void_p() if save and (weights or lam) else None
    written = *places(out, pointers), held, p
    if library.attention_forward(of, *places(q, k, v), *written, torch.get_num_threads()):
        raise MemoryError(
            f"no memory for the support of {heads} x {n} queries over {m} keys; use fewer heads at a time"
        )
    if pointers is None:
        return out, None
    entries, size = pointers[-2:].tolist()
    kept = None if p is None else _adopt(p.value, entries, ctypes.c_float, torch.float32)
    support = _adopt(held.value, size, ctypes.c_uint8, torch.uint8)
    return out, Saved(pointers[:-1], support, kept, of, call.get("lead") or (heads,))


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, bias: Tensor | None = None) -> Gradients:
    """The gradients for ``grad_out`` [H, n, e], with that of the ``bias`` if it is given. Raises ``MemoryError``."""
    assert _library is not None
    g, q, k, v = (dense(x.detach()) for x in (grad_out, q, k, v))
    pointers, of = saved.row_pointers, saved.of
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dalphas = None if not of.alphas else torch.empty(*q.shape[:2], dtype=torch.float64)
    scores = torch.empty(int(pointers[-1])) if bias is not None else None
    given = places(q, k, v, g, pointers, saved.held, saved.weights_, dq, dk, dv, dalphas, scores)
    if _library.attention_backward(of, *given, torch.get_num_threads()):
        raise MemoryError(f"no memory for gradients of {int(pointers[-1])} nonzero weights; use fewer heads at a time")
    dbias = None
    if scores is not None and bias is not None:
        dbias = torch.zeros(bias.shape, dtype=torch.float64)
        (at, row, key), room = layout(dbias, saved.lead), torch.empty(k.shape[1] + 16, dtype=torch.int32)
        _library.attention_scatter(of, *places(pointers, saved.held, scores, dbias, at), row, key, room.data_ptr())
    return Gradients(dq, dk, dv, None if dalphas is None else dalphas.sum(1), dbias)
