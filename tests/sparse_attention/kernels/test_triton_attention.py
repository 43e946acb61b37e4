"""Fused attention for the GPU, without one: interpreted on the CPU, and compiled ahead of time."""

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


def test_interpreted_attention_equals_the_composition(root: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_attention_check.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    reported = json.loads(done.stdout)
    # The last digits of tied scores depend on the processor (3.8e-6 measured). Half precision rounds weights and their gradients to its digits, and the interpreter truncates to bfloat16.
    tolerance = {"torch.float32": 5e-6, "torch.float16": 2.0**-9, "torch.bfloat16": 2.0**-6}
    for name, dtype, errors, same, _ in reported["kernels"]:
        # the gradient of alpha is multiplied by 1 / (alpha - 1)^2, 100 at 1.1 (4.5e-6 measured)
        limit = 4 * tolerance[dtype] if name.startswith("alpha") else tolerance[dtype]
        assert max(errors) <= limit and same, (name, dtype, errors, same)
    assert max(case[-1] for case in reported["kernels"]) > 0.3, "no blocks were skipped"
    assert reported["no keys"]
    *refused, taken = reported["refused"]
    for why, word in zip(
        refused, ("129 and 129 channels", "alpha is 1.05", "torch.float64", "torch.float16"), strict=True
    ):
        assert word in why
    assert taken is None
    assert reported["range"] == ["composition", "alpha ranges from 1.05 to 2; fused are 1.1 to 2"]
    for mapping, path, other, error in reported["public"]:
        assert (path, other) == ("fused", "composition") and error < 3e-6, (mapping, path, other, error)


T, F, I, BYTES = "*{t}", "*fp32", "i32", "*i8"
SIZES = dict.fromkeys(("n", "m", "d", "e", "repeat"), I)
SIZES |= dict.fromkeys(("per_head", "row", "key"), I)
VISIBLE = {"lengths_ptr": "*i64", "spans_ptr": "*i64", "bias_ptr": F, "at_ptr": "*i64", "r_ptr": F}
SAVED = {"top_ptr": F, "tau_ptr": F, "flags_ptr": BYTES}
GIVEN = {"g_ptr": T, "q_ptr": T, "k_ptr": T, "v_ptr": T, **VISIBLE, **SAVED, "mean_ptr": F}
SIGNATURES = {
    "attend_forward": {
        "q_ptr": T, "k_ptr": T, "v_ptr": T, **VISIBLE, "out_ptr": T, **SAVED, **SIZES, "factor": "fp32",
    },
    "attend_queries_backward": {**GIVEN, "dq_ptr": T, "dbias_ptr": F, "dalpha_ptr": F, **SIZES, "factor": "fp32", "scale": "fp32"},
    "attend_keys_backward": {**GIVEN, "dk_ptr": T, "dv_ptr": T, **SIZES, "factor": "fp32", "scale": "fp32"},
}  # fmt: skip
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program can have
COMPILED = [
    (name, *case)
    for name in SIGNATURES
    for case in (("bf16", 1.0, 64, 0), ("fp32", 2.0, 128, 0), ("fp16", 1 / 0.3, 128, 0), ("bf16", 1.0, 64, 1), ("fp32", 2.0, 128, 2), ("bf16", 0.0, 64, 2))
]  # fmt: skip


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("cases", [COMPILED[:1], pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["small", "all"])
def test_attention_compiles_ahead_of_time(cases: list, capability: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sparse_attention.kernels.triton import attention_kernels

    for (
        name,
        element,
        r,
        width,
        forms,
    ) in cases:  # r: 0 if each head has its own; forms: none, spans with a sink and a bias, the same with its gradient
        seen = {"SPANS": forms > 0, "PINNED": forms > 0, "BIAS": forms}
        constants = {
            "R": r,
            "CAUSAL": True,
            "LENGTHS": True,
            **seen,
            "ROWS": 64,
            "KEYS": 64,
            "WIDTH": width,
            "VALUES": width,
        }
        signature = {argument: kind.format(t=element) for argument, kind in SIGNATURES[name].items()}
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=getattr(attention_kernels, name), signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert f".target sm_{capability}" in compiled.asm["ptx"], name
        assert len(compiled.asm["cubin"]) > 1000, name
        assert compiled.metadata.shared <= SHARED[capability], (name, element, compiled.metadata.shared)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: these kernels have never been run on one")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_attention_on_a_gpu_equals_the_composition(dtype: torch.dtype, alpha: float) -> None:
    from benchmarks import attention_proof

    (row,) = attention_proof.compare("cuda", ((4, 2, 300, 500, 64, True),), (alpha,), (dtype,))
    assert row["agrees"], row
