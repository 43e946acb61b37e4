"""The CPU backend: plain C++, built into the wheel or compiled on first use, and called through ctypes.

The operations are those of ``sparse_attention.kernels``, on float32 or float64 with any strides (see `memory`).

The sources in ``src/`` are best read from the top down: ``api.cpp`` and ``attention.cpp``, then one header per family.
ctypes releases the interpreter lock during a call. A call uses up to ``torch.get_num_threads()`` threads if it has more
than about a millisecond of work. Importing this module builds nothing.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import reference
from . import build, masked
from .memory import ByType, address, dense, nowhere

_EXCLUDED, _OUT_OF_MEMORY, _NOT_CONVERGED, _DOUBTFUL_BOUNDS = 1, 2, 4, 5
MOST_STRUCTURES = 8192  # in SparseMAP's active set; its Cholesky factor then takes 256 MiB
_POINTER, _SIZE, _REAL, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
_CTYPES = {torch.float32: "float", torch.float64: "double"}

_libraries: dict[torch.dtype, ctypes.CDLL] = {}
_failed = False
_lock = threading.Lock()
_threads = torch.get_num_threads


def _load(dtype: torch.dtype) -> bool:
    """Build and load the library for ``dtype``. After a failure, warn once and stay unavailable."""
    global _failed
    with _lock:
        if dtype not in _libraries and not _failed:
            try:
                library = build.load(_CTYPES[dtype])
                library.sparse_attention_isa.restype = ctypes.c_char_p
                if not _libraries:
                    _say_what_is_missing(library)
                for op in (*OPS.values(), *STRUCTURED.values()):
                    op.bind(library, dtype)
                masked.bind(library, dtype)
                _libraries[dtype] = library
            except (build.BuildError, AttributeError, OSError) as error:
                _failed = True
                missing = "Add the missing function to kernels/native/src/api.cpp"
                advice = missing if isinstance(error, AttributeError) else build.BuildError.advice
                warnings.warn(
                    "sparse_attention: no fast CPU kernels, falling back to the slower reference in torch. "
                    f"Reason: {error}. {getattr(error, 'advice', advice)}; "
                    "to silence this, set SPARSE_ATTENTION_KERNELS=reference.",
                    RuntimeWarning,
                    stacklevel=4,
                )
    return dtype in _libraries


def _say_what_is_missing(library: ctypes.CDLL) -> None:
    """Print, once per process, why the kernels are slower on this machine than in docs/reference/benchmarks.md."""
    x86 = platform.machine() in ("x86_64", "AMD64")  # other machines have only the portable kernels
    if x86 and library.sparse_attention_isa() == b"portable" and build.requested_isa() == "auto":
        build.say(
            "no AVX2 here or in this compiler: portable CPU kernels, up to twice as slow (docs/reference/kernels.md)"
        )
    if not library.has_threads and _threads() > 1:  # type: ignore[attr-defined]
        build.say(f"this torch has no OpenMP runtime to share: CPU kernels use 1 thread of {_threads()}")


def build_all() -> str:
    """Load all libraries, compiled first if necessary; returns a message with their folder and instruction set."""
    folders = {str(Path(build.load(unit)._name).parent) for unit in build.UNITS}
    return f"CPU kernels ({instruction_set()}) are in {', '.join(sorted(folders))}"


def available(op: str, x: Tensor) -> bool:
    """True if ``op`` can run on ``x`` on this machine; the first call for each dtype builds its library."""
    dtype = x.dtype
    if dtype in _libraries:
        return x.is_cpu and op in OPS
    return x.is_cpu and op in OPS and dtype in _CTYPES and not _failed and _load(dtype)


def instruction_set() -> str:
    """The instruction set of the float32 library: ``avx512``, ``avx2`` or ``portable``.

    Raises ``RuntimeError`` if there is no library.
    """
    if not _load(torch.float32):
        raise RuntimeError("the native kernels are unavailable; an earlier warning says why")
    return str(_libraries[torch.float32].sparse_attention_isa().decode())


def described() -> str:
    """The instruction set of the float32 library, and where it comes from. Raises ``RuntimeError`` if there is no library."""
    isa = instruction_set()
    shipped = Path(_libraries[torch.float32]._name).parent == build.BUILT
    return f"{isa}, {'from the wheel' if shipped else 'compiled here'}"


def _fail(p: Tensor) -> None:
    raise MemoryError(f"no working memory for rows of {p.shape[-1]} scores; use fewer threads or shorter rows")


def _paired(g: Tensor, p: Tensor) -> tuple[Tensor, Tensor, int]:
    """A gradient g and its attention p ``[R, n]``, both made `dense`, and the address of g.

    If their shapes differ, raises the same error as `address`.
    """
    g, p = dense(g), dense(p)
    return g, p, address(g, p.dtype, p.numel())


class _Rows:
    """One operation with its C functions, which ``bind`` looks up by dtype. A return value other than 0 means failure.

    A call is ``f(arrays..., rows, n, hyperparameters..., threads)``. ``arrays`` is the number of arrays of the forward
    and backward functions. ``slope`` lists the hyperparameters of the backward function; by default, all of them.
    """

    arrays = 2, 3
    slope: tuple[str, ...] | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.params = reference.OPS[name].params if name in reference.OPS else ()
        self._forward, self._backward = ByType(), ByType()

    def bind(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        reals = len(self.params), len(self.params if self.slope is None else self.slope)
        for direction, arrays, count in zip(("forward", "backward"), self.arrays, reals):
            function = getattr(library, f"{self.name}_{direction}")
            function.argtypes = [*[_POINTER] * arrays, _SIZE, _SIZE, *[_REAL] * count, _INT]
            function.restype = _INT
            getattr(self, f"_{direction}")[dtype] = function


# The methods below list their hyperparameters explicitly: passing them as **params would take a tenth of a small call.
class _Gamma(_Rows):
    def forward(self, x: Tensor, gamma: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = dense(x)
        p = torch.empty_like(x)
        rows, n = x.shape
        if self._forward[x.dtype](x.data_ptr() or nowhere(x), p.data_ptr(), rows, n, gamma, _threads()):
            _fail(p)
        return p, ()

    def backward(self, g: Tensor, p: Tensor, saved: Any, gamma: float) -> Tensor:
        g, p, at = _paired(g, p)
        dx = torch.empty_like(p)
        rows, n = p.shape
        if self._backward[p.dtype](at, p.data_ptr(), dx.data_ptr(), rows, n, gamma, _threads()):
            _fail(p)
        return dx


class _Alpha(_Rows):
    """The reference handles alpha below 1.0001, where the power 1/(alpha - 1) is too inexact or has another sign."""

    def forward(self, x: Tensor, alpha: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        if alpha < masked.LOWEST_ALPHA:
            return reference.OPS[self.name].forward(x, alpha=alpha)
        return _Gamma.forward(self, x, alpha)  # type: ignore[arg-type]

    def backward(self, g: Tensor, p: Tensor, saved: Any, alpha: float) -> Tensor:
        return _Gamma.backward(self, g, p, saved, alpha)  # type: ignore[arg-type]


class _NormGamma(_Rows):
    def forward(self, x: Tensor, p: float, gamma: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = dense(x)
        y = torch.empty_like(x)
        rows, n = x.shape
        if self._forward[x.dtype](x.data_ptr() or nowhere(x), y.data_ptr(), rows, n, p, gamma, _threads()):
            _fail(y)
        return y, ()

    def backward(self, g: Tensor, y: Tensor, saved: Any, p: float, gamma: float) -> Tensor:
        g, y, at = _paired(g, y)
        dx = torch.empty_like(y)
        rows, n = y.shape
        if self._backward[y.dtype](at, y.data_ptr(), dx.data_ptr(), rows, n, p, gamma, _threads()):
            _fail(y)
        return dx


class _Scores(_Rows):
    """Saves the scores if some are excluded: only the scores show if a neighbour is excluded or has probability 0."""

    arrays, slope = (2, 4), ("gamma",)

    def forward(self, x: Tensor, lam: float, gamma: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = dense(x)
        p = torch.empty_like(x)
        rows, n = x.shape
        status = self._forward[x.dtype](x.data_ptr() or nowhere(x), p.data_ptr(), rows, n, lam, gamma, _threads())
        if status == _OUT_OF_MEMORY:
            _fail(p)
        return p, (x,) if status == _EXCLUDED else ()

    def backward(self, g: Tensor, p: Tensor, saved: tuple[Tensor, ...], lam: float, gamma: float) -> Tensor:
        g, p, at = _paired(g, p)
        dx = torch.empty_like(p)
        rows, n = p.shape
        x = address(saved[0], p.dtype, p.numel()) if saved else None
        if self._backward[p.dtype](at, p.data_ptr(), x, dx.data_ptr(), rows, n, gamma, _threads()):
            _fail(p)
        return dx


class _Blocks(_Rows):
    """Saves the index of each entry's block of equal values, int32 [R, n], or -1 off the support."""

    arrays, slope = (3, 3), ("gamma",)

    def forward(self, x: Tensor, lam: float, gamma: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = dense(x)
        p, blocks = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
        rows, n = x.shape
        call = self._forward[x.dtype]
        if call(x.data_ptr() or nowhere(x), p.data_ptr(), blocks.data_ptr(), rows, n, lam, gamma, _threads()):
            _fail(p)
        return p, (blocks,)

    def backward(self, g: Tensor, p: Tensor, saved: tuple[Tensor, ...], lam: float, gamma: float) -> Tensor:
        g, p, at = _paired(g, p)
        dx = torch.empty_like(p)
        rows, n = p.shape
        blocks = address(saved[0], torch.int32, p.numel())
        if self._backward[p.dtype](at, blocks, dx.data_ptr(), rows, n, gamma, _threads()):
            _fail(p)
        return dx


class _Threshold(_Rows):
    """Saves the scores and the threshold of every row [R], which together show which zero bounds are active.

    The forward checks the bounds itself: it calls ``doubt`` if there may be a row for which no distribution satisfies
    the bounds. A bound at an excluded position has no effect, even if it is NaN.
    """

    arrays, looks_at_bounds = (4, 7), True

    def forward(
        self, x: Tensor, bounds: Tensor, doubt: Callable[[], object] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        bounds, x, limits = _paired(bounds, x)
        p = torch.empty_like(x)
        rows, n = x.shape
        threshold = x.new_empty(rows)
        call = self._forward[x.dtype]
        pointers = (x.data_ptr() or nowhere(x), limits, p.data_ptr(), threshold.data_ptr())
        status = call(*pointers, rows, n, _threads())
        if status == _OUT_OF_MEMORY:
            _fail(p)
        if status == _DOUBTFUL_BOUNDS and doubt:
            doubt()
        return p, (x, threshold)

    def backward(self, g: Tensor, p: Tensor, saved: tuple[Tensor, ...], bounds: Tensor) -> tuple[Tensor, Tensor]:
        g, p, at = _paired(g, p)
        bounds = dense(bounds)
        dx, du = torch.empty_like(p), torch.empty_like(p)
        rows, n = p.shape
        given = [
            address(t, p.dtype, count) for t, count in zip((p, bounds, *saved), (rows * n, rows * n, rows * n, rows))
        ]
        pointers = (at, *given, dx.data_ptr(), du.data_ptr())
        if self._backward[p.dtype](*pointers, rows, n, _threads()):
            _fail(p)
        return dx, du


class _Sparsemap(_Rows):
    """SparseMAP over rows ``x [R, L, W]``; sequences also take transitions ``[W, W]`` or ``[R, W, W]``.

    Returns the status of the worst row; mu in the shape of x; the weights ``[R, K]``; the gap ``[R]`` in float64; the
    structures ``[R, K, L]`` (int16, -1 means no choice); and two counts ``[R, 2]``: the number of structures with
    nonzero weight and the size of the basis that the backward needs. Entries beyond the counts are not set.
    """

    not_converged = _NOT_CONVERGED

    def bind(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        sequence = self.name == "sparsemap_sequence"
        forward, backward = getattr(library, f"{self.name}_forward"), library.sparsemap_backward
        forward.argtypes = [*[_POINTER] * (6 + sequence), *[_SIZE] * (4 + sequence), _INT]
        backward.argtypes = [*[_POINTER] * 5, *[_SIZE] * 4, _INT]
        forward.restype = backward.restype = _INT
        self._forward[dtype], self._backward[dtype] = forward, backward

    def forward(self, x: Tensor, transitions: Tensor | None = None) -> tuple[int, tuple[Tensor, ...]]:  # type: ignore[override]
        x = dense(x)
        rows, length, width = x.shape
        # The number of affinely independent structures: sequences and trees choose at each of L positions, matchings at
        # each position of their shorter side.
        fixed = length
        if self.name == "sparsemap_matching":
            fixed = min(length, width) if length != width else 2 * length - 1
        capacity = min(length * width - fixed + 2, MOST_STRUCTURES)
        mu, weights = torch.empty_like(x), x.new_empty(rows, capacity)
        gap = torch.empty(rows, dtype=torch.float64)
        structures = torch.empty(rows, capacity, length, dtype=torch.int16)
        counts = torch.empty(rows, 2, dtype=torch.int64)
        out = [t.data_ptr() for t in (mu, weights, gap, structures, counts)]
        sizes: tuple[int, ...] = (rows, length, width, capacity)
        if transitions is not None:
            transitions, own = dense(transitions), transitions.ndim == 3
            at = address(transitions, x.dtype, width * width * (rows if own else 1))
            out, sizes = [at, *out], (*sizes, width * width * own)
        status = self._forward[x.dtype](x.data_ptr() or nowhere(x), *out, *sizes, _threads())
        if status == _OUT_OF_MEMORY:
            _fail(mu)
        return status, (mu, weights, gap, structures, counts)

    def backward(self, g: Tensor, structures: Tensor, counts: Tensor, steps: bool) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        g, structures, counts = dense(g), dense(structures), dense(counts)
        dx = torch.empty_like(g)
        rows, length, width = g.shape
        capacity = structures.shape[1]
        dt = g.new_empty(rows, width, width) if steps else None
        given = address(structures, torch.int16, rows * capacity * length), address(counts, torch.int64, 2 * rows)
        pointers = address(g, g.dtype, g.numel()), *given, dx.data_ptr(), None if dt is None else dt.data_ptr()
        if self._backward[g.dtype](*pointers, *g.shape, capacity, _threads()):
            _fail(g)
        return dx, dt


_KINDS: dict[Any, type[_Rows]] = {"scores": _Scores, "blocks": _Blocks, "threshold": _Threshold}
_KINDS |= {("gamma",): _Gamma, ("alpha",): _Alpha, ("p", "gamma"): _NormGamma}  # operations that save nothing


def _kernel(name: str, op: reference.Op) -> _Rows:
    kind = op.params if op.native == "nothing" else op.native
    if kind not in _KINDS:
        raise TypeError(f"{name}: no class in _KINDS calls a kernel with {kind}; known: {', '.join(map(str, _KINDS))}")
    return _KINDS[kind](name)


OPS: dict[str, Any] = {name: _kernel(name, op) for name, op in reference.OPS.items() if op.native is not None}
STRUCTURED = {name: _Sparsemap(name) for name in ("sparsemap_sequence", "sparsemap_matching", "sparsemap_tree")}
