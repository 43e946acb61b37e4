"""The cases of the benchmark, how they are timed, and how the results are printed.

Every number is a ratio to ``torch.softmax`` (or to its forward and backward) in the same run: all implementations take
turns, so that a busy machine slows them equally, and medians over many turns are compared. With one thread, times are
the thread's processor time; with several threads or on a GPU, wall-clock time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import multiprocessing as mp
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import sparse_attention as sa

SHAPES = ((1280, 30), (3200, 50), (32768, 128), (4096, 512), (512, 4096), (64, 32000))
Contestant = Callable[[Tensor], Tensor]
Clock = Callable[[], int]


@dataclass(frozen=True)
class Case:
    """A mapping with its parameters.

    ``target`` has ratios to softmax for forward and for forward+backward, each for n <= 128 and for larger n.
    """

    label: str
    name: str
    params: dict[str, float] = field(default_factory=dict)
    target: Sequence[Sequence[float]] | None = None
    scale: float = 1.0

    def function(self, x: Tensor) -> Contestant:
        mapping, params = getattr(sa, self.name), self.params
        if self.name == "constrained_sparsemax":
            # Random bounds with a sum of at least 1.2: most entries of the support end at their bounds.
            u = torch.rand_like(x) * 4 / x.shape[-1]
            u = u * (1.2 / u.sum(-1, keepdim=True)).clamp_min(1)
            return lambda z: mapping(z, bounds=u)
        return lambda z: mapping(z, **params)


KNOWN = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
CASES = [Case(**case) for case in KNOWN["rows"]]
# label of a case -> functions of the package entmax, with their parameters
PEERS: dict[str, dict[str, tuple[str, dict[str, float]]]] = KNOWN["peers"]


def version() -> str:
    """The version of the package entmax; "" if it is not installed."""
    try:
        return metadata.version("entmax")
    except metadata.PackageNotFoundError:
        return ""


def peers(name: str) -> dict[str, Contestant]:
    """The functions of entmax for the case labelled ``name``, by label; none if it is not installed."""
    known = PEERS.get(name, {}) if version() else {}
    found = {label: getattr(importlib.import_module("entmax"), function) for label, (function, _) in known.items()}
    return {label: functools.partial(function, dim=-1, **known[label][1]) for label, function in found.items()}


@dataclass
class Row:
    """Results of one implementation for all shapes, forward and forward+backward (None: not run).

    They are ratios to softmax; those of `benchmarks.absolute` are milliseconds.
    """

    label: str
    forward: list[Any]
    both: list[Any]
    case: Any = None


def keep_freed_memory() -> None:
    """Make glibc's allocator reuse freed memory.

    By default, it depends on the layout of the heap whether large arrays are returned to the kernel, and getting their
    pages again takes several times as long as the mapping.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # the C library is not glibc
        return
    mallopt(-4, 0)  # M_MMAP_MAX: no array gets its own memory map
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def device() -> str:
    """Where rows are timed: on the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def turns(
    functions: Mapping[str, Callable[[], Any]], seconds: float, device: str, fewest: int, calls: int, clock: Clock
) -> dict[str, list[float]]:
    """Nanoseconds of each function, in at least ``fewest`` turns that take about ``seconds`` (no more than 400).

    Args:
        calls: number of calls that are timed together. clock: in nanoseconds.
    """
    taken: dict[str, list[float]] = {name: [] for name in functions}
    order, stop, done = list(functions), 0.0, 0
    while done <= fewest or (done <= 400 and time.perf_counter() < stop):  # the first turn warms up
        for name in order:
            torch.cuda.synchronize() if device == "cuda" else None
            before = clock()
            for _ in range(calls):
                functions[name]()
            torch.cuda.synchronize() if device == "cuda" else None
            taken[name].append((clock() - before) / calls)
        order = order[1:] + order[:1]  # so that the order changes from turn to turn
        stop, done = stop or time.perf_counter() + seconds, done + 1
    return {name: times[1:] for name, times in taken.items()}


def medians(
    functions: Mapping[str, Callable[[], Any]], seconds: float, device: str = "cpu", fewest: int = 5
) -> dict[str, float]:
    """Median nanoseconds of each function in `turns`."""
    cuda = device == "cuda"
    clock = time.thread_time_ns if torch.get_num_threads() == 1 and not cuda else time.perf_counter_ns
    # waiting for the GPU takes longer than a small mapping
    taken = turns(functions, seconds, device, fewest, 10 if cuda else 1, clock)
    return {name: statistics.median(times) for name, times in taken.items()}


def milliseconds(functions: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """`medians` in milliseconds."""
    return {name: t / 1e6 for name, t in medians(functions, seconds).items()}


def peak_memory(step: Callable[..., Callable[[], Any]], *arguments: Any) -> float:
    """MiB by which a call raises the peak resident memory, in a process of its own with one thread (Linux).

    Args:
        step: a function of a module, which makes the call from ``arguments``.
    """
    with ProcessPoolExecutor(1, mp.get_context("spawn")) as pool:
        return pool.submit(_grown, step, arguments).result()


def _grown(step: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...]) -> float:
    torch.set_num_threads(1)
    call = step(*arguments)
    ctypes.CDLL(None).malloc_trim(0)  # otherwise freed memory would be reused without being counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to the current memory
    before = _high_water()
    call()
    return _high_water() - before


def _high_water() -> float:
    """The peak resident memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def backward(function: Callable[..., Tensor], *leaves: Tensor, g: Tensor | None = None) -> Callable[[], Any]:
    """A call of the function and its gradient for a fixed cotangent ``g``, by default normal noise."""
    given = tuple(x.clone().requires_grad_() for x in leaves)
    g = torch.randn(function(*given).shape, generator=torch.Generator().manual_seed(1)) if g is None else g
    return lambda: torch.autograd.grad(function(*given), given, g)


def measure(
    case: Case, shapes: tuple[tuple[int, int], ...], seconds: float, others: dict[str, Contestant]
) -> list[Row]:
    """Time ``case`` and its peers on normal scores of every shape."""
    rows = {label: Row(label, [], [], case if label == case.label else None) for label in (case.label, *others)}
    for r, n in shapes:
        torch.manual_seed(0)
        x, g = (torch.randn(r, n, device=device()) * scale for scale in (case.scale, 1))
        contestants: dict[str, Contestant] = {"softmax": lambda z: torch.softmax(z, -1), case.label: case.function(x)}
        contestants |= others
        forward = medians({k: functools.partial(f, x) for k, f in contestants.items()}, seconds, device())
        both = medians({k: backward(f, x, g=g) for k, f in contestants.items()}, seconds, device())
        for label, row in rows.items():
            row.forward.append(forward[label] / forward["softmax"])
            row.both.append(both[label] / both["softmax"])
    return list(rows.values())
