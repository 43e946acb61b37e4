"""Which implementation of a row operation runs.

Three backends compute the same numbers: ``reference`` (torch, any device), ``native`` (C++ for CPU tensors, compiled
at first use) and ``triton`` (CUDA tensors). ``auto``, the default, takes the fastest that can take the tensor.

    sa.kernels.use("reference")            # from here on
    with sa.kernels.use("native"): ...     # inside the block
    SPARSE_ATTENTION_KERNELS=reference     # environment, read at import

A backend is a module with ``OPS``, kernels by operation, and ``available(op, x) -> bool``. A kernel works on rows:

    forward(x, **params) -> (p, saved)
        x contiguous [R, n], float32 or float64, R >= 0, n >= 1. -inf marks an excluded position, which gets exactly 0;
        a row of -inf gives zeros; a row with NaN or +inf gives NaN in that row only. ``saved``: tuple of tensors.
    backward(g, p, saved, **params) -> dx [R, n]
        the vector-Jacobian product with respect to x (constrained_sparsemax: the pair dx, dbounds).

What holds for an operation whatever kernel runs stands once, in ``reference.OPS`` (see `Op`).

    softmax(gamma)  sparsemax(gamma)  entmax(alpha)  pnormmax(p, gamma)  fusedmax(lam, gamma)  oscarmax(lam, gamma)
    constrained_sparsemax(bounds [R, n])

``triton`` also has sparsecone(q) and sparsehourglass(q), and takes masks and half precision itself (see `fused`); softmax is
torch's own on a CPU.

Positions excluded in fusedmax are removed before the total variation is taken: neighbours across a hole are adjacent.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType
from typing import Any

from torch import Tensor

from . import reference
from .reference import NoMemory, Op

NAMES = ("auto", "reference", "native", "triton")


def _checked(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"kernels {name!r} do not exist; choose one of {', '.join(NAMES)}")
    return name


_choice = _checked(os.environ.get("SPARSE_ATTENTION_KERNELS") or "auto")
_loaded: dict[str, ModuleType | None] = {"reference": reference}


def _load(name: str) -> ModuleType | None:
    """The backend's module, imported once; None where it is not installed."""
    if name not in _loaded:
        full = f"{__name__}.{name}"
        module = importlib.import_module(full) if importlib.util.find_spec(full) is not None else None
        _loaded[name] = module if hasattr(module, "OPS") else None
    return _loaded[name]


class use:
    """Choose the kernels for the whole process; as a context manager, until the block ends.

    Raises:
        ValueError: not one of auto, reference, native, triton.
    """

    def __init__(self, name: str):
        global _choice
        self._before = _choice
        _choice = _checked(name)

    def __enter__(self) -> use:
        return self

    def __exit__(self, *_: Any) -> None:
        global _choice
        _choice = self._before


def active() -> str:
    """The choice in force: auto, reference, native or triton."""
    return _choice


def backend(name: str) -> ModuleType:
    """The backend called ``name``. Raises RuntimeError where it is not installed."""
    module = _load(name)
    if module is None:
        raise RuntimeError(f"kernels {name!r} is not installed; choose sparse_attention.kernels.use('auto')")
    return module


def place(kernel: Any) -> tuple[str, str]:
    """The names of the backend and of the operation that a kernel is."""
    return next((n, op) for n, m in _loaded.items() if m is not None for op, k in m.OPS.items() if k is kernel)


def select(op: str, x: Tensor) -> ModuleType:
    """The backend that computes ``op`` on the rows ``x`` ``[R, n]``.

    Raises:
        RuntimeError: a backend was chosen by name that cannot take this tensor.
        NoMemory: a meta tensor.
    """
    if _choice == "auto":
        name = "triton" if x.is_cuda else "native"
        # One dictionary look-up on the path that every call takes.
        module = _loaded.get(name) or _load(name)
        if module is not None and module.available(op, x):
            return module
        name = "reference"
    else:
        name = _choice
    if x.is_meta:
        raise NoMemory(f"a meta tensor of shape {tuple(x.shape)} has no values to compute with")
    module = backend(name)
    if not module.available(op, x):
        raise RuntimeError(
            f"kernels {name!r} cannot compute {op} on a {x.dtype} tensor on {x.device}; choose "
            "sparse_attention.kernels.use('auto') to fall back to the reference where needed"
        )
    return module


def fused(op: str, x: Tensor, params: dict[str, Any]) -> ModuleType | None:
    """The backend whose kernel takes scores ``x [..., n]`` of this dtype with their mask in one launch, if one is chosen."""
    if _choice != "triton" and not (x.is_cuda and _choice == "auto"):
        return None
    module = _load("triton")
    return module if module is not None and module.exact(params) and module.available(op, x) else None


def build() -> str:
    """Compile the native kernels now instead of at the first call; says what was built. `make setup` calls it.

    Raises:
        RuntimeError: no compiler, or no folder to keep the libraries in; the message says what to do.
    """
    return backend("native").build_all()


__all__ = ["NAMES", "NoMemory", "Op", "active", "backend", "build", "fused", "select", "use"]
