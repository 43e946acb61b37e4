"""Addresses for native code. C++ gets only a pointer and sizes, so tensors are first converted or rejected here.

Every array from outside goes through `dense` (which copies it if its memory is not row-major) and `address` (which
checks dtype and size) or, where the caller has checked these, `places`. For arrays that our own code has made for the
call, ``data_ptr`` is passed directly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..reference import NoMemory

ByType = dict[torch.dtype, Callable[..., int]]  # C functions by the dtype of their arrays


def dense(x: Tensor) -> Tensor:
    """``x`` itself if its values are in row-major order in CPU memory, otherwise a copy in that order.

    Raises ``ValueError`` for a tensor on another device, and ``NoMemory`` for a tensor without memory.
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
    """The address of the ``count`` values of ``x``, which must be `dense`; 0 if there are none.

    Raises TypeError for a wrong dtype, ValueError for a wrong number or order of values, and ``NoMemory``.
    """
    if x.dtype is dtype and x.numel() == count and x.is_contiguous() and x.is_cpu and not x.is_neg():
        return x.data_ptr() or nowhere(x)
    needs, shape, strides = "a native kernel needs", tuple(x.shape), x.stride()
    if x.dtype is not dtype:
        raise TypeError(f"{needs} dtype {dtype}, not {x.dtype}; convert it")
    if x.numel() != count:
        raise ValueError(f"{needs} {count} values, not a tensor of shape {shape}")
    dense(x)  # raises the error if memory is missing
    raise ValueError(f"{needs} dense(x), not strides {strides} of shape {shape}")


def places(*tensors: Tensor | None) -> list[int | None]:
    """The addresses of tensors that fit, None for none. Raises ``NoMemory``."""
    return [None if x is None else x.data_ptr() or nowhere(x) for x in tensors]


def nowhere(x: Tensor) -> int:
    """The address to use if ``data_ptr`` is 0: 0 if the tensor has no values; otherwise raises ``NoMemory``."""
    return _no_memory(x) if x.numel() else 0


def _no_memory(x: Tensor) -> int:
    raise NoMemory(f"a tensor of shape {tuple(x.shape)} has no memory to compute on; pass a copy, x.clone()")
