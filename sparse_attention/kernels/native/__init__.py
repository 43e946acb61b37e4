"""The CPU backend: plain C++, compiled on first use, called through ctypes.

Each operation maps rows: ``x`` is a contiguous float32 or float64 CPU tensor [R, n], R >= 0, n >= 1. ``-inf`` marks
excluded positions (exactly 0 in the result, no gradient); a row without any other position gives zeros; a row with NaN
or +inf gives NaN. ``forward(x, **params) -> (p, saved)``, ``backward(g, p, saved, **params) -> dx``, all [R, n].

The sources are in ``src/`` and read top down: ``api.cpp``, then one header per family. ctypes releases the interpreter
lock during a call; a call uses up to ``torch.get_num_threads()`` threads once it has more than about a millisecond of
work. Importing this module builds nothing.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import build

_EXCLUDED, _OUT_OF_MEMORY = 1, 2
_POINTER, _SIZE, _REAL, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
# name -> (arrays, reals) of forward and backward: arrays..., rows, n, reals..., threads
_SIGNATURES = {
    "sparsemax": ((2, 1), (3, 1)),
    "entmax": ((2, 1), (3, 1)),
    "pnormmax": ((2, 2), (3, 2)),
    "fusedmax": ((2, 2), (4, 1)),
    "oscarmax": ((3, 2), (3, 1)),
    "constrained_sparsemax": ((3, 0), (5, 0)),
}

_library: ctypes.CDLL | None = None
_failed = False
_lock = threading.Lock()
_threads = torch.get_num_threads


def _declare(library: ctypes.CDLL) -> None:
    for name, signature in _SIGNATURES.items():
        for direction, (arrays, reals) in zip(("forward", "backward"), signature, strict=True):
            for suffix in ("f32", "f64"):
                function = getattr(library, f"{name}_{direction}_{suffix}")
                function.argtypes = [*[_POINTER] * arrays, _SIZE, _SIZE, *[_REAL] * reals, _INT]
                function.restype = _INT
    library.sparse_attention_isa.restype = ctypes.c_char_p


def _ready() -> bool:
    """Build and load on the first call; after a failure, say so once and stay unavailable."""
    global _library, _failed
    if _library is not None:
        return True
    if _failed:
        return False
    with _lock:
        if _library is None and not _failed:
            try:
                library = build.load()
                _declare(library)
                for op in OPS.values():
                    op.bind(library)
                _library = library
            except (build.BuildError, AttributeError, OSError) as error:
                _failed = True
                warnings.warn(
                    "sparse_attention: no fast CPU kernels, falling back to the slower reference in torch. "
                    f"Reason: {error}. Install a C++ compiler (for example the package g++) or point CXX at one; "
                    "to silence this, set SPARSE_ATTENTION_KERNELS=reference.",
                    RuntimeWarning,
                    stacklevel=3,
                )
    return _library is not None


def available(op: str, x: Tensor) -> bool:
    """Whether ``op`` can run on ``x`` here; the first call builds the library."""
    return (
        op in OPS
        and x.device.type == "cpu"
        and (x.dtype is torch.float32 or x.dtype is torch.float64)
        and (_library is not None or _ready())
    )


def instruction_set() -> str:
    """``avx512``, ``avx2`` or ``portable``: what the loaded library uses for float32. Raises ``RuntimeError``."""
    if not _ready() or _library is None:
        raise RuntimeError("the native kernels are not available; the warning shown before says why")
    return str(_library.sparse_attention_isa().decode())


def _check(status: int, x: Tensor) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"no working memory for rows of {x.shape[-1]} scores; use fewer threads or shorter rows")


def _row_major(g: Tensor) -> Tensor:
    return g if g.is_contiguous() else g.contiguous()


class _Op:
    """The two directions of one operation, for both types."""

    __slots__ = ("name", "_forward", "_backward", "_forward64", "_backward64")
    _forward: Callable[..., int]
    _backward: Callable[..., int]
    _forward64: Callable[..., int]
    _backward64: Callable[..., int]

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, library: ctypes.CDLL) -> None:
        self._forward = getattr(library, f"{self.name}_forward_f32")
        self._backward = getattr(library, f"{self.name}_backward_f32")
        self._forward64 = getattr(library, f"{self.name}_forward_f64")
        self._backward64 = getattr(library, f"{self.name}_backward_f64")

    def _for(self, x: Tensor) -> tuple[Callable[..., int], Callable[..., int]]:
        if x.dtype is torch.float32:
            return self._forward, self._backward
        return self._forward64, self._backward64


class _OneParameter(_Op):
    """sparsemax(gamma), entmax(alpha)."""

    __slots__ = ()

    def forward(self, x: Tensor, value: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, n = x.shape
        p = torch.empty_like(x)
        call = self._forward if x.dtype is torch.float32 else self._forward64
        if call(x.data_ptr(), p.data_ptr(), rows, n, value, _threads()):
            _check(_OUT_OF_MEMORY, x)
        return p, ()

    def backward(self, g: Tensor, p: Tensor, value: float) -> Tensor:
        rows, n = p.shape
        if not g.is_contiguous():
            g = g.contiguous()
        dx = torch.empty_like(p)
        call = self._backward if p.dtype is torch.float32 else self._backward64
        if call(g.data_ptr(), p.data_ptr(), dx.data_ptr(), rows, n, value, _threads()):
            _check(_OUT_OF_MEMORY, p)
        return dx


class _Sparsemax(_OneParameter):
    __slots__ = ()

    def forward(self, x: Tensor, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().forward(x, gamma)

    def backward(self, g: Tensor, p: Tensor, saved: Any, gamma: float = 1.0) -> Tensor:  # type: ignore[override]
        return super().backward(g, p, gamma)


class _Entmax(_OneParameter):
    __slots__ = ()

    def forward(self, x: Tensor, alpha: float = 1.5) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().forward(x, alpha)

    def backward(self, g: Tensor, p: Tensor, saved: Any, alpha: float = 1.5) -> Tensor:  # type: ignore[override]
        return super().backward(g, p, alpha)


class _Pnormmax(_Op):
    __slots__ = ()

    def forward(self, x: Tensor, p: float = 1.5, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        out = torch.empty_like(x)
        call, _ = self._for(x)
        _check(call(x.data_ptr(), out.data_ptr(), *x.shape, p, gamma, _threads()), x)
        return out, ()

    def backward(self, g: Tensor, out: Tensor, saved: Any, p: float = 1.5, gamma: float = 1.0) -> Tensor:
        g, dx = _row_major(g), torch.empty_like(out)
        _, call = self._for(out)
        _check(call(g.data_ptr(), out.data_ptr(), dx.data_ptr(), *out.shape, p, gamma, _threads()), out)
        return dx


class _Fusedmax(_Op):
    """Saves the scores if some were excluded: only they tell an excluded neighbour from one with probability 0."""

    __slots__ = ()

    def forward(self, x: Tensor, lam: float = 1.0, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        p = torch.empty_like(x)
        call, _ = self._for(x)
        status = call(x.data_ptr(), p.data_ptr(), *x.shape, lam, gamma, _threads())
        _check(status, x)
        return p, (x,) if status == _EXCLUDED else ()

    def backward(
        self, g: Tensor, p: Tensor, saved: tuple[Tensor, ...], lam: float = 1.0, gamma: float = 1.0
    ) -> Tensor:
        g, dx = _row_major(g), torch.empty_like(p)
        _, call = self._for(p)
        x = saved[0].data_ptr() if saved else None
        _check(call(g.data_ptr(), p.data_ptr(), x, dx.data_ptr(), *p.shape, gamma, _threads()), p)
        return dx


class _Oscarmax(_Op):
    """Saves each entry's block of equal values, int32 [R, n], -1 off the support."""

    __slots__ = ()

    def forward(self, x: Tensor, lam: float = 1.0, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        p, blocks = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
        call, _ = self._for(x)
        _check(call(x.data_ptr(), p.data_ptr(), blocks.data_ptr(), *x.shape, lam, gamma, _threads()), x)
        return p, (blocks,)

    def backward(
        self, g: Tensor, p: Tensor, saved: tuple[Tensor, ...], lam: float = 1.0, gamma: float = 1.0
    ) -> Tensor:
        g, dx = _row_major(g), torch.empty_like(p)
        _, call = self._for(p)
        _check(call(g.data_ptr(), saved[0].data_ptr(), dx.data_ptr(), *p.shape, gamma, _threads()), p)
        return dx


class _ConstrainedSparsemax(_Op):
    __slots__ = ()

    def forward(self, x: Tensor, bounds: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        bounds, p = _row_major(bounds), torch.empty_like(x)
        call, _ = self._for(x)
        _check(call(x.data_ptr(), bounds.data_ptr(), p.data_ptr(), *x.shape, _threads()), x)
        return p, ()

    def backward(self, g: Tensor, p: Tensor, saved: Any, bounds: Tensor) -> tuple[Tensor, Tensor]:
        g, bounds, dx, du = _row_major(g), _row_major(bounds), torch.empty_like(p), torch.empty_like(p)
        _, call = self._for(p)
        pointers = (g.data_ptr(), p.data_ptr(), bounds.data_ptr(), dx.data_ptr(), du.data_ptr())
        _check(call(*pointers, *p.shape, _threads()), p)
        return dx, du


OPS: dict[str, Any] = {
    "sparsemax": _Sparsemax("sparsemax"),
    "entmax": _Entmax("entmax"),
    "pnormmax": _Pnormmax("pnormmax"),
    "fusedmax": _Fusedmax("fusedmax"),
    "oscarmax": _Oscarmax("oscarmax"),
    "constrained_sparsemax": _ConstrainedSparsemax("constrained_sparsemax"),
}
