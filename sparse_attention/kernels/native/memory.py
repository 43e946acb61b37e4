"""Addresses for native code. C++ gets a pointer and sizes, never strides or types: here a tensor is made to fit, or refused.

Every array from outside passes `dense` (a copy if its memory is not row-major) and `address` (checks type and size). Arrays that a
wrapper has just allocated are passed by their ``data_ptr``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..reference import NoMemory


class ByType(dict[torch.dtype, Callable[..., int]]):
    """C functions by the type of their arrays."""

    def __missing__(self, dtype: torch.dtype) -> Callable[..., int]:
        known = ", ".join(map(str, self)) or "none yet: available(op, x) loads them"
        raise TypeError(f"no native kernel takes {dtype}; loaded are those for {known}")


def dense(x: Tensor) -> Tensor:
    """``x`` with its values in row-major order in CPU memory: itself, or a copy.

    Raises ``ValueError`` for a tensor elsewhere, ``NoMemory`` for one without memory.
    """
    if x.is_contiguous() and x.is_cpu and not x.is_neg():
        return x
    if x.is_meta:
        _no_memory(x)
    if not x.is_cpu:
        raise ValueError(
            f"a tensor on {x.device} cannot be read by native kernels, which run on the CPU; move it with x.cpu()"
        )
    return x.resolve_neg().contiguous()


def address(x: Tensor, dtype: torch.dtype, count: int) -> int:
    """Where the ``count`` values of `dense` ``x`` begin; 0 if there are none.

    Raises ``TypeError`` for another type, ``ValueError`` for another number of values or order, ``NoMemory``.
    """
    if x.dtype is dtype and x.numel() == count and x.is_contiguous() and x.is_cpu and not x.is_neg():
        return x.data_ptr() or nowhere(x)
    if x.dtype is not dtype:
        raise TypeError(f"a native kernel was given {x.dtype} for {dtype}; convert it")
    if x.numel() != count:
        raise ValueError(f"a native kernel was given shape {tuple(x.shape)} where {count} values belong")
    dense(x)  # says what is wrong with where it is
    raise ValueError(f"a native kernel was given strides {x.stride()} for shape {tuple(x.shape)}; pass dense(x)")


def nowhere(x: Tensor) -> int:
    """The address of a tensor without memory: 0 if it has no values, else an error."""
    return _no_memory(x) if x.numel() else 0


def _no_memory(x: Tensor) -> int:
    raise NoMemory(f"a tensor of shape {tuple(x.shape)} has no memory to compute on; pass a copy, x.clone()")


__all__ = ["ByType", "address", "dense", "nowhere"]
