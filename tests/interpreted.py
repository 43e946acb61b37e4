"""Triton's interpreter nearer to a GPU: reductions and scans of own functions by trees, and a search for races.

It would call such functions for each number, and it runs programs, and the operations of a program, one after another.
"""

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, ReduceOps, ScanOps

KERNELS = str(Path(__file__).parent.parent / "sparse_attention/kernels/triton")


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


class Races:
    """found: (a line that writes a byte, another that touches it before the next barrier), and ("two programs",)."""

    def __init__(self) -> None:
        self.found: set[tuple[str, ...]] = set()
        self.now: dict[tuple[str, bool], list[np.ndarray]] = {}  # by line, and whether it writes: bytes
        self.programs: list[dict[bool, list[np.ndarray]]] = []  # bytes read and written

    def touch(self, pointers: Any, mask: Any, write: bool) -> None:
        frame = sys._getframe(2)
        while not frame.f_code.co_filename.startswith(KERNELS):
            frame = frame.f_back  # type: ignore[assignment]
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        size = pointers.get_element_ty().primitive_bitwidth // 8
        starts = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)].astype(np.int64)
        self.now.setdefault((line, write), []).append((starts.reshape(-1, 1) + np.arange(size)).ravel())

    def barrier(self) -> None:
        now = {key: _united(each) for key, each in self.now.items()}
        for line, write in now:
            others = [key for key in now if write and key[0] != line]
            self.found |= {(line, key[0]) for key in others if np.intersect1d(now[line, True], now[key]).size}
        for (_, write), touched in now.items():
            self.programs[-1][write].append(touched)
        self.now = {}

    def end(self) -> None:
        """Of a launch."""
        if self.programs:
            self.barrier()
            each = [_united([*program[False], *program[True]]) for program in self.programs]
            at, many = np.unique(np.concatenate(each), return_counts=True)
            if np.intersect1d(at[many > 1], _united([x for program in self.programs for x in program[True]])).size:
                self.found.add(("two programs",))
        self.programs = []


def _united(each: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.empty(0, np.int64), *each]))


@contextmanager
def racing() -> Iterator[set[tuple[str, ...]]]:
    """The races of the kernels that are interpreted meanwhile, once it ends."""
    races, builder = Races(), InterpreterBuilder
    before = builder.create_masked_load, builder.create_masked_store, builder.create_barrier, builder.set_grid_idx
    load, store, barrier, program = before
    launch = GridExecutor.__call__

    def launched(self: Any, *given: Any, **more: Any) -> Any:
        try:
            return launch(self, *given, **more)
        finally:
            races.end()

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        races.touch(pointers, mask, False)
        return load(self, pointers, mask, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        races.touch(pointers, mask, True)
        return store(self, pointers, value, mask, *rest)

    def started(self: Any, *place: int) -> None:
        if races.programs:
            races.barrier()
        races.programs.append({False: [], True: []})
        program(self, *place)

    builder.create_masked_load, builder.create_masked_store = loaded, stored
    builder.create_barrier = lambda self, *rest: (races.barrier(), barrier(self, *rest))[1]
    builder.set_grid_idx, GridExecutor.__call__ = started, launched
    try:
        yield races.found
    finally:
        builder.create_masked_load, builder.create_masked_store, builder.create_barrier, builder.set_grid_idx = before
        GridExecutor.__call__ = launch
