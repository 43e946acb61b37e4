"""Decoding on the CPU: attention of one query per head to a cache of float32, bfloat16 or float16 (``src/attention_decode.h``)."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from . import attention
from .attention import _POINTER, _POWERS, ELEMENTS
from .memory import places


class KeyPanels:
    """Keys [G, m, d] rounded to 8 bits, in panels of ``panel_keys`` keys, with bounds.

    A `step` uses them to find candidate keys. Call ``append``, ``crop`` and ``reorder`` whenever you change the keys
    in the same way. Only complete panels are rounded. The centre and spread of the channels are computed from the keys
    at the first append that completes a panel. Later keys may be distributed differently, since the bounds are measured
    for each panel. The panels take d + 0.5 bytes per key. If there is no 8-bit path (portable builds, or d > 1024),
    nothing is stored.
    """

    def __init__(self, groups: int, d: int):
        library = attention._load()
        assert library is not None, attention._failure
        sizes = (ctypes.c_int64 * 3)()
        library.attention_panel_sizes(d, sizes)
        self._bytes, width, self.panel_keys = sizes
        self.panels = 0
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
        library = attention._library
        assert library is not None
        every = step(k.shape[0], k, k, self)
        every.panels = last
        if library.attention_screen(ctypes.addressof(every), self.panels, torch.get_num_threads()):
            raise MemoryError("no memory for the 8-bit copy of the keys; use fewer keys or heads at a time")
        self.panels = last
        return self

    def crop(self, length: int) -> None:
        """Drop all keys after the first ``length``."""
        self.panels = min(self.panels, length // self.panel_keys)

    def reorder(self, index: Tensor) -> None:
        """Keep the groups ``index``, int64 [G'], in that order."""
        self._held = [x.index_select(0, index) for x in self._held]

    def due(self, keys: int) -> bool:
        """True if this number of keys completes a panel that is not rounded yet."""
        return self._bytes > 0 and keys // self.panel_keys > self.panels


class Step(ctypes.Structure):
    """The arguments of a decoding step: the addresses and layout of a cache (`Step` in ``src/attention.cpp``).

    A step may be reused as long as keys, values and panels stay in the same memory; ``m`` is the number of keys. Of the
    tensors, it keeps only the small ones alive. The cache notes for which queries it is, and what their output is like.
    """

    queries: torch.Size
    out: Tensor
    held: tuple[Tensor, ...]

    _fields_ = [
        *[(name, _POINTER) for name in ("k", "v")],
        *[(name, ctypes.c_int64) for name in ("stride_k", "stride_v")],
        *[(name, _POINTER) for name in ("value", "panel", "center", "spread", "center_length")],
        *[(name, ctypes.c_int64) for name in ("room", "panels", "heads", "groups", "m", "d", "e")],
        ("scale", ctypes.c_double),
        ("lengths", _POINTER),
        *[(name, ctypes.c_int64) for name in ("power", "element")],
        *[(name, _POINTER) for name in ("scales", "slopes", "sinks")],
        *[(name, ctypes.c_int64) for name in ("form_heads", "window")],
        ("factor", ctypes.c_double),
    ]

    def __call__(self, q: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """Write the attention of q, contiguous [..., d], to ``out``, contiguous [..., e], both of the cache's dtype.

        ``bias``, float32 [H, m] or [1, m] with contiguous rows, is added to the scores. Raises ``MemoryError``.
        """
        library = attention._library
        assert library is not None
        at, apart = (None, 0) if bias is None else (*places(bias), bias.stride(0) if bias.shape[0] > 1 else 0)
        given = q.data_ptr(), out.data_ptr(), at, apart, torch.get_num_threads()
        if library.attention_decode(ctypes.addressof(self), *given):
            raise MemoryError(f"no memory for rows of {self.m} scores; use fewer threads")
        return out


def step(
    heads: int, k: Tensor, v: Tensor, panels: KeyPanels, *, alpha: float = 2.0, scale: float = 1.0, factor: float = 1.0,
    window: int | None = None, **arrays: Tensor | None,
) -> Step:  # fmt: skip
    """Prepare attention of one query per head to k [G, m, d] and v [G, m, e], as ``forward`` computes for n = 1.

    For inference only. ``panels`` belong to k but need not cover all of it: the scores of the other keys are computed
    in float32. k and v are of one of ``ELEMENTS``; only their first stride is arbitrary, so they may be views of a longer
    buffer. Nothing is checked here: `KeyCache` holds all of it in this form.

    arrays: ``lengths``, int64 [heads]; ``scales``, ``slopes`` and ``sinks``, float32 [h] for a divisor h of the heads. The
    scores of a head are multiplied by ``scale`` and its own scale; slopes, sinks and the bias are as in
    `sparse_attention`, multiplied by ``factor``. Only the last ``window`` keys are seen.
    """
    given = {name: x for name, x in arrays.items() if x is not None}
    each = next((x.numel() for name, x in given.items() if name != "lengths"), 1)
    memory = k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0), *(x.data_ptr() for x in panels._held)
    sizes = panels._held[0].shape[1], panels.panels, heads, *k.shape, v.shape[2]
    numbers = {
        "scale": scale,
        "power": _POWERS[alpha],
        "element": ELEMENTS[k.dtype],
        "form_heads": each,
        "factor": factor,
    }
    numbers["window"] = 2**62 if window is None else window
    made = Step(*memory, *sizes, **numbers, **dict(zip(given, places(*given.values()))))
    made.held = tuple(given.values())
    return made
