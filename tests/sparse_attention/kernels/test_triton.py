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
    found = json.loads(done.stdout)
    assert {case[3] for case in found} == {"torch.float32", "torch.bfloat16", "torch.float16"}
    # Half precision is one rounding of the float32 result away, of numbers up to 1. The interpreter truncates to bfloat16.
    tolerance = {"torch.float32": 1e-6, "torch.bfloat16": 2.0**-8 + 1e-6, "torch.float16": 2.0**-12 + 1e-6}
    for op, params, n, dtype, error, same_nan, slip in found:
        assert error <= tolerance[dtype] and same_nan, (op, params, n, dtype, error)
        assert slip is None or slip < 1e-5, (op, params, n, slip)
    assert sum(case[6] is not None for case in found) >= 10, "too few gradients were compared"


SIGNATURES = {
    "simplex_forward": {"x_ptr": "*{t}", "p_ptr": "*{t}", "n": "i32", "scale": "fp32", "r": "fp32"},
    "weighted_backward": {"g_ptr": "*{t}", "p_ptr": "*{t}", "dx_ptr": "*{t}", "n": "i32", "scale": "fp32", "exponent": "fp32"},
    "pnormmax_backward": {"g_ptr": "*{t}", "p_ptr": "*{t}", "dx_ptr": "*{t}", "n": "i32", "norm": "fp32", "gamma": "fp32"},
    "total_variation": {"z_ptr": "*fp32", "y_ptr": "*fp32", "length_ptr": "*i32", "rows": "i32", "n": "i32", "lam": "fp32"},
    "pool_adjacent_violators": {
        "s_ptr": "*fp32", "y_ptr": "*fp32", "id_ptr": "*i32", "sum_ptr": "*fp64", "size_ptr": "*i32", "length_ptr": "*i32",
        "rows": "i32", "n": "i32", "lam": "fp32",
    },
}  # fmt: skip
COMPILED = [
    *[("simplex_forward", {"RULE": rule, "BLOCK": 128}, t) for rule in range(4) for t in ("fp32", "fp16", "bf16")],
    *[(name, {"BLOCK": 128}, t) for name in ("weighted_backward", "pnormmax_backward") for t in ("fp32", "bf16")],
    ("total_variation", {"ROWS": 32}, "fp32"),
    ("pool_adjacent_violators", {"ROWS": 32}, "fp32"),
]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_ahead_of_time(capability: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sparse_attention.kernels.triton import simplex, structured

    target = GPUTarget("cuda", capability, 32)
    for name, constants, element in COMPILED:
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
            "fusedmax": {"lam": 0.1, "gamma": 0.7}, "oscarmax": {"lam": 0.01, "gamma": 0.7},
        }[name]  # fmt: skip
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
