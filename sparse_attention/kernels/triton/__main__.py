"""Compile the kernels of attention, with its gradient and also with a mask, before their first use."""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from .. import triton as rows
from . import attention, kinds, launcher

LENGTH = 16_384  # of the sequences whose lists are timed


def calls(given: argparse.Namespace) -> None:
    """The calls whose kernels are compiled; their sizes do not matter."""
    rest = (2 * kinds.SHORT, *kinds.SHORT_KEYS), (False, True)
    for dtype, d, alpha, n, hidden in itertools.product(given.dtype, given.channels, given.alpha, *rest):
        q = torch.empty(1, 2, n, d, dtype=getattr(torch, dtype), device="meta")
        mask: dict[str, Any] = {"mask": torch.ones(1, 1, 1, n, dtype=torch.bool, device="meta")} if hidden else {}
        for save in (False, True) if n > kinds.SHORT else (True,):
            out, saved = attention.forward(q, q, q, alpha=alpha, scale=0.1, lead=(1, 2), save=save, **mask)
            if saved is not None:
                attention.gradients(out, q, q, q, saved)


def measure(device: str, seconds_of: Callable[[Callable[[], Any]], float]) -> tuple[int, bool]:
    """Kept in `kinds.record`, see `kinds.measured`: the most keys for which the kernels of `short_kernels` are faster than those of
    blocks, forward and backward; and whether those of `list_kernels` are, forward, and give the same, for random keys and for keys like their neighbours.
    """
    path, kept, most = kinds.record(), (kinds.SHORT, kinds.LISTED), 0
    path.unlink(missing_ok=True)
    kinds.measured.cache_clear()
    kinds.kind.cache_clear()

    def call(q: torch.Tensor, save: bool) -> torch.Tensor:
        out, saved = attention.forward(q, q, q, alpha=2.0, scale=0.125, causal=not save, lead=q.shape[:2], save=save)
        if saved is not None:
            attention.gradients(out, q, q, q, saved)
        return out

    for keys in kinds.SHORT_KEYS:
        q = torch.randn(64, 8, keys, 64, dtype=torch.bfloat16, device=device)
        small = seconds_of(partial(call, q, True))
        kinds.SHORT = 0
        most = keys if small <= seconds_of(partial(call, q, True)) else most
        kinds.SHORT = kept[0]
    listed = True
    for run in (1, 32):  # keys that resemble each other
        q = torch.randn(1, 16, LENGTH // run, 64, device=device).repeat_interleave(run, 2)
        q = (0.8 * q + 0.6 * torch.randn_like(q)).bfloat16()
        found = {}
        for kinds.LISTED in (True, False):
            found[kinds.LISTED] = seconds_of(partial(call, q, False)), call(q, False)
        (fast, out), (slow, expected) = found[True], found[False]
        listed &= fast < slow and torch.allclose(out, expected, 0.0, 2.0**-6)
    kinds.LISTED = kept[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{most} {listed:d}")
    kinds.measured.cache_clear()
    kinds.kind.cache_clear()
    return most, listed


def main(*command: str) -> str | None:
    """What was wrong, or None."""
    parser = argparse.ArgumentParser(prog="python -m sparse_attention.kernels.triton", description=__doc__)
    parser.add_argument("--arch", help="sm_80, sm_90, ...: of another device than the one here")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--channels", nargs="+", type=int, default=[64], help="of a head")
    parser.add_argument("--alpha", nargs="+", type=float, default=[2.0], help="2 is sparsemax")
    parser.add_argument(
        "--measure", action="store_true", help="also time which kernels suit short and long sequences here"
    )
    given = parser.parse_args(command)
    if rows._INTERPRETED or not rows._load():
        return "Triton is not installed, or TRITON_INTERPRET is set: nothing can be compiled."
    if given.arch:
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver

        number = given.arch.removeprefix("sm_")
        if not number.isdecimal() or int(number) < 80:
            return f"--arch {given.arch}: give sm_80 or a newer one, such as sm_90."
        if given.measure:
            return f"--measure needs the device itself: leave out --arch {given.arch}."
        rows._ELSEWHERE = divmod(int(number), 10)
        target = lambda: GPUTarget("cuda", int(number), 32)  # noqa: E731
        zero = lambda device=None: 0  # noqa: E731
        own: Any = SimpleNamespace(get_current_target=target, get_current_device=zero, get_current_stream=zero)
        driver.set_active(own)
    elif not torch.cuda.is_available():
        return "No CUDA device is here. Name the one to compile for, for example --arch sm_90."
    else:
        rows._ELSEWHERE = torch.cuda.get_device_capability()
    rows.capability.cache_clear()
    started: list[Any] = []
    launcher.instead = lambda kernel, programs, *rest, **constants: started.append((kernel, rest, constants))
    try:
        calls(given)
    finally:
        launcher.instead = None
    begun = time.monotonic()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: launcher.compiled(*one), started))
    print(f"{len(started)} kernels of attention are on disk, {time.monotonic() - begun:.0f} s")
    if given.measure:
        from triton.testing import do_bench

        short, listed = measure("cuda", do_bench)
        print(f"Up to {short} keys take the kernels of short sequences on this device from now on")
        print(
            f"From {kinds.LONG} keys on, half precision {'takes' if listed else 'does not take'} the kernels with lists"
        )
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
