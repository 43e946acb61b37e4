"""Time what a GPU call costs the host: `python benchmarks/host.py` (`make bench-host`), with or without a GPU.

    --against FOLDER    also time another checkout of the project; the two take turns, each in a process of its own
    --seconds           of each case and checkout (default .3)
    --only TEXT         cases whose names contain the text
    --first N DTYPE     instead: seconds of the first update of a Transformer with N positions in this process, whose kernels
                        are compiled, or read from Triton's cache (TRITON_CACHE_DIR)

Without a GPU, kernels are compiled for sm_90, and Triton gets a driver that counts launches and starts nothing. CPU tensors stand in for
CUDA tensors, so the time lacks CUDA's allocator, the device guard, the look-up of torch's stream and the driver's own launch. Times are
microseconds of the process, forward without gradients / forward and backward, and launches of each (0 on a GPU, where none are counted). With another checkout, the
last line is `rows F/B attention F/B`: the geometric means of new over old.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
LAYERS = 8  # calls that share one backward pass, as in a model
TURNS = 10  # of each checkout; the fastest counts, since others use the machine too
Call = Callable[[], Any]
ROWS: dict[str, dict[str, float]] = {
    "softmax": {}, "sparsemax": {}, "entmax": {"alpha": 1.5}, "pnormmax": {"p": 1.5}, "sparsegen_lin": {"lam": 0.3},
    "sparsehourglass": {}, "fusedmax": {"lam": 0.1}, "oscarmax": {"lam": 0.05},
}  # fmt: skip


class Started(NamedTuple):
    """A launch: the kernel's name, the hash of what was compiled, the stream, the number of programs and the arguments."""

    name: str
    hash: str
    stream: int
    programs: int
    values: tuple[Any, ...]


class Launcher:
    """In the place of Triton's launcher of one compiled kernel: reads the tensors' addresses, as that one does, and counts."""

    count = 0
    started: list[Started] | None = None  # remembers the launches, if a list
    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False

    def __init__(self, source: Any, metadata: Any):
        self.name, self.hash = metadata.name, metadata.hash

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, seen: Any, enter: Any, leave: Any, *given: Any
    ) -> None:  # fmt: skip
        if enter is not None:
            enter(seen)
        addresses = iter([v.data_ptr() for v in given if v.__class__ is Tensor])
        Launcher.count += 1
        if self.started is not None:
            values = tuple(next(addresses) if v.__class__ is Tensor else v for v in given)
            self.started.append(Started(self.name, self.hash, stream, x, values))

    def launch(self, x: int, y: int, z: int, stream: int, function: Any, *given: Any) -> None:
        """The inner launcher of Triton 3.6, which also gets two switches and two addresses."""
        if given[:4] != (False, False, None, None):
            raise ValueError(f"{given[:4]} are not the switches and addresses of the inner launcher")
        self(x, y, z, stream, function, *given[4:])


def counting(capability: int = 90) -> Any:
    """A driver for Triton that compiles for this capability, starts nothing, and has the device and stream -1 and 0."""
    from triton.backends.compiler import GPUTarget

    limits = {"max_shared_mem": 227 * 1024, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536}
    utils = SimpleNamespace(
        load_binary=lambda name, *_: (1, 1, 64, 0, 1024),
        unload_module=lambda *_: None,
        get_device_properties=lambda device: limits,
    )
    driver = SimpleNamespace(
        utils=utils,
        launcher_cls=Launcher,
        device=-1,
        stream=0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
    )
    driver.get_current_device = lambda: driver.device
    driver.get_current_stream = lambda device=None: driver.stream
    driver.set_current_device = lambda device: setattr(driver, "device", device)
    return driver


def install(capability: int = 90) -> Any:
    """Put `counting` in the place of Triton's driver, and let the library take CPU tensors for CUDA tensors."""
    from triton.runtime.driver import driver

    from sparse_attention.kernels import triton

    counted = counting(capability)
    driver.set_active(counted)
    triton._INTERPRETED = True  # takes CPU tensors
    return counted


def begin() -> torch.device:
    """The GPU; without one, CPU tensors stand in for its tensors."""
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        return torch.device("cuda")
    import sparse_attention as sa

    install()
    sa.kernels.use("triton")
    return torch.device("cpu")


def finish() -> None:
    """Wait for the GPU, so that its queue is empty."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def cases() -> Iterator[tuple[str, Call, Call | None]]:
    """The name of each case, a call without gradients, and a call with its gradients (None: there are none)."""
    import sparse_attention as sa

    x, g = torch.randn(8, 4, 16, 80), torch.randn(8, 4, 16, 80)
    kept = torch.rand(8, 1, 1, 80) > 0.3
    for name, params in ROWS.items():
        for masked in (False, True):
            given: Any = {**params, "mask": kept} if masked else params
            mapping = getattr(sa, name)
            yield f"rows {name}{' masked' * masked}", _bound(mapping, x, **given), _both(mapping, [x], g, given)
    heads, few = (1, 4, 80, 32), (1, 4, 1, 32)
    tensors = [torch.randn(heads, dtype=torch.bfloat16) for _ in range(4)]
    grouped = [tensors[0], *(t[:, :2].contiguous() for t in tensors[1:3]), tensors[3]]
    seen = torch.rand(80, 80) > 0.3
    forms: dict[str, dict[str, Any]] = {
        "plain": {}, "causal": {"causal": True}, "lengths": {"lengths": torch.tensor([70])}, "mask": {"mask": seen},
        "groups": {"causal": True}, "alpha 1.5": {"mapping": "entmax", "alpha": 1.5}, "bias": {"bias": torch.randn(80, 80)},
        "slopes": {"causal": True, "slopes": torch.rand(4)}, "sink": {"sink": torch.rand(4)}, "window": {"window": (9, 0)},
        "packed": {"cu_seqlens": torch.tensor([0, 30, 80])}, "scale": {"scale": torch.rand(4)},
        "module": {"mapping": sa.make("entmax", alpha=1.5)},
    }  # fmt: skip
    for name, given in forms.items():
        q, k, v, g = grouped if name == "groups" else tensors
        attend = sa.sparse_attention
        yield f"attention {name}", _bound(attend, q, k, v, **given), _both(attend, [q, k, v], g, given)
    one = torch.randn(few, dtype=torch.bfloat16)
    yield "attention decode", _bound(sa.sparse_attention, one, *grouped[1:3], causal=True), None
    cache = sa.KeyCache("sparsemax").append(*grouped[1:3])
    yield "attention cache", _bound(cache.attend, one), None


def _bound(function: Any, *tensors: Any, **given: Any) -> Call:
    return lambda: function(*tensors, **given)


def _both(function: Any, leaves: list[Any], g: Any, given: dict[str, Any]) -> Call:
    """LAYERS calls, each with the result of the one before in the place of the first tensor."""
    first, *rest = [x.clone().requires_grad_() for x in leaves]

    def call() -> None:
        x = first
        for _ in range(LAYERS):
            x = function(x, *rest, **given)
        torch.autograd.grad(x, first, g)

    return call


def worker() -> None:
    """Time what the other process asks for, one line each: the number of a case, forward or both, and seconds."""
    with begin() as device:
        every = list(cases())
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for line in sys.stdin:
        i, both, seconds = json.loads(line)
        call: Any = every[i][1 + both]
        Launcher.count = 0
        call()
        each = LAYERS if both else 1
        times: list[float] = []
        launches, end = Launcher.count // each, clock() + seconds
        while not times or clock() < end:
            finish()
            start = clock()
            for _ in range(32 // each):
                call()
            times.append((clock() - start) / 32 * 1e6)
        print(json.dumps([min(times), launches]), flush=True)


def first(positions: int, dtype: str) -> None:
    """Print the seconds of a Transformer's first update; two sequences, one of them padded."""
    device = begin()
    import sparse_attention as sa

    kind = getattr(torch, dtype)
    with device:
        model = torch.nn.Transformer(512, 8, dropout=0.0, batch_first=True, dtype=kind)
        x, y = torch.randn(2, 2, positions, 512, dtype=kind)
        hidden = torch.arange(positions) >= torch.tensor([[positions], [positions - 2]])
        causal = model.generate_square_subsequent_mask(positions, dtype=kind)
    replaced = sa.nn.replace(model, "sparsemax")
    masks = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden, "tgt_mask": causal}
    finish()
    start = time.perf_counter()
    model(x, y, tgt_is_causal=True, **masks).sum().backward()
    finish()
    spent = time.perf_counter() - start
    print(f"{spent:.1f} s, {Launcher.count} launches of {replaced} attentions, {positions} positions, {dtype}")


class Checkout:
    """A process that times the library of one checkout."""

    def __init__(self, folder: Path):
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, __file__, "--worker"], env=environment, cwd=folder, **pipes)

    def time(self, *asked: Any) -> tuple[float, int]:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"the process that times {self.process.args!r} ended with {self.process.wait()}")
        microseconds, launches = json.loads(line)
        return microseconds, launches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", nargs=2, metavar=("N", "DTYPE"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first:
        return first(int(given.first[0]), given.first[1])
    if given.worker:
        return worker()
    folders = [ROOT, *([given.against.resolve()] if given.against else [])]
    if not all((folder / "sparse_attention").is_dir() for folder in folders):
        parser.error(f"--against {given.against}: there is no sparse_attention/ in this folder")
    checkouts = [Checkout(folder) for folder in folders]
    sys.path.insert(0, str(ROOT))
    named = [(name, both is not None) for name, _, both in cases()]
    ratios: dict[tuple[str, int], list[float]] = {}
    for i, (name, differentiable) in enumerate(named):
        if given.only not in name:
            continue
        shown = []
        for both in range(1 + differentiable):
            turns = [[checkout.time(i, both, given.seconds / TURNS) for checkout in checkouts] for _ in range(TURNS)]
            found = [min(each) for each in zip(*turns)]
            shown.append(" against ".join(f"{us:.0f} us ({launches})" for us, launches in found))
            if len(found) == 2:
                ratios.setdefault((name.split()[0], both), []).append(found[0][0] / found[1][0])
                shown[-1] += f" = {found[0][0] / found[1][0]:.2f}"
        print(f"{name:28} {' / '.join(shown)}", flush=True)
    if ratios:
        means = {key: math.exp(statistics.mean(map(math.log, each))) for key, each in ratios.items()}
        kinds = dict.fromkeys(kind for kind, _ in means)
        print(*(f"{kind} {'/'.join(f'{means[kind, b]:.2f}' for b in (0, 1) if (kind, b) in means)}" for kind in kinds))


if __name__ == "__main__":
    main()
