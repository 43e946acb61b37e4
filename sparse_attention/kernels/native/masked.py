"""Kernels that take a mask, and hyperparameters with one value per row.

Calls without a mask and with numbers as hyperparameters use other C functions, which have fewer arguments and compute
the same.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..reference import OPS as REFERENCE
from .memory import ByType, address, dense, nowhere

LOWEST_ALPHA = 1.0001  # the reference handles smaller alpha; see `native._Alpha`

_UNKNOWN_OPERATION = 6
_P, _N, _R, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
_REST: list[Any] = [_P, _N, _N, _P, _R, _P, _R, _N, _N, _I]
_forward, _backward = ByType(), ByType()
_numbers: dict[str, int] = {}  # the numbers of the operations in api.cpp


def takes(op: str) -> bool:
    """True if the C++ function for masks has this operation; call it once a library is loaded."""
    return op in _numbers


def bind(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Look up both functions and the numbers of the operations."""
    for found, function, arrays in ((_forward, library.masked_forward, 3), (_backward, library.masked_backward, 7)):
        function.argtypes = [_I, *[_P] * arrays, *_REST]
        function.restype = _I
        found[dtype] = function
    library.masked_operations.restype = ctypes.c_char_p
    _numbers.update((name, i) for i, name in enumerate(library.masked_operations().decode().split()))


class Masked(NamedTuple):
    """The arguments of a call besides the scores, as `rows.masked` makes them; they are not checked again.

    kept: bool mask, contiguous; row r of the scores uses row ``r // outer * inner + r % inner`` of the mask. first,
    second: the hyperparameters in the order of the C function's arguments, each a number or float64 ``[R]``. low: the
    indices of the rows that the reference computes, or None.
    """

    op: str
    kept: Tensor | None
    outer: int
    inner: int
    first: float | Tensor
    second: float | Tensor
    low: Tensor | None = None

    def _arguments(self, rows: int, n: int) -> tuple[Any, ...]:
        values: list[Any] = []
        for value in (self.first, self.second):
            values += (None, value) if isinstance(value, float) else (value.data_ptr(), 0.0)
        kept = None if self.kept is None else self.kept.data_ptr() or nowhere(self.kept)
        return (kept, self.outer, self.inner, *values, rows, n, torch.get_num_threads())

    def _few(self, x: Tensor) -> Tensor:
        """The scores of the rows that the reference computes, with excluded positions at -inf."""
        assert self.low is not None
        few = x[self.low]
        if self.kept is None:
            return few
        at = self.low // self.outer * self.inner + self.low % self.inner
        return few.masked_fill(~self.kept.view(-1, x.shape[-1])[at], -torch.inf)

    def _fail(self, status: int, x: Tensor) -> None:
        if status == _UNKNOWN_OPERATION:
            raise RuntimeError(f"api.cpp lists {self.op} in masked_operations but has no case for it")
        raise MemoryError(f"no working memory for rows of {x.shape[-1]} scores; use fewer threads or shorter rows")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows ``x [R, n]`` -> attention ``[R, n]``, and for oscarmax the blocks."""
        x = dense(x)
        p = torch.empty_like(x)
        ids = torch.empty_like(x, dtype=torch.int32) if self.op == "oscarmax" else None
        pointers = (x.data_ptr() or nowhere(x), p.data_ptr(), None if ids is None else ids.data_ptr())
        if (status := _forward[x.dtype](_numbers[self.op], *pointers, *self._arguments(*x.shape))) > 1:
            self._fail(status, x)
        if self.low is not None and isinstance(self.first, Tensor):
            p[self.low] = REFERENCE["entmax"].forward(self._few(x), alpha=self.first[self.low, None])[0]
        return p, ids

    def backward(
        self, g: Tensor, x: Tensor | None, p: Tensor, ids: Tensor | None, wanted: bool
    ) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
        """Returns dx ``[R, n]`` and, if ``wanted``, the derivatives ``[R]`` (float64) for the two hyperparameters.

        If there is only one hyperparameter, the other derivative is 0. Operations that are not smooth need ``x``.
        """
        g, x, p = dense(g), None if x is None else dense(x), dense(p)
        dx = torch.empty_like(p)
        slopes = [p.new_zeros(p.shape[0], dtype=torch.float64) if wanted else None for _ in range(2)]
        given = [None if t is None else address(t, p.dtype, p.numel()) for t in (g, x, p)]
        blocks = None if ids is None else address(ids, torch.int32, p.numel())
        made = [None if t is None else t.data_ptr() for t in (dx, *slopes)]
        called = _numbers[self.op], *given, blocks, *made, *self._arguments(*p.shape)
        if (status := _backward[p.dtype](*called)) > 1:
            self._fail(status, p)
        return dx, (slopes[0], slopes[1])


def layout(mask: Tensor, shape: torch.Size) -> tuple[Tensor, int, int]:
    """Convert a mask that broadcasts to ``shape [..., n]`` to the layout of `Masked`: the mask, outer and inner.

    The mask is copied unless the dimensions over which it is broadcast are next to each other.
    """
    rows = shape.numel() // shape[-1]
    if mask.shape == shape and mask.is_contiguous():
        return mask, rows, rows
    if 0 in mask.stride():  # the mask was expanded: undo that
        mask = mask[tuple(slice(0, 1) if s == 0 else slice(None) for s in mask.stride())]
    if mask.shape[-1:] != shape[-1:]:
        mask = mask.expand(*mask.shape[:-1], shape[-1])
    lead = (1,) * (len(shape) - mask.ndim) + mask.shape[:-1]
    k, inner = len(lead) - 1, 1
    while k >= 0 and lead[k] == shape[k]:
        inner *= shape[k]
        k -= 1
    outer = inner
    while k >= 0 and lead[k] == 1:
        outer *= shape[k]
        k -= 1
    if lead[: k + 1] == shape[: k + 1]:
        return mask.contiguous(), outer, inner
    return mask.expand(shape).contiguous(), rows, rows
