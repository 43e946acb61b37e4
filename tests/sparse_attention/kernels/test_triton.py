"""The GPU kernels without a GPU: interpreted on the CPU, and compiled ahead of time; with one, the same against native."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")
HERE = Path(__file__).parent


def test_interpreted_kernels_equal_the_oracles(root: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{root}{os.pathsep}{HERE}",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "triton_check.py")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reported = json.loads(done.stdout)
    found = reported["oracles"]
    assert {case[3] for case in found} == {"torch.float32", "torch.bfloat16", "torch.float16"}
    # Half precision is one rounding of the float32 result away, of numbers up to 1. The interpreter truncates to bfloat16.
    tolerance = {"torch.float32": 1e-6, "torch.bfloat16": 2.0**-8 + 1e-6, "torch.float16": 2.0**-12 + 1e-6}
    for op, params, n, dtype, error, same_nan, slip in found:
        assert error <= tolerance[dtype] and same_nan, (op, params, n, dtype, error)
        assert slip is None or slip < 1e-5, (op, params, n, slip)
    assert sum(case[6] is not None for case in found) >= 10, "too few gradients were compared"
    for name, dtype, mask, error, same_nan, slip in reported["masked"]:
        assert error <= tolerance[dtype] and same_nan, (name, dtype, mask, error)
        # In half precision the backward sees p rounded, and rounds once more.
        assert slip <= {"torch.float32": 1e-5}.get(dtype, 16 * tolerance[dtype]), (name, dtype, mask, slip)


MASK = {"size1": "i32", "size2": "i32", "s0": "i32", "s1": "i32", "s2": "i32", "s3": "i32"}
SIGNATURES = {
    "simplex_forward": {"x_ptr": "*{t}", "mask_ptr": "*u8", "p_ptr": "*{t}", "rows": "i32", "n": "i32", **MASK, "scale": "fp32", "r": "fp32"},
    "weighted_backward": {"g_ptr": "*{t}", "p_ptr": "*{t}", "dx_ptr": "*{t}", "n": "i32", "scale": "fp32", "exponent": "fp32"},
    "pnormmax_backward": {"g_ptr": "*{t}", "p_ptr": "*{t}", "dx_ptr": "*{t}", "n": "i32", "norm": "fp32", "gamma": "fp32"},
    "cone_backward": {
        "g_ptr": "*{t}", "p_ptr": "*{t}", "x_ptr": "*{t}", "mask_ptr": "*u8", "dx_ptr": "*{t}", "rows": "i32", "n": "i32", **MASK, "q": "fp32",
    },
    "fusedmax_forward": {
        "x_ptr": "*{t}", "mask_ptr": "*u8", "p_ptr": "*{t}", "marks_ptr": "*i8", "work_ptr": "*fp32", "rows": "i32", "n": "i32", **MASK,
        "scale": "fp32", "lam": "fp32",
    },
    "oscarmax_forward": {
        "x_ptr": "*{t}", "mask_ptr": "*u8", "p_ptr": "*{t}", "marks_ptr": "*i8", "order_ptr": "*i16", "work_ptr": "*fp64", "starts_ptr": "*i32",
        "rows": "i32", "n": "i32", **MASK, "scale": "fp32", "lam": "fp32",
    },
    "grouped_backward": {
        "g_ptr": "*{t}", "marks_ptr": "*i8", "order_ptr": "*i16", "dx_ptr": "*{t}", "work_ptr": "*fp64", "n": "i32", "scale": "fp32",
    },
}  # fmt: skip
COMPILED = [
    *[("simplex_forward", {"RULE": rule, "MASKED": rule % 2 == 0, "BLOCK": 64}, "bf16") for rule in range(7)],
    *[("simplex_forward", {"RULE": 0, "MASKED": True, "BLOCK": 128}, t) for t in ("fp32", "fp16")],
    ("weighted_backward", {"BLOCK": 64}, "bf16"),
    ("pnormmax_backward", {"BLOCK": 64}, "fp16"),
    ("cone_backward", {"MIRRORED": True, "MASKED": True, "BLOCK": 64}, "bf16"),
    ("fusedmax_forward", {"MASKED": True, "ROWS": 1, "BLOCK": 64}, "bf16"),
    ("fusedmax_forward", {"MASKED": False, "ROWS": 16, "BLOCK": 64}, "fp32"),
    ("oscarmax_forward", {"MASKED": True, "CHUNK": 16, "BLOCK": 64}, "fp16"),
    ("grouped_backward", {"ORDERED": True, "BLOCK": 64}, "bf16"),
    ("grouped_backward", {"ORDERED": False, "BLOCK": 64}, "fp32"),
]
# The first takes about a second of a core, the second a tenth; the rest are left to the slow tests.
SMALL = [COMPILED[0], ("weighted_backward", {"BLOCK": 64}, "bf16")]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("cases", [SMALL, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["small", "all"])
def test_kernels_compile_ahead_of_time(cases: list, capability: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sparse_attention.kernels.triton import simplex, structured

    target = GPUTarget("cuda", capability, 32)
    for name, constants, element in cases:
        kernel = getattr(simplex if hasattr(simplex, name) else structured, name)
        signature = {argument: kind.format(t=element) for argument, kind in SIGNATURES[name].items()}
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=target)
        assert f".target sm_{capability}" in compiled.asm["ptx"], name
        assert len(compiled.asm["cubin"]) > 1000, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: these kernels have never been run on one")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 30, 128, 1000, 4096])
def test_kernels_on_a_gpu_equal_the_reference(dtype: torch.dtype, n: int) -> None:
    from sparse_attention.kernels import reference
    from sparse_attention.kernels import triton as kernels

    torch.manual_seed(0)
    x = torch.randn(70, n, dtype=dtype, device="cuda")
    x[3] = -torch.inf
    if n > 2:
        x[5, 1] = -torch.inf
        x[6, 0] = torch.nan
    g = torch.randn_like(x)
    tolerance = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}[dtype]
    for name, op in kernels.OPS.items():
        params = {
            "sparsemax": {"gamma": 0.7}, "entmax": {"alpha": 1.3}, "pnormmax": {"p": 1.5, "gamma": 0.7},
            "fusedmax": {"lam": 0.1, "gamma": 0.7}, "oscarmax": {"lam": 0.01, "gamma": 0.7}, "softmax": {"gamma": 0.7},
        }.get(name)  # fmt: skip
        if params is None or not kernels.available(name, x):
            continue
        p, saved = op.forward(x, **params)
        q, kept = reference.OPS[name].forward(x.double(), **params)
        torch.testing.assert_close(p.double(), q, rtol=0, atol=tolerance, equal_nan=True)
        if dtype is torch.float32:
            dx = op.backward(g, p, saved, **params)
            torch.testing.assert_close(
                dx.double(),
                reference.OPS[name].backward(g.double(), q, kept, **params),
                rtol=1e-3,
                atol=1e-4,
                equal_nan=True,
            )


# Mapping, its parameters, the kernels of its forward and backward.
LAUNCHES = [
    ("softmax", {}, "simplex_forward", "weighted_backward"),
    ("sparsemax", {}, "simplex_forward", "weighted_backward"),
    ("entmax", {}, "simplex_forward", "weighted_backward"),
    ("pnormmax", {}, "simplex_forward", "pnormmax_backward"),
    ("sparsegen_lin", {"lam": 0.3}, "simplex_forward", "weighted_backward"),
    ("sparsehourglass", {}, "simplex_forward", "cone_backward"),
    ("fusedmax", {}, "fusedmax_forward", "grouped_backward"),
    ("oscarmax", {}, "oscarmax_forward", "grouped_backward"),
]
# What torch does without the device: views, and memory from its own store.
FREE = (
    "empty", "empty_like", "empty_strided", "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "expand_as", "as_strided", "detach",
    "alias", "select", "slice", "transpose", "unsqueeze", "squeeze", "movedim", "permute", "contiguous", "to",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name, params, forward, backward", LAUNCHES, ids=[case[0] for case in LAUNCHES])
def test_a_mapping_is_one_launch_forward_and_one_backward(name, params, forward, backward, dtype, monkeypatch) -> None:
    from torch.profiler import ProfilerActivity, profile

    import sparse_attention as sa
    from sparse_attention.kernels import triton as kernels

    started: list[str] = []
    monkeypatch.setattr(kernels, "_INTERPRETED", True)  # takes CPU tensors; nothing is computed here
    monkeypatch.setattr(kernels, "launch", lambda kernel, *rest, **constants: started.append(kernel.fn.__name__))
    scores = torch.zeros(4, 2, 3, 25, dtype=dtype, requires_grad=True)
    mask, g = torch.ones(4, 1, 1, 25, dtype=torch.bool), torch.zeros(4, 2, 3, 25, dtype=dtype)
    with sa.kernels.use("triton"), profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.autograd.backward(getattr(sa, name)(scores, mask=mask, **params), g)
    operations = [e.name.removeprefix("aten::") for e in seen.events() if e.name.startswith("aten::")]
    assert started == [forward, backward]
    assert [o for o in operations if o not in FREE] == []


def test_enough_programs_for_a_decoder_step_and_not_too_many_for_a_batch(monkeypatch) -> None:
    from sparse_attention.kernels import triton as kernels

    started: list[tuple[int, int]] = []
    monkeypatch.setattr(kernels, "launch", lambda kernel, programs, *rest, **c: started.append((programs, c["ROWS"])))
    for rows in (64, 2048, 32768, 500_000):
        kernels.OPS["fusedmax"].forward(torch.zeros(rows, 1), lam=0.1, gamma=1.0)
    assert started == [(64, 1), (2048, 1), (2048, 16), (15625, 32)]
