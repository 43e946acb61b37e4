"""The GPU kernels without a GPU: interpreted on the CPU by the tests of tests/gpu, and compiled ahead of time."""

import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
import ahead_of_time

from sparse_attention.kernels.triton import kinds

FEW = "(rows and float32 and (sparsemax or sparsecone)) or ties or two_tensors or (form and sink and lengths and not bias)"
FEW += " or (lists and (causal or cu_seqlens or equal or spoilt))"
WAYS = [("1", FEW, r"\n\d+ passed, \d+ deselected")]
WAYS += [pytest.param("0", "", r"\n\d+ skipped in", marks=pytest.mark.slow)]
WAYS += [pytest.param("1", "", r"\n\d+ passed, \d+ skipped", marks=pytest.mark.slow)]


@pytest.mark.parametrize("interpret, only, outcome", WAYS, ids=["few", "skipped", "all"])
def test_the_tests_of_a_gpu_without_one(interpret: str, only: str, outcome: str, root: Path) -> None:
    """In the interpreter they pass, except that it times nothing and trains with the native kernels; else they are skipped."""
    environment = os.environ | {"TRITON_INTERPRET": interpret, "CUDA_VISIBLE_DEVICES": ""}
    command = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu", "-k"]
    given = {"capture_output": True, "text": True, "cwd": root, "env": environment, "timeout": 900}
    done = subprocess.run([sys.executable, *command, only], **given)
    assert done.returncode == 0 and re.search(outcome, done.stdout), done.stdout[-4000:]
    assert interpret == "1" or "no GPU here" in done.stdout


# The first two take about a second of a core together; the rest are left to the slow tests.
SMALL = ("weighted_backward softmax 16", "attend_queries_backward bf16 d=32")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("only", [SMALL, pytest.param(None, marks=pytest.mark.slow)], ids=["small", "all"])
def test_kernels_compile_ahead_of_time(only: tuple[str, ...] | None, capability: int) -> None:
    """All that the launchers can choose, without spilling registers, within the memory of a multiprocessor."""
    cases = [*ahead_of_time.attention_cases(capability), *ahead_of_time.row_cases()]
    tried = [case for case in cases if only is None or f"{case.name} {case.label}" in only]
    assert len(tried) == (len(only) if only else len(cases))
    for case in tried:
        at = ahead_of_time.binary(case, capability)
        assert at["target"] and at["shared"] <= ahead_of_time.SHARED[capability], at
        assert at["registers"] > 32 or not at["name"].startswith("attend"), at
        assert at["stack"] <= ahead_of_time.STACK, at


@pytest.mark.parametrize("op, params", ahead_of_time.MAPPINGS, ids=[op for op, _ in ahead_of_time.MAPPINGS])
def test_rows_of_all_lengths_share_few_kernels(op: str, params: dict[str, float]) -> None:
    """One for each power of two, and for lengths that 16 divides and others."""
    seen = {
        case
        for n in range(5, 101)
        for case in ahead_of_time.launches("", partial(ahead_of_time.row, op, n, torch.float32, n, **params))
    }
    assert max(Counter(case.name for case in seen).values()) <= 8


def test_attention_compiles_once_for_all_lengths_and_alphas() -> None:
    """For sparsemax and for any alpha; short sequences for 32, 64 and 128 keys."""
    given = [(n, 2.0) for n in range(5, 225)]
    given += [(n, 1.2 + 0.01 * i) for i in range(30) for n in (20, 60, 100, 192)]
    seen = {
        case
        for n, alpha in given
        for case in ahead_of_time.launches("", partial(ahead_of_time.attend, 64, torch.bfloat16, alpha, n))
    }
    kernels = {f"attend_{kernel}": 2 for kernel in ("forward", "queries_backward", "keys_backward")}
    assert Counter(case.name for case in seen) == kernels | {"short_forward": 2 * 3, "short_backward": 2 * 3}


@pytest.mark.parametrize("d, e, channels", [(5, 3, 16), (16, 17, 32), (40, 36, 64), (80, 64, 128)])
def test_all_blocks_of_a_kernel_have_the_same_channels(d: int, e: int, channels: int) -> None:
    """Others gave wrong values in float32 on an H200."""
    for backward in (False, True):
        for starter in kinds._of_kind("ENTMAX15", False, 0, 0, (64, 64), d, e, torch.float32, True, backward, False):
            assert starter.constants["WIDE"] == channels


def test_kernels_start_on_the_device_of_their_tensors(monkeypatch) -> None:
    from torch._subclasses import FakeTensorMode

    from sparse_attention.kernels import triton as kernels

    entered: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
    with FakeTensorMode():
        x = torch.empty(3, device="cuda:1")
    kernel = {(2,): lambda *given, **constants: entered.append((given, constants))}
    kernels.starter(kernel, BLOCK=16).go(2, x, 5)
    assert entered[0] == 1 and entered[1][0][1] == 5 and entered[1][1] == {"BLOCK": 16}


OPERATIONS: dict[str, Any] = {
    "mov.b32": lambda a: a,
    "add.u32": lambda a, b: int(a) + int(b),
    "mad.wide.u32": lambda a, b, c: a * int(b) + c,
    "setp.lt.and.u32": lambda a, b, c: a < b and c,
}


def by_steps(text: str, lanes: list[dict[str, Any]]) -> dict[int, float]:
    """Run the PTX of a warp whose lanes stay together; each lane has its registers. Returns what it stores, by address."""
    program, labels, memory, at = [], {}, {}, 0
    for part in re.sub(r"\.reg [^;]*;", "", text.strip("{ }")).split(";"):
        for label in re.findall(r"(\w+):", part):
            labels[label] = len(program)
        program += [x for x in [part.rpartition(":")[2].strip()] if x]
    while at < len(program):
        guard, op, rest = re.fullmatch(r"(@!?\w+ )?(\S+) (.*)", program[at]).groups()
        to, *of = rest.split(", ")
        at += 1
        voted = op.startswith("vote.sync.any") and any(lane[of[0]] for lane in lanes)
        on = [lane for lane in lanes if not guard or lane[guard.strip("@! ")] != ("!" in guard)]
        if op == "bra.uni":
            assert len(on) in (0, len(lanes))
            at = labels[to] if on else at
            continue
        for lane in on:
            x = [lane.get(name, name) for name in of]
            if op.startswith("setp.gtu"):
                lane[to] = not x[0] <= x[1] or (".or." in op and x[2])
            elif op.startswith("st.global"):
                place = eval(to.strip("[]"), {}, lane)
                assert place not in memory
                memory[place] = x[0]
            else:
                lane[to] = voted if op.startswith("vote") else OPERATIONS[op](*x)
    return memory


def test_the_machine_instructions_of_lists_do_what_the_interpreter_does() -> None:
    """The interpreter cannot run them; see `list_kernels.appended`."""
    from sparse_attention.kernels.triton.list_kernels import APPEND

    draw = random.Random(0)
    for rate in [0.0, 0.01, 0.1, 0.5, 1.0] * 10:
        lanes, expected, counts = [], {}, []
        for lane in range(32):
            scores = [1.5 if draw.random() < rate else draw.choice([1.0, 0.5, -math.inf]) for _ in range(8)]
            scores[3] = draw.choice([scores[3], math.nan]) if rate else scores[3]
            first, count, room = draw.randrange(1000), draw.randrange(12), draw.randrange(10)
            registers = [None, *scores, 1.0, count, 10_000 * lane, first, room]
            for key, x in zip((0, 1, 8, 9, 16, 17, 24, 25), scores):
                if not x <= 1.0:
                    at = 10_000 * lane + 32 * count
                    expected |= {at: x, at + 16: first + key} if count < room else {}
                    count += 1
            lanes.append({f"${i}": x for i, x in enumerate(registers)})
            counts.append(count)
        assert str(dict(sorted(by_steps(APPEND.value, lanes).items()))) == str(expected)
        assert [lane["$0"] for lane in lanes] == counts


# The names of the kernels that they launch are in tests/gpu/test_gpu_rows.py.
ROWS = ("softmax", "sparsemax", "entmax", "pnormmax", "sparsegen_lin", "sparsehourglass", "fusedmax", "oscarmax")
# What torch does without the device: views, and memory from its own store.
FREE = {
    *("empty", "empty_like", "empty_strided", "view", "_unsafe_view", "reshape", "_reshape_alias"),
    *("expand", "expand_as", "as_strided", "detach", "alias", "select", "slice", "transpose", "unsqueeze"),
    *("squeeze", "movedim", "permute", "contiguous", "to"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROWS)
def test_a_mapping_is_one_launch_forward_and_one_backward(name, dtype, monkeypatch) -> None:
    from torch.profiler import ProfilerActivity, profile

    import sparse_attention as sa
    from sparse_attention.kernels import triton as kernels

    started: list[str] = []
    monkeypatch.setattr(kernels, "_INTERPRETED", True)  # takes CPU tensors; nothing is computed here
    monkeypatch.setattr(
        kernels.launcher, "instead", lambda kernel, *rest, **constants: started.append(kernel.fn.__name__)
    )
    scores = torch.zeros(4, 2, 3, 25, dtype=dtype, requires_grad=True)
    mask, g = torch.ones(4, 1, 1, 25, dtype=torch.bool), torch.zeros(4, 2, 3, 25, dtype=dtype)
    with sa.kernels.use("triton"), profile(activities=[ProfilerActivity.CPU]) as seen:
        p = getattr(sa, name)(scores, mask=mask, **({"lam": 0.3} if name == "sparsegen_lin" else {}))
        torch.autograd.backward(p, g)
    operations = [e.name.removeprefix("aten::") for e in seen.events() if e.name.startswith("aten::")]
    assert [kernel.endswith("_backward") for kernel in started] == [False, True]
    assert [o for o in operations if o not in FREE] == []


def test_short_rows_share_a_program(monkeypatch) -> None:
    """Up to 16 of them, and a warp has at most 1,024 entries (fusedmax: 4 rows, one warp); the last may have fewer rows."""
    from sparse_attention.kernels import triton as kernels

    started: list[tuple[int, ...]] = []

    def launch(kernel: Any, programs: int, *rest: Any, **c: Any) -> None:
        started.append((programs, c["ROWS"], c["BLOCK"], c["num_warps"]))

    monkeypatch.setattr(kernels.launcher, "instead", launch)
    for op, params in (("sparsemax", {"gamma": 1.0}), ("fusedmax", {"lam": 0.1, "gamma": 1.0})):
        for rows, n in ((33, 9), (33, 50), (2, 1000), (2, 4096)):
            kernels.OPS[op].forward(torch.zeros(rows, n), **params)
    assert started[:4] == [(3, 16, 16, 1), (3, 16, 64, 1), (2, 1, 1024, 1), (2, 1, 4096, 4)]
    assert started[4:] == [(9, 4, 16, 1), (9, 4, 64, 1), (2, 1, 1024, 1), (2, 1, 1024, 1)]
