"""Compile the Triton kernels for GPUs that are not there, as the launchers would, and read what the binaries need.

`python tests/sparse_attention/kernels/ahead_of_time.py attention 90` prints what each kernel needs, with the installed Triton.
"""

import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor

from sparse_attention.kernels import triton as rows
from sparse_attention.kernels.triton import attention, kinds

SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program can have
STACK = 512  # bytes of a thread: more are registers spilled to memory
FLOATS = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
INTEGERS = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
TYPES = FLOATS | INTEGERS
OPTIONS = ("num_warps", "num_stages", "maxnreg")


@dataclass(frozen=True)
class Case:
    """A kernel with the arguments of one launch. Tensors count by their type, whole numbers as Triton specialises them."""

    label: str
    kernel: Any = field(compare=False)
    arguments: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__


def _seen(x: Any, specialised: bool) -> Any:
    """What Triton's compiler knows of an argument: its type, the value of a 1, and whether 16 divides it."""
    if isinstance(x, Tensor):
        return f"*{TYPES[x.dtype]}", None, True
    if isinstance(x, float):
        return "fp32", None, False
    return "i32", 1 if specialised and x == 1 else None, specialised and x % 16 == 0


def launches(label: str, call: Any) -> list[Case]:
    """The kernels that `call` starts, none of which runs."""
    found: list[Case] = []

    def record(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        ours = [p for p in kernel.params if not p.is_constexpr]
        arguments += tuple(constants.pop(p.name) for p in ours[len(arguments) :])
        known = tuple(_seen(x, not p.do_not_specialize) for x, p in zip(arguments, ours, strict=True))
        found.append(Case(label, kernel, known, tuple(constants.items())))

    rows.launcher.instead = record
    try:
        call()
    finally:
        rows.launcher.instead = None
    return found


def row(op: str, n: int, dtype: torch.dtype, many: int = 1, masked: bool = True, **params: float) -> None:
    """A mapping and its gradient of ``many`` rows."""
    x = torch.empty(many, n, dtype=dtype)
    mask = torch.ones(many, n, dtype=torch.bool) if masked else None
    p, saved = rows.OPS[op].forward(x, rows.form(mask, dtype, x.shape), **params)
    rows.OPS[op].backward(x, p, saved, rows.PLAIN, **params)


def attend(d: int, dtype: torch.dtype, alpha: float = 2.0, n: int = 256, **given: Any) -> None:
    """Attention of two heads with the same keys, and its gradient."""
    q, k = (torch.empty(h, n, d, dtype=dtype) for h in (2, 1))
    _, saved = attention.forward(q, k, k, alpha=alpha, scale=0.1, lead=(2,), **given)
    attention.gradients(q, q, k, k, saved, given.get("bias"))


def listed(label: str, call: Any) -> Iterator[Case]:
    """The kernels of `launches` without those of the gradient."""
    yield from (x for x in launches(f"{label}, lists", call) if not x.name.endswith("backward"))


MAPPINGS = [(name, {"gamma": 1.0}) for name in ("softmax", "sparsemax")]
MAPPINGS += [("entmax", {"alpha": 1.5}), ("entmax", {"alpha": 1.3}), ("pnormmax", {"p": 1.5, "gamma": 1.0})]
MAPPINGS += [("sparsecone", {"q": 3.0}), ("sparsehourglass", {"q": 0.5})]
MAPPINGS += [(name, {"lam": 0.1, "gamma": 1.0}) for name in ("fusedmax", "oscarmax")]
WIDTHS = (32, 64, 80, 96, 128, 256)


def row_cases(lengths: tuple[int, ...] | None = None) -> Iterator[Case]:
    """All mappings at every length of a block that the launchers choose, and in every type at one of them."""
    for op, params in MAPPINGS:
        longest = rows._LONGEST_GROUPED if op in rows._GROUPED else rows._LONGEST
        every = [1 << i for i in range(4, longest.bit_length())]
        for n in every if lengths is None else lengths:
            yield from launches(f"{op} {n}", partial(row, op, n, torch.float32, **params))
        for dtype in (torch.float16, torch.bfloat16):
            yield from launches(f"{op} {TYPES[dtype]}", partial(row, op, 64, dtype, masked=False, **params))


def attention_cases(capability: int = 90) -> Iterator[Case]:
    """Every width in every type; in the middle one, all mappings and forms."""
    rows.capability.cache_clear()
    rows._ELSEWHERE = divmod(capability, 10)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for d in WIDTHS:
            yield from launches(f"{TYPES[dtype]} d={d}", partial(attend, d, dtype, causal=True))
    for dtype, d, n in itertools.product((torch.bfloat16, torch.float32), (32, 64, 80, 128), (32, 64, 128)):
        yield from launches(f"{TYPES[dtype]} d={d} n={n}", partial(attend, d, dtype, n=n, causal=True))
    for alpha, n in itertools.product((1.5, 1.3), (64, 128)):
        mask = torch.ones(n, n, dtype=torch.bool)
        yield from launches(f"bf16 d=64 n={n} {alpha}", partial(attend, 64, torch.bfloat16, alpha, n, mask=mask))
    spans, lengths = torch.zeros(1, 256, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    learned = {"scales": torch.empty(2, 256), "slopes": torch.empty(2), "sinks": torch.empty(2)}
    for dtype, d in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 128)):
        each = {"alphas": torch.tensor([1.2, 1.7]), "bias": torch.empty(256), "mask": spans[0, :, :1] == 0}
        forms: dict[str, dict[str, Any]] = {
            "1.5": {"alpha": 1.5},
            "1.3": {"alpha": 1.3},
            "spans": {"spans": spans, "lengths": lengths, "sinks": torch.empty(2)},
            "learned": {"alpha": 1.5, "causal": True, **learned},
            "bias": {"alpha": 1.5, "bias": torch.empty(2, 256, 256, dtype=dtype), "causal": True},
            "each": {"alpha": 0.0, **each},
        }
        for name, given in forms.items():
            yield from launches(f"{TYPES[dtype]} d={d} {name}", partial(attend, d, dtype, **given))
    with patch.multiple(kinds, LISTED=True, LONG=1):
        for d in WIDTHS:
            yield from listed(f"bf16 d={d}", partial(attend, d, torch.bfloat16, causal=True))
        for name, given in forms.items():
            yield from listed(f"bf16 d=64 {name}", partial(attend, 64, torch.bfloat16, **given))
    for dtype in (torch.bfloat16, torch.float32):
        for d, size in ((64, 1), (80, kinds._DECODED[dtype]), (256, kinds._DECODED[dtype])):
            q, k = torch.empty(2 * size, 1, d, dtype=dtype), torch.empty(2, 256, d, dtype=dtype)
            forms = {} if d == 64 else {name: x[:, :1] if x.ndim > 1 else x for name, x in learned.items()}
            forms = {name: x.repeat_interleave(size, 0) for name, x in forms.items()}
            call = partial(attention.forward, q, k, k, alpha=1.5, scale=0.1, save=False, **forms)
            yield from launches(f"{TYPES[dtype]} d={d} decoding, {size} heads a group", call)


def binary(case: Case, capability: int) -> dict[str, Any]:
    """Compile; returns registers, bytes of stack a thread, bytes of shared memory a program, seconds, asynchronous copies."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {k: v for k, v in case.constants if k not in OPTIONS}
    names = [p.name for p in case.kernel.params if not p.is_constexpr]
    signature = {n: kind for n, (kind, one, _) in zip(names, case.arguments) if one is None}
    ones = {n: one for n, (_, one, _) in zip(names, case.arguments) if one is not None}
    order = [p.name for p in case.kernel.params]
    signature |= dict.fromkeys([*ones, *constants], "constexpr")
    attrs = {(order.index(n),): [["tt.divisibility", 16]] for n, (_, _, by16) in zip(names, case.arguments) if by16}
    known = {(order.index(n),): v for n, v in (constants | ones).items()}
    source = ASTSource(case.kernel, {n: signature[n] for n in order}, constexprs=known, attrs=attrs)
    started = time.monotonic()
    options = {k: v for k, v in case.constants if k in OPTIONS}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    seconds = time.monotonic() - started
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
    registers, stack = (int(re.search(rf"{word}:(\d+)", said)[1]) for word in ("REG", "STACK"))
    return {
        "label": case.label,
        "name": case.name,
        "registers": registers,
        "stack": stack,
        "shared": compiled.metadata.shared,
        "seconds": seconds,
        "warps": dict(case.constants)["num_warps"],
        "copies": compiled.asm["ptx"].count("cp.async.c"),
        "target": compiled.asm["ptx"].count(f".target sm_{capability}"),
    }


def main(of: str, capability: int, only: str = "") -> None:
    print(f"Triton {triton.__version__}, sm_{capability}\n")
    columns = ["kernel", "case", "warps", "registers", "stack", "shared", "copies", "seconds"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for case in attention_cases(capability) if of == "attention" else row_cases():
        if only in f"{case.name} {case.label}":
            at = binary(case, capability)
            cells = [str(at[k]) for k in ("name", "label", "warps", "registers", "stack", "shared", "copies")]
            print(f"| {' | '.join(cells)} | {at['seconds']:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
