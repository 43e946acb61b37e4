"""Check the kernels on this machine against the reference, and time them against torch, entmax and flash attention.

The kernels run on one device; their results are compared with the reference kernels in float64 on the CPU.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sparse_attention as sa
from sparse_attention import kernels

MAPPINGS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("softmax", "softmax", {}),
    ("sparsemax", "sparsemax", {}),
    ("entmax 1.5", "entmax", {"alpha": 1.5}),
    ("entmax 1.3", "entmax", {"alpha": 1.3}),
    ("pnormmax 1.5", "pnormmax", {"p": 1.5}),
    ("sparsegen_lin .3", "sparsegen_lin", {"lam": 0.3}),
    ("sparsehourglass 1", "sparsehourglass", {"q": 1.0}),
    ("fusedmax .1", "fusedmax", {"lam": 0.1}),
    ("oscarmax .01", "oscarmax", {"lam": 0.01}),
)
# Half precision rounds the attention weights (up to 1) once; the gradient is computed from the rounded weights.
TOLERANCE = {
    torch.float32: (2e-6, 2e-4),
    torch.float16: (2**-11, 2**-6),
    torch.bfloat16: (2**-8, 2**-4),
}


@dataclass(frozen=True)
class Sizes:
    """Shapes to compare, to time, and for attention [B, H, T, d]; seconds per timing."""

    compared: tuple[tuple[int, int, int], ...]
    timed: tuple[tuple[int, int], ...]
    attention: tuple[int, int, int, int]
    seconds: float


FULL = Sizes(
    ((5, 3, 1), (64, 1, 25), (16, 8, 50), (7, 2, 128), (4, 2, 1000), (2, 1, 4096)),
    ((64, 25), (1600, 50), (32768, 128), (4096, 512), (512, 4096)),
    (8, 16, 512, 64),
    0.5,
)
TOY = Sizes(((2, 2, 1), (6, 1, 13)), ((64, 25),), (1, 2, 16, 8), 0.01)


def machine(device: str) -> dict[str, Any]:
    """Name, versions and clocks of this machine, as plain JSON values."""
    from repro.store import provenance

    found = provenance.collect()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": found["python"]}
    for name in ("triton", "entmax", "adasplash"):
        versions[name] = __import__(name).__version__ if importlib.util.find_spec(name) else None
    clocks = "none"
    if device == "cuda":
        query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
        clocks = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv"], capture_output=True, text=True, check=False
        ).stdout.strip()
        clocks = clocks or "nvidia-smi said nothing"
    name = torch.cuda.get_device_name() if device == "cuda" else found["machine"]["cpu"]
    return {
        "device": device,
        "name": name,
        "versions": versions,
        "clocks": clocks,
        "code": found["code"],
        "kernels": found["kernels"],
    }


def compare(device: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Compare every mapping, type and shape with the reference.

    Rows have a right-padded mask and some -inf; among them are masked rows, a row of ties, and a row with a NaN.

    Returns:
        for each case, the largest errors of the attention and of the gradient, and whether both are within the
        tolerance.
    """
    found = []
    for label, name, params in MAPPINGS:
        for dtype, (tolerance, slope) in TOLERANCE.items():
            for shape in sizes.compared:
                torch.manual_seed(0)
                n = shape[-1]
                x, g = (torch.randn(shape).to(dtype) for _ in range(2))
                mask = torch.arange(n) < torch.randint(1, n + 1, (shape[0], 1, 1))
                mask[0] = False
                x[1, 0] = x[1, 0, 0]
                x[-1, -1, 0] = torch.nan
                if n > 4:
                    x[1:, :, 2] = -torch.inf
                results = []
                for where, to in ((device, dtype), ("cpu", torch.float64)):
                    scores = x.to(where, to, copy=True).requires_grad_()
                    with kernels.use("auto" if to is dtype else "reference"):
                        p = getattr(sa, name)(scores, mask=mask.to(where), **params)
                        p.backward(g.to(where, p.dtype))
                    assert scores.grad is not None
                    results += [p.detach().cpu().double(), scores.grad.cpu().double()]
                p, dx, expected, gradient = results
                rows = ~expected.isnan().any(-1)
                error, slip = (float((a - b)[rows].abs().max()) for a, b in ((p, expected), (dx, gradient)))
                same = bool((p.isnan() == expected.isnan()).all())
                good = same and error <= tolerance and slip <= slope
                found.append(
                    {
                        "mapping": label,
                        "dtype": str(dtype)[6:],
                        "shape": list(shape),
                        "error": error,
                        "gradient_error": slip,
                        "agrees": good,
                    }
                )
    return found


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(~mask, -torch.inf), -1)


def _entmax(function: Callable[..., Tensor], mask: Tensor, x: Tensor) -> Tensor:
    return function(x.masked_fill(~mask, -1e9), dim=-1)


def _both(f: Callable[[Tensor], Tensor], leaf: Tensor, g: Tensor) -> None:
    torch.autograd.grad(f(leaf), leaf, g)


def contestants(mask: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Implementations of masked attention by label: torch's first, then ours, then entmax's if it is installed."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {"torch.softmax": lambda x: _masked(x, mask)}
    for label, name, params in MAPPINGS:
        functions[label] = partial(getattr(sa, name), mask=mask, **params)
    if importlib.util.find_spec("entmax"):
        import entmax

        for name in ("sparsemax", "entmax15", "entmax_bisect"):
            functions[f"entmax.{name}"] = partial(_entmax, getattr(entmax, name), mask)
    return functions


def _in_turns(works: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, float]:
    """Median microseconds of each function; they are called in turns."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():  # compiles
        work()
        work()
    stop = time.perf_counter() + seconds * len(works)
    while time.perf_counter() < stop or len(next(iter(taken.values()))) < 3:
        for name, work in works.items():
            if device == "cuda":
                torch.cuda.synchronize()
            before = time.perf_counter()
            for _ in range(10):
                work()
            if device == "cuda":
                torch.cuda.synchronize()
            taken[name].append((time.perf_counter() - before) * 1e5)
    return {name: statistics.median(times) for name, times in taken.items()}


def launches(work: Callable[[], Any], device: str) -> int | None:
    """Number of kernels that one call starts on the GPU; None on other devices."""
    if device != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in seen.events())


def speeds(device: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Microseconds of forward, and of forward with backward, and kernel launches, by implementation, shape and type."""
    found = []
    for rows, n in sizes.timed:
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            x = torch.randn(rows, n, device=device, dtype=dtype)
            mask = torch.arange(n, device=device) < torch.randint(n // 2, n + 1, (rows, 1), device=device)
            leaf, g = x.clone().requires_grad_(), torch.randn_like(x)
            functions = contestants(mask)
            ways: dict[str, dict[str, Callable[[], Any]]] = {
                "forward": {k: partial(f, x) for k, f in functions.items()},
                "both": {k: partial(_both, f, leaf, g) for k, f in functions.items()},
            }
            for way, works in ways.items():
                for label, taken in _in_turns(works, device, sizes.seconds).items():
                    found.append({
                        "shape": [rows, n], "dtype": str(dtype)[6:], "way": way, "label": label, "microseconds": round(taken, 2),
                        "launches": launches(works[label], device),
                    })  # fmt: skip
    return found


def attention_speeds(device: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Microseconds of complete attention in bfloat16.

    Timed are each mapping between two matrix products, and torch's fused softmax (flash attention on a GPU).
    """
    B, H, T, d = sizes.attention
    q, k, v = (torch.randn(B, H, T, d, device=device, dtype=torch.bfloat16) for _ in range(3))
    fused = partial(F.scaled_dot_product_attention, q, k, v)
    works: dict[str, Callable[[], Any]] = {"scaled_dot_product_attention": fused}

    def attend(mapping: Callable[[Tensor], Tensor]) -> Tensor:
        return mapping(q @ k.mT * d**-0.5) @ v

    for label, name, params in MAPPINGS[:3] + MAPPINGS[-2:]:
        works[label] = partial(attend, partial(getattr(sa, name), **params))
    return [
        {"shape": list(sizes.attention), "label": label, "microseconds": round(t, 1)}
        for label, t in _in_turns(works, device, sizes.seconds).items()
    ]
