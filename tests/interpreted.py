"""Triton's interpreter with reductions and scans of own functions by trees, as on a GPU: it would call them for each number."""

from typing import Any

import numpy as np
from triton.runtime.interpreter import ReduceOps, ScanOps


def _combined(op: Any, a: list[np.ndarray], b: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    pairs = zip((*a, *b), (*kinds, *kinds), strict=True)
    out = op.combine_fn.fn(*(op.to_tensor(np.ascontiguousarray(x), kind) for x, kind in pairs))
    return [x.handle.data for x in (out if isinstance(out, tuple) else (out,))]


def _scan(self: Any, given: tuple[Any, ...]) -> list[Any]:
    data, kinds = [x.handle.data for x in given], [x.dtype for x in given]
    n = data[0].shape[self.axis]
    place = np.arange(n).reshape([-1 if i == self.axis else 1 for i in range(data[0].ndim)])
    step = 1
    while step < n:
        both = _combined(self, [np.roll(x, step, self.axis) for x in data], data, kinds)
        data = [np.where(place >= step, new, x) for new, x in zip(both, data, strict=True)]
        step *= 2
    return [self.to_tensor(x, kind) for x, kind in zip(data, kinds, strict=True)]


def _reduce(self: Any, given: tuple[Any, ...]) -> list[Any]:
    data, kinds = [np.moveaxis(x.handle.data, self.axis, 0) for x in given], [x.dtype for x in given]
    while (half := len(data[0]) // 2) > 0:
        data = _combined(self, [x[:half] for x in data], [x[half:] for x in data], kinds)
    data = [np.expand_dims(x[0], self.axis) if self.keep_dims else x[0] for x in data]
    return [self.to_tensor(x, kind) for x, kind in zip(data, kinds, strict=True)]


def by_trees() -> None:
    ScanOps.generic_scan, ReduceOps.generic_reduce = _scan, _reduce
