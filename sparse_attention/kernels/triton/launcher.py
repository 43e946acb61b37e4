"""Start Triton kernels: a launch of a kind seen before goes straight to the compiled kernel.

Triton's own look-up binds, specialises and hashes every argument of every launch. What it compiles for is little: the constants,
the types of tensors and numbers, the alignment of tensors, and which numbers are 1 or divisible by 16. That is the key here, so
kernels are looked up by kind, never by size. The compiled kernel then gets addresses instead of tensors.

The current device and its stream are Triton's driver's, asked for each launch, so CUDA graphs and streams work as in Triton.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...errors import Refused


class LaunchFailed(Refused, RuntimeError):
    """A kernel did not compile or did not fit on the device. Nothing was computed."""


Values = tuple[Any, ...]


class Starter:
    """A kernel with its constants: ``go(programs, *arguments)`` starts it on the device of the first argument, a tensor.

    That need not be the current device, but all tensors are on it, and none is lazily negated. With meta tensors, the kernel is
    compiled for the current device, in a thread of its own, so that it is ready when it is started. starts: by kind of arguments,
    Triton's launcher of what is compiled, its function, what it gets before the arguments, and the constants behind them; None if
    Triton has to start it.

    Raises:
        LaunchFailed: the kernel did not compile, or needs more than the device has.
    """

    __slots__ = ("constants", "kernel", "starts")

    def __init__(self, kernel: Any, constants: dict[str, Any]):
        self.kernel, self.constants = kernel, constants
        self.starts: dict[Values, Any] = {}

    def go(self, programs: int, *arguments: Any) -> None:
        known = self.kind(arguments)
        start = None if known is None else self.starts.get(known)
        if start is not None and programs and (stream := _stream(arguments[0].get_device(), self.kernel)) is not None:
            run, function, before, rest = start
            values = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
            try:
                return run(programs, 1, 1, stream, function, *before, *values, *rest)  # type: ignore[no-any-return]
            except Exception as error:
                _refused(self.kernel, error)
        self.slow(programs, known, arguments)

    def fixed(self, programs: int, order: tuple[int, ...], numbers: Values) -> Callable[..., None]:
        """A faster ``go(*tensors)``, for launches that differ only by their tensors, of the same dtypes on one device.

        order: which of the tensors is each of the kernel's, -1 for `no_lengths`; the numbers follow them.
        """

        def arguments(tensors: tuple[Tensor, ...]) -> Values:
            return (*(tensors[i] if i >= 0 else no_lengths(tensors[0].device) for i in order), *numbers)

        def find(*tensors: Tensor) -> Any:
            known = self.kind(arguments(tensors))
            start = None if known is None else self.starts.get(known)
            return start and (*start[:3], (*numbers, *start[3]))

        if not programs:
            return lambda *tensors: None
        return _fixed(order)(self.kernel, programs, find, lambda *tensors: self.go(programs, *arguments(tensors)))

    def kind(self, arguments: Values) -> Values | None:
        """What Triton compiles for: the device, dtypes, and of numbers whether they are 1 or divisible by 16.

        None: Triton has to look, at misaligned tensors and at whole numbers below 0 or of 64 bits; or nothing is started here.
        """
        if instead is not None or not hasattr(self.kernel, "device_caches"):
            return None
        found: list[Any] = [arguments[0].get_device()]
        for x, param in zip(arguments, self.kernel.params):
            if isinstance(x, Tensor):
                if x.data_ptr() & 15:
                    return None
                found.append(x.dtype)
            elif x.__class__ is not float:
                if not 0 <= x < 1 << 31:
                    return None
                if not param.do_not_specialize:
                    found.append(2 if x == 1 else not x & 15)  # 2, since 1 and True are equal keys
        return tuple(found)

    def slow(self, programs: int, known: tuple[Any, ...] | None, arguments: Values) -> None:
        """Start what `go` does not: arguments of a kind that is new, or at which Triton has to look."""
        kernel, constants = self.kernel, self.constants
        if not programs:
            return
        if instead is not None:
            instead(kernel, programs, *arguments, **constants)
        elif arguments[0].is_meta:
            device = torch.cuda.current_device() if torch.cuda.is_available() else -1
            with suppress(RuntimeError):  # no more threads: the launch will compile it
                threading.Thread(target=_ahead, args=(device, kernel, arguments, constants)).start()
        elif known is None or known in self.starts or _stream(known[0], kernel) is None:
            _by_triton(kernel, programs, arguments, constants)
        else:
            with _alone(kernel, arguments, constants):
                made = _by_triton(kernel, programs, arguments, constants)
            start = None
            with suppress(AttributeError, KeyError):  # another version of Triton, which starts it in another way
                rest = tuple(constants[x.name] for x in kernel.params[len(arguments) :])
                before: Values = (made.packed_metadata, None, None, None)
                run, version = made.run, sys.modules["triton"].__version__
                if version.startswith("3.6.") and not run.global_scratch_size | run.profile_scratch_size:
                    # what Triton's launcher calls in the end, as its file backends/nvidia/driver.py says
                    run, before = run.launch, (run.launch_cooperative_grid, run.launch_pdl, None, None, *before)
                start = run, made.function, before, rest
            self.starts[known] = start


@functools.cache
def _fixed(order: tuple[int, ...]) -> Callable[..., Any]:
    """Write the ``go`` of `Starter.fixed` for tensors in this order, as Triton does: loops over them would take twice as long."""
    space: dict[str, Any] = {}
    many = range(max(order) + 1)
    names, addresses = ", ".join(f"a{i}" for i in many), " | ".join(f"(p{i} := a{i}.data_ptr())" for i in many)
    values = ", ".join(f"p{i}" if i >= 0 else "0" for i in order)
    source = f"""def writer(kernel, programs, find, slow):
    start = None
    def go({names}):
        nonlocal start
        if start is None:
            start = find({names})
        if start is not None and instead is None and not ({addresses}) & 15:
            if (stream := _stream(a0.get_device(), kernel)) is not None:
                run, function, before, rest = start
                try:
                    return run(programs, 1, 1, stream, function, *before, {values}, *rest)
                except Exception as error:
                    _refused(kernel, error)
        slow({names})
    return go"""
    exec(source, globals(), space)
    return space["writer"]  # type: ignore[no-any-return]


@functools.lru_cache(64)
def no_lengths(device: torch.device) -> Tensor:
    """Stands for lengths that are not given; it is not read. It has no memory, which could be that of a CUDA graph."""
    return torch.empty(0, dtype=torch.int64, device=device)


# By the identity of the kernel, which they keep alive, and the constants
_starters: dict[tuple[Any, ...], Starter] = {}
_triton: Any = None  # Triton's driver and its settings
_LONG = 2.0  # seconds of a first launch that are reported
instead: Callable[..., None] | None = None  # tests: gets kernel, programs, arguments and constants; nothing is started


def starter(kernel: Any, **constants: Any) -> Starter:
    """The `Starter` of a kernel with these constants, always in the same order, which may be kept."""
    key = (id(kernel), *constants.values())
    found = _starters.get(key)
    if found is None:
        _hash(getattr(kernel, "__module__", __name__))
        found = _starters[key] = Starter(kernel, constants)
    return found


@functools.cache
def _hash(module: str) -> None:
    """Hash the functions of a module in their order: in Triton 3.6, the name of a kernel on disk depends on which were hashed before."""
    for x in list(vars(sys.modules[module]).values()):
        if isinstance(x, ModuleType) and x.__name__.startswith(f"{__package__}."):
            _hash(x.__name__)
        getattr(x, "cache_key", None)


def _stream(device: int, kernel: Any) -> int | None:
    """The current stream; None if Triton has to start the kernel: on another device, or if something looks at its launches."""
    global _triton
    if _triton is None:
        try:
            from triton import knobs
            from triton.runtime import driver

            _triton = (driver, knobs.runtime) if torch.version.hip is None else ()
        except ImportError:  # another version of Triton
            _triton = ()
    try:
        driver, knobs = _triton
        enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
        if (enter is not None and enter.calls) or (leave is not None and leave.calls) or kernel.pre_run_hooks:
            return None
        if knobs.debug or knobs.add_stages_inspection_hook is not None:
            return None
        driver = driver.active
        return driver.get_current_stream(device) if driver.get_current_device() == device else None
    except (AttributeError, ValueError, RuntimeError):  # another Triton, or a hook that is a function; or no GPU
        return None


def _by_triton(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> Any:
    """Start a kernel by Triton's own launch; returns what was compiled."""
    with torch.cuda.device(arguments[0].get_device()):  # below 0, this does nothing
        try:
            return kernel[(programs,)](*arguments, **constants)
        except Exception as error:
            _refused(kernel, error)


@contextmanager
def _alone(kernel: Any, arguments: Values, constants: dict[str, Any]) -> Iterator[None]:
    """Let one process compile a kernel at a time: the others then find it on disk. Without locks, this only costs time.

    Says so if it took long.
    """
    begun = time.monotonic()
    kinds = [x.dtype if isinstance(x, Tensor) else x.__class__ for x in arguments]
    mark = zlib.crc32(repr([*kinds, *constants.items()]).encode())
    with ExitStack() as held:
        with suppress(ImportError, OSError, AttributeError):
            import fcntl

            from triton import knobs

            folder = Path(knobs.cache.dir)
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(open(folder / f"sparse_attention_{kernel.fn.__name__}_{mark:x}.lock", "a"))
            fcntl.flock(file, fcntl.LOCK_EX)
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a process forked meanwhile has the file open, too
        yield
    if (seconds := time.monotonic() - begun) > _LONG:
        print(f"sparse_attention: compiled {kernel.fn.__name__} in {seconds:.0f} s", file=sys.stderr)


def _ahead(device: int, *launch: Any) -> None:
    with suppress(Exception), torch.cuda.device(device):  # what is wrong will be raised by the launch
        compiled(*launch)


def compiled(kernel: Any, arguments: Values, constants: dict[str, Any]) -> None:
    """Compile a kernel for such arguments, or find it on disk. Triton leaves Python free meanwhile, so threads do it side by side."""
    with _alone(kernel, arguments, constants):
        kernel.warmup(*arguments, grid=(1,), **constants)


def _refused(kernel: Any, error: Exception) -> None:
    if "CUDA" in str(error) and "resources" not in str(error):  # an error of the device, not of this launch
        raise error
    raise LaunchFailed(f"{kernel.fn.__name__} did not start ({type(error).__name__}: {error})") from error
