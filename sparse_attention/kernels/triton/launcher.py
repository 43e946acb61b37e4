"""Start Triton kernels: a launch of a kind seen before goes straight to the compiled kernel.

Triton's own look-up binds, specialises and hashes every argument of every launch. What it compiles for is little: the constants,
the types of tensors and numbers, the alignment of tensors, and which numbers are 1 or divisible by 16. That is the key here, so
kernels are looked up by kind, never by size. The compiled kernel then gets addresses instead of tensors.

The current device and its stream are Triton's driver's, asked for each launch, so CUDA graphs and streams work as in Triton.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class LaunchFailed(RuntimeError):
    """A kernel did not compile or did not fit on the device. Nothing was computed."""


Values = tuple[Any, ...]  # of arguments: addresses instead of tensors
Start = Callable[[int, int, Values], None]


class _Seen:
    """What was launched of one kernel.

    bind: gives the device, the kind and the values of arguments, or None if Triton has to start the kernel with them.
    starts: by kind and constants, ``start(programs, stream, values)``, or None if Triton has to start it.
    """

    def __init__(self, kernel: Any, arguments: Values):
        self.kernel = kernel
        self.bind = _binder(kernel, arguments) if hasattr(kernel, "device_caches") else _nothing
        self.starts: dict[tuple[Any, ...], Start | None] = {}


def _nothing(*arguments: Any) -> None:
    """`_Seen.bind` of what Triton does not compile, as in its interpreter."""


def _binder(kernel: Any, arguments: Values) -> Callable[..., tuple[int, tuple[Any, ...], Values] | None]:
    """Write `_Seen.bind` for arguments of these types, as Triton does: a loop over them would take twice as long.

    Misaligned tensors, lazily negated ones, those of another device than the first, whole numbers of 64 bits and arguments of other
    types are left to Triton.
    """
    fits, kind, values, addresses, before = [], [], [], [], ""
    for i, (x, param) in enumerate(zip(arguments, kernel.params)):
        if isinstance(x, Tensor):
            kind.append(f"a{i}.dtype")
            value, fit = f"a{i}.data_ptr()", f"(a{i}.get_device() == device and not a{i}.is_neg())"
            if before:  # the same tensor again stands for arguments that are not given
                value, fit = f"p{before} if a{i} is a{before} else {value}", f"(a{i} is a{before} or {fit})"
            values.append(f"(p{i} := {value})")
            fits.append(fit)
            addresses.append(f"p{i}")
            before = str(i)
        else:
            values.append(f"a{i}")
            fits.append(f"a{i}.__class__ is {x.__class__.__name__}")
            if x.__class__ is int:
                fits.append(f"{-1 << 31} <= a{i} < {1 << 31}")
                if not param.do_not_specialize:
                    kind.append(f"2 if a{i} == 1 else not a{i} & 15")  # 2, since 1 and True are equal keys
    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    if not addresses or not all(x.__class__ in (int, float) or isinstance(x, Tensor) for x in arguments):
        return _nothing
    first = next(i for i, x in enumerate(arguments) if isinstance(x, Tensor))
    source = f"""def bind({names}):
    device = a{first}.get_device()
    if {" and ".join(fits)}:
        values = ({", ".join(values)},)
        return None if ({" | ".join(addresses)}) & 15 else (device, ({", ".join(kind)},), values)"""
    space: dict[str, Any] = {}
    exec(source, space)
    bind: Callable[..., tuple[int, tuple[Any, ...], Values] | None] = space["bind"]
    return bind


_seen: dict[int, _Seen] = {}  # by the identity of the kernel, which `_Seen` keeps alive
_triton: Any = None  # Triton's driver and its settings
_ahead: dict[int, list[threading.Thread]] = {}  # by the identity of the kernel, the threads that compile it
_LONG = 2.0  # seconds of a first launch that are reported


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Start a kernel on the device of its first tensor, whichever is the current one; all launches go through here.

    Lazily negated tensors are resolved first, since their values in memory differ from the values they represent.

    Raises:
        LaunchFailed: the kernel did not compile, or needs more than the device has.
    """
    if not programs:
        return
    seen = _seen.get(id(kernel))
    if seen is None or seen.kernel is not kernel:
        seen = _seen[id(kernel)] = _Seen(kernel, arguments)
    bound = seen.bind(*arguments)
    if bound is None or (stream := _stream(bound[0], kernel)) is None:
        _by_triton(kernel, programs, arguments, constants)
        return
    device, kind, values = bound
    known = (device, kind, *constants.values())
    start: Any = seen.starts.get(known, _seen)  # which is no start
    if start is _seen:
        wait(kernel)
        begun = time.monotonic()
        with _alone(kernel):
            made = _by_triton(kernel, programs, arguments, constants)
        if (seconds := time.monotonic() - begun) > _LONG:
            print(f"sparse_attention: compiled {kernel.fn.__name__} in {seconds:.0f} s", file=sys.stderr)
        if made is not None:
            seen.starts[known] = _start_of(made, kernel, len(arguments), constants)
    elif start is None:
        _by_triton(kernel, programs, arguments, constants)
    else:
        try:
            start(programs, stream, values)
        except Exception as error:
            _refused(kernel, error)


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


def _start_of(made: Any, kernel: Any, given: int, constants: dict[str, Any]) -> Start | None:
    """What starts a compiled kernel; None if this version of Triton does it in another way."""
    try:
        run, function, packed = made.run, made.function, made.packed_metadata
        rest = [constants[x.name] for x in kernel.params[given:]]
    except (AttributeError, KeyError):
        return None

    def start(programs: int, stream: int, values: Values) -> None:
        run(programs, 1, 1, stream, function, packed, None, None, None, *values, *rest)

    return start


def _by_triton(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> Any:
    """Start a kernel by Triton's own launch; returns what was compiled."""
    arguments = tuple(x.resolve_neg() if isinstance(x, Tensor) else x for x in arguments)
    device = next(x.device for x in arguments if isinstance(x, Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        try:
            return kernel[(programs,)](*arguments, **constants)
        except Exception as error:
            _refused(kernel, error)


@contextmanager
def _alone(kernel: Any) -> Iterator[None]:
    """Let one process compile a kernel at a time: the others then find it on disk. Without locks, this only costs time."""
    with ExitStack() as held:
        with suppress(ImportError, OSError, AttributeError):
            import fcntl

            from triton import knobs

            folder = Path(knobs.cache.dir)
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(open(folder / f"sparse_attention_{kernel.fn.__name__}.lock", "a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ahead(device: torch.device, call: Callable[[Callable[..., None]], Any]) -> None:
    """Compile the kernels that ``call(launch)`` starts, each in a thread of its own, so that they are ready when it is called.

    ``call`` gets a function in the place of `launch`; its tensors may be on the meta device.
    """

    def compile_(kernel: Any, arguments: Values, constants: dict[str, Any]) -> None:
        with suppress(Exception), torch.cuda.device(device) if device.type == "cuda" else nullcontext(), _alone(kernel):
            kernel.warmup(*arguments, grid=(1,), **constants)  # what is wrong will be raised by the launch

    def start(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        if hasattr(kernel, "device_caches"):
            thread = threading.Thread(target=compile_, args=(kernel, arguments, constants))
            _ahead.setdefault(id(kernel), []).append(thread)
            thread.start()

    call(start)


def wait(kernel: Any) -> None:
    """Wait until no thread compiles this kernel."""
    for thread in _ahead.pop(id(kernel), ()):
        thread.join()


def _refused(kernel: Any, error: Exception) -> None:
    if "CUDA" in str(error):  # an error of the device, not of this launch
        raise error
    raise LaunchFailed(f"{kernel.fn.__name__} did not start ({type(error).__name__}: {error})") from error
