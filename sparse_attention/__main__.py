"""``python -m sparse_attention``: versions, kernels, a self-test of ten seconds, and times against softmax on this machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import __version__, fused, kernels, make, names, spec

LARGEST = 2e-5  # allowed difference of float32 weights, and of gradients of unit size, from the reference in float64
ROUNDS = 9


def main() -> int:
    """Print everything; returns exit status 1 if a mapping fails the self-test."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"sparse_attention {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    used = kernels.select("sparsemax", torch.zeros(1, 2, device=device)).__name__.rpartition(".")[2]
    isa = f" ({kernels.backend('native').instruction_set()})" if used == "native" else ""
    print(f"kernels on {device}: {used}{isa}")
    of_rows = [n for n in names("simplex") if (s := spec(n)).over == "row" and not s.inputs and not s.stateful]
    wrong = [f"{name} (off by {off:.0e})" for name in of_rows if not (off := _difference(name, device)) <= LARGEST]
    print(f"self-test against the reference in float64: {len(of_rows) - len(wrong)} of {len(of_rows)} mappings agree")
    print("".join(f"  wrong: {one}\n" for one in wrong), end="")
    if wrong:
        return 1
    torch.set_num_threads(1)  # waiting for a thread would hide what a row costs
    on = "one thread" if device == "cpu" else device
    print(f"\ntime of forward and backward on {on}, softmax = 1\n  rows [1024, 64]")
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    of_names: dict[str, Callable[[], Tensor]] = {name: partial(make(name), x) for name in of_rows}
    _print_times(of_names, "softmax", (x,))
    print("  causal attention, 4 heads of 64, 1,024 positions (softmax: torch's scaled_dot_product_attention)")
    q, k, v = (torch.randn(1, 4, 1024, 64, device=device, requires_grad=True) for _ in range(3))
    attends: dict[str, Callable[[], Tensor]] = {
        "softmax": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "sparsemax": lambda: fused.sparse_attention(q * 4, k, v, "sparsemax", causal=True),
        "entmax 1.5": lambda: fused.sparse_attention(q * 4, k, v, "entmax", causal=True),
    }
    _print_times(attends, "softmax", (q, k, v))
    return 0


def command() -> None:
    """The console command `sparse-attention`: become scripts/sparse-attention of the checkout that is installed here."""
    script = Path(__file__).resolve().parents[1] / "scripts" / "sparse-attention"
    if not script.is_file():
        sys.exit("sparse-attention: only the library is installed here; run this in a checkout, after `make setup`")
    os.execv(sys.executable, [sys.executable, str(script), *sys.argv[1:]])


def _difference(name: str, device: str) -> float:
    """The largest difference of weights and gradients between these kernels in float32 and the reference in float64."""
    drawn = torch.Generator().manual_seed(0)
    scores = torch.randn(64, 33, generator=drawn).abs()  # some mappings need positive scores
    keep = torch.rand(64, 33, generator=drawn) < 0.8
    keep[0], keep[1] = False, True
    slopes = torch.randn(64, 33, generator=drawn)

    def both(kernel: str, dtype: torch.dtype, at: str, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        x = scores.to(at, dtype).requires_grad_()
        with kernels.use(kernel):
            p = make(name)(x, mask=mask if mask is None else mask.to(at))
            (dx,) = torch.autograd.grad(p, x, slopes.to(at, dtype))
        return p.detach().double().cpu(), dx.double().cpu()

    off = 0.0
    for mask in (None, keep):  # with a mask, other kernels run
        (p, dx), (q, dy) = both("auto", torch.float32, device, mask), both("reference", torch.float64, "cpu", mask)
        worst = max(float((p - q).abs().max()), float(((dx - dy).abs() / dy.abs().clamp(min=1)).max()))
        off = max(off, worst if worst == worst else float("inf"))
    return off


def _print_times(calls: dict[str, Callable[[], Tensor]], one: str, leaves: tuple[Tensor, ...]) -> None:
    """Print the median time of each call with its backward pass, as a multiple of that of `one`; calls take turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 2):
        for name, call in calls.items():
            _wait(leaves[0])
            began = time.perf_counter()
            torch.autograd.grad(call().sum(), leaves)
            _wait(leaves[0])
            if turn > 1:
                took[name].append(time.perf_counter() - began)
    unit = statistics.median(took[one])
    for name, times in took.items():
        each = statistics.median(times)
        print(f"    {name:22} {each / unit:5.2f}   {each * 1e3:8.2f} ms")


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
