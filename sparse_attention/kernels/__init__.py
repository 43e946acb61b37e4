"""Choose the implementation of the row operations.

Three backends compute the same numbers: ``reference`` (torch, any device), ``native`` (C++ for CPU tensors, compiled on
first use) and ``triton`` (CUDA tensors). The default, ``auto``, uses the fastest backend for the tensor.

    sa.kernels.use("reference")            # from here on
    with sa.kernels.use("native"): ...     # inside the block, in this thread
    SPARSE_ATTENTION_KERNELS=reference     # environment variable, read at import

A backend is a module with ``OPS``, a dict of kernels by operation, and ``available(op, x) -> bool``. A kernel works on
rows:

    forward(x, **params) -> (p, saved)
        x is contiguous [R, n], float32 or float64, with R >= 0 and n >= 1. -inf marks an excluded position, which gets
        exactly 0; a row of -inf gives zeros; a row with NaN or +inf gives NaN in that row only. ``saved`` is a tuple of
        tensors.
    backward(g, p, saved, **params) -> dx [R, n]
        the vector-Jacobian product with respect to x (for constrained_sparsemax, the pair dx, dbounds).

``reference.OPS`` describes each operation once for all kernels: its hyperparameters, which have no defaults here, and
its derivatives (see `Op`). ``triton`` also has sparsecone and sparsehourglass, and handles masks and half precision
itself (see `fused`). Softmax on a CPU uses torch's own function.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import reference
from .reference import NoMemory, Op

NAMES = ("auto", "reference", "native", "triton")


def _checked(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"unknown kernels {name!r}; choose one of {', '.join(NAMES)}")
    return name


_default = _choice = _checked(os.environ.get("SPARSE_ATTENTION_KERNELS") or "auto")  # used outside of blocks
_calls: list[use] = []  # the calls that made the choices of the process
_blocks: list[use] = []  # the active blocks, in all threads
_loaded: dict[str, ModuleType] = {"reference": reference}


class use:
    """Choose the kernels for the whole process; as a context manager, only for the block and the thread it runs in.

    torch.utils.checkpoint without use_reentrant needs the same kernels in the backward pass, so run that in the block, too. The
    backward of a GPU has a thread of its own, where no block has an effect: choose for the whole process there.

    Raises:
        ValueError: the name is not auto, reference, native or triton.
    """

    def __init__(self, name: str):
        global _choice
        self.name, self.thread = _checked(name), threading.get_ident()
        _calls.append(self)
        _choice = name

    def __enter__(self) -> use:
        global _choice
        if self in _calls:  # it was used as a block, not for the process
            _calls.remove(self)
            _choice = _calls[-1].name if _calls else _default
        self.thread = threading.get_ident()
        _blocks.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _blocks.remove(self)


def active() -> str:
    """The current choice: auto, reference, native or triton."""
    return _here() if _blocks else _choice


def _here() -> str:
    if torch.compiler.is_dynamo_compiling():  # cannot look up the thread
        return _blocks[-1].name
    thread = threading.get_ident()
    return next((block.name for block in reversed(tuple(_blocks)) if block.thread == thread), _choice)


def backend(name: str) -> ModuleType:
    """The backend called ``name``, imported on first use."""
    if name not in _loaded:
        _loaded[name] = importlib.import_module(f"{__name__}.{name}")
    return _loaded[name]


def place(kernel: Any) -> tuple[str, str]:
    """The names of a kernel's backend and operation."""
    return next((n, op) for n, m in _loaded.items() for op, k in m.OPS.items() if k is kernel)


def select(op: str, x: Tensor) -> ModuleType:
    """The backend that computes ``op`` on the rows ``x`` ``[R, n]``.

    Raises:
        RuntimeError: the backend that was chosen by name cannot take this tensor.
        NoMemory: the tensor is a meta tensor.
    """
    choice = _here() if _blocks else _choice
    if choice == "auto":
        name = "triton" if x.is_cuda else "native"
        # Only one dictionary look-up, since every call comes through here.
        module = _loaded.get(name) or backend(name)
        if module.available(op, x):
            return module
        name = "reference"
    else:
        name = choice
    if x.is_meta:
        raise NoMemory(f"a meta tensor of shape {tuple(x.shape)} has no values; make it on another device")
    module = backend(name)
    if not module.available(op, x):
        raise RuntimeError(
            f"kernels {name!r} cannot compute {op} on a {x.dtype} tensor on {x.device}; call "
            "sparse_attention.kernels.use('auto'), which chooses kernels that can"
        )
    return module


def fused(x: Tensor) -> ModuleType | None:
    """The backend that may process scores ``x`` and a mask in one launch, or None; its `plan` says for which operations."""
    choice = _here() if _blocks else _choice
    if choice != "triton" and (choice != "auto" or not x.is_cuda):
        return None
    return _loaded.get("triton") or backend("triton")


__all__ = ["NAMES", "NoMemory", "Op", "active", "backend", "fused", "select", "use"]
