"""``python -m sparse_attention``: versions, kernels, a self-test of ten seconds, and times against softmax on this machine.

``python -m sparse_attention bench`` times rows and attention of more sizes, in a minute, and says what to expect of others.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import __version__, attention, kernels, make, names, spec

LARGEST = 2e-5  # allowed difference of float32 weights, and of gradients of unit size, from the reference in float64
ROUNDS = 9
COMPARED = {"sparsemax": "sparsemax", "entmax 1.5": "entmax"}  # with softmax, by label
SCALE = 0.5  # of the scores of attention, whose standard deviation is then 4


def main() -> int:
    """Print everything; returns exit status 1 if a mapping fails the self-test."""
    device = _introduce()
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
    _print_times({name: partial(make(name), x) for name in of_rows}, (x,))
    print("  causal attention, 4 heads of 64, 1,024 positions (softmax: torch's scaled_dot_product_attention)")
    _print_times(*_attention(1024, device))
    return 0


def bench() -> int:
    """Print the times of rows and of attention, as multiples of torch's with softmax, and what to expect of other sizes."""
    device = _introduce()
    on = device if device == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    said = f"forward and backward ({on}); torch's softmax = 1"
    print(f"{said:51}" + "".join(f"{label:>12}" for label in COMPARED) + f"{'softmax takes':>15}")
    faster = ""
    for rows, n in ((16384, 16), (4096, 64), (256, 1024), (16, 16384)):
        x = torch.randn(rows, n, device=device, requires_grad=True)
        calls = {label: partial(make(name), x) for label, name in {"softmax": "softmax", **COMPARED}.items()}
        _print_ratios(f"rows [{rows:,}, {n:,}]", calls, (x,))
    for n in (128, 512, 1024, 2048, 4096):
        ratio = _print_ratios(f"causal attention, 4 heads of 64, {n:,} positions", *_attention(n, device))
        faster = faster or (f"from {n:,} positions" if ratio < 1 else "")
    print(
        f"Sparsemax attention is faster than torch's {faster or 'at none of these sizes'}. Fewer positions: as the shortest, or slower."
    )
    print(
        "More: the factor of 4,096 or better, if as few keys have weight: here the scores have a standard deviation of 4."
    )
    return 0


def _attention(n: int, device: str) -> tuple[dict[str, Callable[[], Tensor]], tuple[Tensor, ...]]:
    """Calls of causal attention over n positions, with torch's for softmax, and their tensors."""
    q, k, v = (torch.randn(1, 4, n, 64, device=device, requires_grad=True) for _ in range(3))
    torchs = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, scale=SCALE)
    ours = partial(attention.sparse_attention, q, k, v, causal=True, scale=SCALE)
    return {"softmax": torchs, **{label: partial(ours, mapping=name) for label, name in COMPARED.items()}}, (q, k, v)


def _introduce() -> str:
    """Print versions and kernels; returns the device to use."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"sparse_attention {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    used = kernels.select("sparsemax", torch.zeros(1, 2, device=device)).__name__.rpartition(".")[2]
    which = f" ({kernels.backend('native').described()})" if used == "native" else ""
    print(f"kernels on {device}: {used}{which}")
    return device


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


def _print_ratios(label: str, calls: Mapping[str, Callable[[], Tensor]], leaves: tuple[Tensor, ...]) -> float:
    """Print one line of times as multiples of softmax's, and softmax's own; returns the first multiple."""
    took = _times(calls, leaves)
    ratios = [took[name] / took["softmax"] for name in COMPARED]
    print(f"  {label:49}" + "".join(f"{r:12.2f}" for r in ratios) + f"{took['softmax'] * 1e3:12.2f} ms", flush=True)
    return ratios[0]


def _print_times(calls: Mapping[str, Callable[[], Tensor]], leaves: tuple[Tensor, ...]) -> None:
    """Print the time of each call with its backward pass, also as a multiple of softmax's."""
    for name, each in (took := _times(calls, leaves)).items():
        print(f"    {name:22} {each / took['softmax']:5.2f}   {each * 1e3:8.2f} ms")


def _times(calls: Mapping[str, Callable[[], Tensor]], leaves: tuple[Tensor, ...]) -> dict[str, float]:
    """The shortest time of each call with its backward pass, in seconds (other programs only add); calls take turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    wait = torch.cuda.synchronize if leaves[0].is_cuda else lambda: None
    for turn in range(ROUNDS + 2):
        for name, call in calls.items():
            wait()
            began = time.perf_counter()
            torch.autograd.grad(call().sum(), leaves)
            wait()
            if turn > 1:
                took[name].append(time.perf_counter() - began)
    return {name: min(times) for name, times in took.items()}


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["bench"]):
        sys.exit(
            f"{' '.join(sys.argv[1:])!r} is unknown: python -m sparse_attention, or python -m sparse_attention bench"
        )
    sys.exit(bench() if sys.argv[1:] else main())
