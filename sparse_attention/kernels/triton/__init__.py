"""The GPU backend: Triton kernels, with one launch forward and one launch backward for each mapping.

It takes float32, float16 and bfloat16 rows [R, n] on a CUDA device, with n up to 32,768 (8,192 for fusedmax and
oscarmax), and their mask. It computes in float32 and rounds once. The reference, which runs on any device, handles the
rest: float64, longer rows, constrained_sparsemax, and alpha above 2. ``forward`` and ``backward`` are called as
described in ``sparse_attention.kernels``, with one more argument, a `Form`.

With ``TRITON_INTERPRET=1``, the kernels also take CPU tensors, but are slow.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import active
from ..native.attention_shape import joined
from ..reference import OPS as REFERENCE
from .launcher import LaunchFailed, Starter, no_lengths, starter

_LONGEST, _LONGEST_GROUPED = 32768, 8192  # the backward of fusedmax and oscarmax keeps a row in registers
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
_SEEN = 1000  # numbers of rows, for each kernel
_FEW, _BACK = 64, 256  # entries of a warp of fusedmax and oscarmax at a time, and in the backward

Result = tuple[Tensor, tuple[Tensor, ...]]


@functools.cache
def _load() -> tuple[Any, ...]:
    """The kernels' modules. Triton is imported on first use, since its import takes longer than that of the whole package."""
    try:
        from . import simplex, structured
    except ImportError:
        return ()
    return simplex, structured


def available(op: str, x: Tensor) -> bool:
    """True if ``op`` can run on ``x`` on this machine."""
    here = (x.is_cuda or (_INTERPRETED and x.is_cpu)) and op not in given_up and bool(_load())
    return here and _takes(op, x.shape[-1], x.dtype, x.get_device())


def _takes(op: str, n: int, dtype: torch.dtype, device: int) -> bool:
    longest = (_LONGEST_GROUPED if op in _GROUPED else _LONGEST) if op in OPS else -1
    return dtype in _DTYPES and n <= longest and too_old(device) is None


def too_old(device: int) -> str | None:
    """Why Triton does not compile for this device, as a clause, or None."""
    if (found := capability(device)) >= (8, 0):
        return None
    return f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}; the Triton kernels need 8.0"


@functools.cache
def capability(device: int) -> tuple[int, int]:
    """The compute capability of a device; -1 is that of CPU tensors, for which `_ELSEWHERE` says it."""
    return torch.cuda.get_device_capability(device) if device >= 0 else _ELSEWHERE


_ELSEWHERE = (9, 0)  # of the device that CPU tensors stand for
given_up: dict[str, LaunchFailed] = {}  # the operations whose kernels did not start


def give_up(op: str, error: LaunchFailed) -> None:
    """Compute ``op`` without Triton from now on, with a warning. Raises the error if Triton was chosen by name."""
    if active() == "triton":
        raise error
    if op not in given_up:
        warnings.warn(f"{op} is computed by torch from now on, which is slower: {error}", stacklevel=4)
    given_up[op] = error


class Form(NamedTuple):
    """Extra arguments of a kernel: the mask to apply and the dtype to round to.

    mask: bool, True = keep, for rows of shape [R / (size1 size2), size1, size2]. layout: size1, size2, then the
    mask's strides in those three dimensions and along n; empty without a mask. dtype: dtype of the attention or the
    gradient; by default the input's.
    """

    mask: Tensor | None = None
    layout: tuple[int, ...] = ()
    dtype: torch.dtype | None = None


PLAIN = Form()
_UNMASKED = {"size1": 1, "size2": 1, "s0": 0, "s1": 0, "s2": 0, "s3": 0}  # the layout of a kernel that reads no mask
_FREE = {dtype: Form(dtype=dtype) for dtype in _DTYPES}


def form(mask: Tensor | None, dtype: torch.dtype, shape: Sequence[int]) -> Form:
    """The `Form` for a boolean mask that broadcasts to ``shape``; one that needs more than three strides besides the last is copied."""
    if mask is None:
        return _FREE[dtype]
    layout = _layout(mask.shape, mask.stride(), shape)
    return Form(mask, layout, dtype) if layout else form(mask.expand(shape).contiguous(), dtype, shape)


@functools.lru_cache(1024)
def _layout(sizes: Sequence[int], strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...] | None:
    """The layout of a `Form`; None if three strides are not enough."""
    steps = [0] * (len(shape) - len(sizes)) + [step if size > 1 else 0 for size, step in zip(sizes, strides)]
    if len(lead := joined(shape[:-1], steps)) > 3:
        return None
    (_, s0), (size1, s1), (size2, s2) = [(1, 0)] * (3 - len(lead)) + lead
    return size1, size2, s0, s1, s2, steps[-1]


@functools.lru_cache(512)
def _sizes(n: int, each: int = 1024, few: int = 0) -> dict[str, int]:
    """The constants of a kernel whose warps have ``each`` entries, or one warp that takes ``few`` entries at a time."""
    block = 1 << max(4, (n - 1).bit_length())
    if few:
        rows = max(1, min(4, 256 // block))
        return {"FEW": few // rows, "ROWS": rows, "BLOCK": min(block, 1024), "num_warps": 1, "maxnreg": 96}
    warps = min(32, max(1, block // each))
    tile = {"ROWS": max(1, min(16, each // block)), "BLOCK": block, "num_warps": warps}
    if warps == 32:
        tile["maxnreg"] = 64  # all that 1,024 threads can have; Triton 3.9 would take half of them
    return tile


class _Launch(dict[Any, Callable[..., None]]):
    """Starts a kernel of `_load` on rows of n entries: ``launch[rows, layout, dtypes](*tensors)``, dtypes of those that may have others.

    order: which of the tensors is each of the kernel's. numbers: those that follow n.
    """

    def __init__(
        self, module: int, name: str, order: tuple[int, ...], n: int, *numbers: float, each: int = 1024, few: int = 0,
        **constants: Any,
    ):  # fmt: skip
        kernels = _load()[module]
        if "RULE" in constants:
            constants["RULE"] = getattr(kernels, constants["RULE"]).value
        if constants.get("MASKED") is False:
            constants |= _UNMASKED
        sizes = _sizes(n, each, few)
        self.start, self.own = starter(getattr(kernels, name), **constants, **sizes), sizes["ROWS"]
        self.order, self.numbers = tuple(map(int, order)), (n, *numbers)

    def __missing__(self, key: tuple[Any, ...]) -> Callable[..., None]:
        if len(self) >= _SEEN:
            self.clear()
        rows, layout, *_ = key
        self[key] = self.start.fixed(-(-rows // self.own), self.order, (rows, *self.numbers, *layout))
        return self[key]


def _like(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return torch.empty_like(x) if dtype is None or dtype is x.dtype else torch.empty_like(x, dtype=dtype)


Forward = Callable[[Tensor, Form], Result]
Backward = Callable[[Tensor, Tensor, Any, Form], Tensor]
Pair = tuple[Forward, Backward]


class Plan(NamedTuple):
    """How to compute an operation on rows of one kind. form: of the backward, without a mask."""

    op: str
    params: dict[str, float]
    forward: Forward
    backward: Backward
    form: Form


def plan(op: str, x: Tensor, masked: bool, params: dict[str, float]) -> Plan | None:
    """The forward and the backward for such scores, all that a call need not find out again; None if no kernel takes them."""
    if not (x.is_cuda or (_INTERPRETED and x.is_cpu)) or op in given_up:
        return None
    return _plan(op, x.shape[-1], masked, x.dtype, x.get_device(), *params.items())


@functools.lru_cache(2048)
def _plan(op: str, n: int, masked: bool, dtype: torch.dtype, device: int, *given: tuple[str, float]) -> Plan | None:
    """The plan for rows of n entries; None if no kernel takes them, or float32 is not precise enough: the reference is used."""
    params = dict(given)
    exact = 1.1 <= params.get("alpha", 2.0) <= 2.0 and params.get("p", 2.0) >= 1.05
    takes = exact and _load() and _takes(op, n, dtype, device)
    return Plan(op, params, *_MAKE[op](n, masked, **params), _FREE[dtype]) if takes else None


class Kernel:
    """One operation."""

    def __init__(self, op: str):
        self.op = op

    def forward(self, x: Tensor, form: Form = PLAIN, /, **params: float) -> Result:
        found = _plan(self.op, x.shape[-1], form.mask is not None, x.dtype, x.get_device(), *params.items())
        return found.forward(x.resolve_neg(), form) if found else REFERENCE[self.op].forward(x, **params)

    def backward(self, g: Tensor, y: Tensor, saved: Any = (), form: Form = PLAIN, /, **params: float) -> Tensor:
        found = _plan(self.op, y.shape[-1], form.mask is not None, y.dtype, y.get_device(), *params.items())
        if not found:
            return REFERENCE[self.op].backward(g, y, saved, **params)
        return found.backward(g.resolve_neg(), y.resolve_neg(), saved, form)


def _project(n: int, masked: bool, rule: str, scale: float = 1.0, r: float = 0.0, keep: bool = False) -> Forward:
    """The forward of a mapping with a threshold, which saves its scores if ``keep``."""
    launch = _Launch(0, "simplex_forward", (0, masked, 1 + masked), n, scale, r, RULE=rule, MASKED=masked)

    def forward(x: Tensor, form: Form) -> Result:
        bits, layout, dtype = form
        p = torch.empty_like(x) if dtype is None or dtype is x.dtype else torch.empty_like(x, dtype=dtype)
        go = launch[x.numel() // n, layout, dtype]
        go(x, p) if bits is None else go(x, bits, p)
        return p, (x,) if keep else ()

    return forward


def _weighted(n: int, name: str, scale: float, exponent: float) -> Backward:
    launch = _Launch(0, name, (0, 1, 2), n, scale, exponent)

    def backward(g: Tensor, p: Tensor, saved: Any, form: Form) -> Tensor:
        dtype = form[2]
        dx = torch.empty_like(p) if dtype is None or dtype is p.dtype else torch.empty_like(p, dtype=dtype)
        launch[p.numel() // n, (), dtype, p.dtype, g.dtype](g.contiguous(), p, dx)
        return dx

    return backward


def _simplex(rule: str, exponent: float, n: int, masked: bool, *, gamma: float) -> Pair:
    return _project(n, masked, rule, 1 / gamma), _weighted(n, "weighted_backward", 1 / gamma, exponent)


def _entmax(n: int, masked: bool, *, alpha: float) -> Pair:
    rule = {2.0: "SPARSEMAX", 1.5: "ENTMAX15"}.get(alpha, "ENTMAX")
    forward = _project(n, masked, rule, alpha - 1, 1 / (alpha - 1))
    return forward, _weighted(n, "weighted_backward", 1.0, 2 - alpha)


def _pnormmax(n: int, masked: bool, *, p: float, gamma: float) -> Pair:
    if p == 2:
        return _simplex("SPARSEMAX", 0.0, n, masked, gamma=gamma)
    return _project(n, masked, "PNORMMAX", 1 / gamma, p / (p - 1)), _weighted(n, "pnormmax_backward", p, gamma)


def _cone(rule: str, n: int, masked: bool, *, q: float) -> Pair:
    order = (0, 1, 2, 3, 4) if masked else (0, 1, 2, 1, 3)
    launch = _Launch(0, "cone_backward", order, n, q, MIRRORED=rule == "HOURGLASS", MASKED=masked)

    def backward(g: Tensor, p: Tensor, saved: Any, form: Form) -> Tensor:
        bits, layout, dtype = form
        (x,), dx = saved, _like(saved[0], dtype)
        tensors = (p, x, dx) if bits is None else (p, x, bits, dx)
        launch[p.numel() // n, layout, dtype, p.dtype, g.dtype](g.contiguous(), *tensors)
        return dx

    return _project(n, masked, rule, 1.0, q, keep=True), backward


def _grouped(op: str, n: int, masked: bool, *, lam: float, gamma: float) -> Pair:
    """fusedmax and oscarmax; only the second sorts."""
    ordered, scale = op == "oscarmax", 1 / gamma
    order = 0, masked, 1 + masked, 2 + masked, 2 + masked + ordered, 3 + masked + ordered
    launch = _Launch(1, "grouped_forward", order, n, scale, lam, few=_FEW, ORDERED=ordered, MASKED=masked)
    back = _Launch(
        1, "grouped_backward", (0, 1, 1 + ordered, 2 + ordered, 3 + ordered), n, scale, each=_BACK, ORDERED=ordered
    )

    def forward(x: Tensor, form: Form) -> Result:
        bits, layout, dtype = form
        rows, p, marks = x.numel() // n, _like(x, dtype), torch.empty_like(x, dtype=torch.int8)
        saved = (marks, torch.empty_like(x, dtype=torch.int16)) if ordered else (marks,)
        work = torch.empty(2 * rows * (n + 1), dtype=torch.float64, device=x.device)
        go = launch[rows, layout, dtype]
        go(x, p, *saved, work) if bits is None else go(x, bits, p, *saved, work)
        return p, saved

    def backward(g: Tensor, p: Tensor, saved: Any, form: Form) -> Tensor:
        rows, dx = p.numel() // n, _like(p, form[2])
        work = torch.empty(2 * rows * (n + 1), dtype=torch.float64, device=p.device)
        back[rows, (), form[2], p.dtype, g.dtype](g.contiguous(), *saved, dx, work)
        return dx

    return forward, backward


_MAKE: dict[str, Callable[..., Pair]] = {
    "softmax": functools.partial(_simplex, "SOFTMAX", 1.0),
    "sparsemax": functools.partial(_simplex, "SPARSEMAX", 0.0),
    "entmax": _entmax,
    "pnormmax": _pnormmax,
    "sparsecone": functools.partial(_cone, "CONE"),
    "sparsehourglass": functools.partial(_cone, "HOURGLASS"),
    "fusedmax": functools.partial(_grouped, "fusedmax"),
    "oscarmax": functools.partial(_grouped, "oscarmax"),
}
_GROUPED = ("fusedmax", "oscarmax")
OPS = {op: Kernel(op) for op in _MAKE}
