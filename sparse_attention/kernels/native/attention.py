"""Fused attention on the CPU: ``mapping(scale q k') v`` for entmax with alpha 1.05 to 4, without the matrix of scores.

This is a separate library (``src/attention.cpp``), compiled on first use in a few seconds. For each query, it stores
only the candidate keys, computes the exact threshold on them, and keeps only the support for the backward pass; see
docs/reference/kernels.md. Arrays are float32: q [H, n, d], k [G, m, d], v [G, m, e]; query head h reads group ``h // (H // G)``.

    ``alpha``    2.0 for sparsemax, 1.5 for entmax15
    ``alphas``   float [H], one for each head instead; it has a gradient
    ``causal``   query i sees the keys 0 .. i + m - n: the ends are aligned, as a cache needs (torch aligns the starts)
    ``lengths``  int64 [H] or [G]: keys at this position and after are padding
    ``spans``    int64 [1, n, 2] or [H, n, 2]: a query sees the keys from the first number to below the second
    ``pinned``   every query also sees key 0
    ``bias``     added to the scores, broadcastable to [*lead, n, m], where H is the product of ``lead`` ([H] by default);
                 it has a gradient
    ``mask``     bool, broadcastable to the same: the keys that a query sees

A query without keys gives zeros. A score of -inf excludes its key; NaN or +inf among the scores of a query makes its
row NaN, as everywhere in this package. Values outside the support are never read, so a NaN there has no effect. Results
do not depend on the number of threads, with one exception: with fewer groups than threads, the sums in dk and dv are
computed in another order (but each run gives the same bits).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from . import build
from .attention_shape import ALPHAS, Gradients, Saved, Shape, given, layout
from .attention_shape import per_head as _per_head
from .memory import address, dense

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_POWERS = {2.0: 1, 1.5: 2}  # of decoding: p = (s - tau)_+^power

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
    library.attention_spans.argtypes = [_POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER]
    library.attention_backward.argtypes = [shape, *[_POINTER] * 11, _INT]
    library.attention_scatter.argtypes = [shape, *[_POINTER] * 5, ctypes.c_int64, ctypes.c_int64]
    library.attention_scatter.restype = None
    library.attention_panel_sizes.argtypes = [ctypes.c_int64, sizes]
    library.attention_panel_sizes.restype = None
    library.attention_screen.argtypes = [_POINTER, ctypes.c_int64, _INT]
    library.attention_decode.argtypes = [_POINTER, _POINTER, _POINTER, _INT]
    library.attention_free.argtypes = [_POINTER]
    library.attention_free.restype = None
    library.sparse_attention_isa.restype = ctypes.c_char_p
    return library


def refusal(q: Tensor, k: Tensor, v: Tensor, alpha: float, every: bool = False) -> str | None:
    """Why the fused kernel cannot take these tensors, as a clause, or None. The first call builds the library.

    ``forward`` and ``backward`` take ``every`` alpha of `ALPHAS`, ``decode`` only 1.5 and 2.
    """
    if every and not ALPHAS[0] <= alpha <= ALPHAS[1]:
        return f"alpha is {alpha}; fused are {ALPHAS[0]} to {ALPHAS[1]}"
    if not every and alpha not in _POWERS:
        return f"alpha is {alpha}; fused are 2.0 (sparsemax) and 1.5 (entmax15)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided:
            return f"{name} is not a plain dense tensor"
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return f"{name} is {x.dtype} on {x.device}; fused is float32 on the CPU"
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


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: float, scale: float, causal: bool = False, lengths: Tensor | None = None,
    spans: Tensor | None = None, alphas: Tensor | None = None, pinned: bool = False, bias: Tensor | None = None,
    mask: Tensor | None = None, lead: tuple[int, ...] | None = None, save: bool = True, weights: bool = False,
) -> tuple[Tensor, Saved | None]:  # fmt: skip
    """Returns out [H, n, e] and, if ``save``, the data that ``backward`` needs, including P if ``weights``.

    Call it only with tensors for which ``refusal`` returns None. Raises ``MemoryError``.
    """
    library = _load()
    assert library is not None, _failure
    q, k, v = (dense(x.detach()) for x in (q, k, v))
    (heads, n, _), m = q.shape, k.shape[1]
    of = given(
        q, k, v, alpha=alpha, scale=scale, causal=causal, lengths=lengths, spans=spans, alphas=alphas, pinned=pinned,
        bias=bias, mask=mask, lead=lead,
    )  # fmt: skip
    out = q.new_empty(heads, n, v.shape[2])
    pointers = torch.empty(heads * n + 1, dtype=torch.int64) if save else None
    columns, p = ctypes.c_void_p(), ctypes.c_void_p() if save and weights else None
    failed = library.attention_forward(
        of.shape,
        *_addresses(q, k, v),
        out.data_ptr(),
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
    entries = int(pointers[-1])
    kept = None if p is None else _adopt(p.value, entries, ctypes.c_float, torch.float32)
    kind, dtype = (ctypes.c_uint16, torch.uint16) if m <= 65536 else (ctypes.c_int32, torch.int32)
    return out, Saved(pointers, _adopt(columns.value, entries, kind, dtype), kept, of, lead or (heads,))


def backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients dq, dk and dv for ``grad_out`` [H, n, e]. Raises ``MemoryError``."""
    found = gradients(grad_out, q, k, v, saved)
    return found.q, found.k, found.v


def gradients(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Saved, of_bias: bool = False) -> Gradients:
    """The gradients for ``grad_out`` [H, n, e], with that of the bias if ``of_bias``. Raises ``MemoryError``."""
    assert _library is not None
    g, q, k, v = (dense(x.detach()) for x in (grad_out, q, k, v))
    pointers, columns, of = saved.row_pointers, saved.columns, saved.of
    rows, m = q.shape[0] * q.shape[1], k.shape[1]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dalphas = None if of.alphas is None else torch.empty(*q.shape[:2], dtype=torch.float64)
    scores = torch.empty(saved.columns.numel()) if of_bias and of.bias is not None else None
    failed = _library.attention_backward(
        of.shape,
        *_addresses(q, k, v),
        address(g, torch.float32, rows * v.shape[2]),
        address(pointers, torch.int64, rows + 1),
        address(columns, torch.uint16 if m <= 65536 else torch.int32, int(pointers[-1])),
        dq.data_ptr(),
        dk.data_ptr(),
        dv.data_ptr(),
        None if dalphas is None else dalphas.data_ptr(),
        None if scores is None else scores.data_ptr(),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"no memory for the gradients at {saved.columns.numel()} entries; use fewer heads at a time")
    dbias = None
    if scores is not None and of.bias is not None:
        dbias = torch.zeros(of.bias.shape, dtype=torch.float64)
        at, row, key = layout(dbias, saved.lead)
        _library.attention_scatter(
            of.shape, pointers.data_ptr(), columns.data_ptr(), scores.data_ptr(), dbias.data_ptr(), at.data_ptr(), row, key
        )  # fmt: skip
    return Gradients(dq, dk, dv, None if dalphas is None else dalphas.sum(1), dbias)


class KeyPanels:
    """Keys [G, m, d] rounded to 8 bits, in panels of ``panel_keys`` keys, with bounds.

    ``decode`` uses them to find candidate keys. Call ``append``, ``crop`` and ``reorder`` whenever you change the keys
    in the same way. Only complete panels are rounded. The centre and spread of the channels are computed from the keys
    at the first append that completes a panel. Later keys may be distributed differently, since the bounds are measured
    for each panel. The panels take d + 0.5 bytes per key. If there is no 8-bit path (portable builds, or d > 1024),
    nothing is stored.
    """

    def __init__(self, groups: int, d: int):
        library = _load()
        assert library is not None, _failure
        sizes = (ctypes.c_int64 * 3)()
        library.attention_panel_sizes(d, sizes)
        self._bytes, width, self.panel_keys = sizes
        self.panels = 0
        self.of = groups, d
        # value, panel, center, spread, center_length
        self._held = [
            torch.empty(groups, 0, self._bytes, dtype=torch.uint8),
            torch.empty(groups, 0, 4),
            torch.empty(groups, width),
            torch.empty(groups, width),
            torch.empty(groups),
        ]

    def append(self, k: Tensor) -> KeyPanels:
        """Round the newly complete panels. ``k`` [G, m, d] has all keys so far; only its first stride is arbitrary."""
        last = k.shape[1] // self.panel_keys if self._bytes else 0
        if last <= self.panels:
            return self
        held = self._held[0].shape[1]
        if last > held:
            for i in (0, 1):
                grown = self._held[i].new_empty(k.shape[0], max(last, 2 * held), self._held[i].shape[2])
                grown[:, : self.panels] = self._held[i][:, : self.panels]
                self._held[i] = grown
        _rows_together("k", k)
        assert _library is not None
        step = _step(k, k, self, last, k.shape[0], None, 0.0, 1)
        if _library.attention_screen(ctypes.addressof(step), self.panels, torch.get_num_threads()):
            raise MemoryError("no memory to round keys in")
        self.panels = last
        return self

    def crop(self, length: int) -> None:
        """Drop all keys after the first ``length``."""
        self.panels = min(self.panels, length // self.panel_keys)

    def reorder(self, index: Tensor) -> None:
        """Keep the groups ``index``, int64 [G'], in that order."""
        self._held = [x.index_select(0, index) for x in self._held]
        self.of = index.numel(), self.of[1]

    def due(self, keys: int) -> bool:
        """True if this number of keys completes a panel that is not rounded yet."""
        return self._bytes > 0 and keys // self.panel_keys > self.panels


class Step(ctypes.Structure):
    """The arguments of a decoding step: the addresses and layout of a cache (`Step` in ``src/attention.cpp``).

    A step may be reused as long as keys, values and panels stay in the same memory; ``m`` is the number of keys. It
    does not keep any tensor alive.
    """

    _fields_ = [
        *[(name, _POINTER) for name in ("k", "v")],
        *[(name, ctypes.c_int64) for name in ("stride_k", "stride_v")],
        *[(name, _POINTER) for name in ("value", "panel", "center", "spread", "center_length")],
        *[(name, ctypes.c_int64) for name in ("room", "panels", "heads", "groups", "m", "d", "e")],
        ("scale", ctypes.c_double),
        ("lengths", _POINTER),
        ("power", ctypes.c_int64),
    ]

    def __call__(self, q: Tensor, out: Tensor) -> Tensor:
        """Write the attention of q, contiguous [..., d], to ``out``, contiguous [..., e].

        Raises ``MemoryError``, and the errors of `memory.address`.
        """
        address(q, torch.float32, self.heads * self.d)
        address(out, torch.float32, self.heads * self.e)
        return self.unchecked(q, out)

    def unchecked(self, q: Tensor, out: Tensor) -> Tensor:
        """The same without checks, for q and out that the caller has already checked."""
        assert _library is not None
        if _library.attention_decode(ctypes.addressof(self), q.data_ptr(), out.data_ptr(), torch.get_num_threads()):
            raise MemoryError(f"no memory for rows of {self.m} scores; use fewer threads")
        return out


def _step(
    k: Tensor, v: Tensor, panels: KeyPanels, rounded: int, heads: int, lengths: Tensor | None, scale: float, power: int
) -> Step:
    if panels.of != (k.shape[0], k.shape[2]) or v.shape[:2] != k.shape[:2] or heads % max(k.shape[0], 1):
        raise ValueError(f"{heads} heads, k {tuple(k.shape)}, v {tuple(v.shape)} and panels of {panels.of} groups and channels do not fit")  # fmt: skip
    at = None if lengths is None else address(lengths, torch.int64, heads)
    memory = (k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0), *(x.data_ptr() for x in panels._held))
    return Step(*memory, panels._held[0].shape[1], rounded, heads, *k.shape, v.shape[2], scale, at, power)


def _rows_together(name: str, x: Tensor) -> None:
    if x.shape[0]:
        address(x[:1, :1], torch.float32, x.shape[2] if x.shape[1] else 0)  # checks dtype, device, contiguous channels
    if x.shape[1] > 1 and x.stride(1) != x.shape[2]:
        raise ValueError(
            f"{name} has strides {x.stride()}; positions and channels must be contiguous; only groups may be apart"
        )


def step(heads: int, k: Tensor, v: Tensor, panels: KeyPanels, *, alpha: float, scale: float, lengths: Tensor | None = None) -> Step:  # fmt: skip
    """Prepare attention of one query per head to k [G, m, d] and v [G, m, e], as ``forward`` computes for n = 1.

    For inference only. ``panels`` belong to k but need not cover all of it: the scores of the other keys are computed
    in float32. ``lengths`` is int64 [heads]. Only the first stride of k and v is arbitrary, so they may be views of a
    longer buffer. Raises ``ValueError`` for other strides.
    """
    _rows_together("k", k)
    _rows_together("v", v)
    return _step(k, v, panels, panels.panels, heads, lengths, scale, _POWERS[alpha])


def decode(
    q: Tensor, k: Tensor, v: Tensor, panels: KeyPanels, *, alpha: float, scale: float, lengths: Tensor | None = None
) -> Tensor:
    """Prepare and run a `step`: q [H, d] -> [H, e]. Raises ``ValueError`` or ``MemoryError``."""
    lengths = _per_head(lengths, q.shape[0], k.shape[0])
    ready = step(q.shape[0], k, v, panels, alpha=alpha, scale=scale, lengths=lengths)
    return ready(dense(q), q.new_empty(q.shape[0], v.shape[2]))


def instruction_set() -> str:
    """``avx512``, ``avx2`` or ``portable``. Raises ``RuntimeError`` if there is no library."""
    library = _load()
    if library is None:
        raise RuntimeError(f"the fused attention is unavailable: {_failure}")
    return str(library.sparse_attention_isa().decode())
