"""The GPU kernels without a GPU: interpreted on the CPU by the tests of tests/gpu, and compiled ahead of time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")


FEW = "(rows and float32 and (sparsemax or cone)) or ties or (forms and empty)"


@pytest.mark.parametrize(
    "interpret, only, outcome",
    [
        ("1", FEW, r"\n\d passed, \d+ deselected"),
        pytest.param("0", "", r"\n\d+ skipped in", marks=pytest.mark.slow),
        pytest.param("1", "", r"\n(8|9)\d passed, 4 skipped", marks=pytest.mark.slow),
    ],
    ids=["few", "skipped", "all"],
)  # fmt: skip
def test_the_tests_of_a_gpu_without_one(interpret: str, only: str, outcome: str, root: Path) -> None:
    """In the interpreter they pass, except that it times nothing and trains with the native kernels; else they are skipped."""
    environment = os.environ | {"TRITON_INTERPRET": interpret, "CUDA_VISIBLE_DEVICES": ""}
    command = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu", "-k"]
    done = subprocess.run(
        [sys.executable, *command, only], capture_output=True, text=True, cwd=root, env=environment, timeout=900
    )
    assert done.returncode == 0 and re.search(outcome, done.stdout), done.stdout[-4000:]
    assert interpret == "1" or "no GPU here" in done.stdout


MASK = {"size1": "i32", "size2": "i32", "s0": "i32", "s1": "i32", "s2": "i32", "s3": "i32"}
T, F, I, BYTES = "*{t}", "*fp32", "i32", "*i8"
SIZES = dict.fromkeys(("n", "m", "d", "e", "repeat"), I)
SIZES |= dict.fromkeys(("per_head", "row", "key"), I)
VISIBLE = {"lengths_ptr": "*i64", "spans_ptr": "*i64", "bias_ptr": F, "at_ptr": "*i64", "r_ptr": F}
SAVED = {"top_ptr": F, "tau_ptr": F, "flags_ptr": BYTES}
GIVEN = {"g_ptr": T, "q_ptr": T, "k_ptr": T, "v_ptr": T, **VISIBLE, **SAVED, "mean_ptr": F}
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
    "attend_forward": {
        "q_ptr": T, "k_ptr": T, "v_ptr": T, **VISIBLE, "out_ptr": T, **SAVED, **SIZES, "factor": "fp32",
    },
    "attend_queries_backward": {**GIVEN, "dq_ptr": T, "dbias_ptr": F, "dalpha_ptr": F, **SIZES, "factor": "fp32", "scale": "fp32"},
    "attend_keys_backward": {**GIVEN, "dk_ptr": T, "dv_ptr": T, **SIZES, "factor": "fp32", "scale": "fp32"},
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
# Element, 1 / (alpha - 1) or 0 if each head has its own, channels, and forms: none, spans with a sink and a bias, the same with its gradient.
ATTENTION = (
    ("bf16", 1.0, 64, 0), ("fp32", 2.0, 128, 0), ("fp16", 1 / 0.3, 128, 0), ("bf16", 1.0, 64, 1), ("fp32", 2.0, 128, 2), ("bf16", 0.0, 64, 2),
)  # fmt: skip
for name in list(SIGNATURES)[-3:]:
    for element, r, width, form in ATTENTION:
        seen = {"CAUSAL": True, "LENGTHS": True, "SPANS": form > 0, "PINNED": form > 0, "BIAS": form}
        COMPILED.append((name, {"R": r, **seen, "ROWS": 64, "KEYS": 64, "WIDTH": width, "VALUES": width}, element))
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program can have
# The first takes about a second of a core, the second a tenth; the rest are left to the slow tests.
SMALL = [
    COMPILED[0],
    ("weighted_backward", {"BLOCK": 64}, "bf16"),
    next(c for c in COMPILED if c[0] == "attend_forward"),
]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("cases", [SMALL, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["small", "all"])
def test_kernels_compile_ahead_of_time(cases: list, capability: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sparse_attention.kernels.triton import attention_kernels, simplex, structured

    kernels = vars(attention_kernels) | vars(structured) | vars(simplex)
    for name, constants, element in cases:
        signature = {argument: kind.format(t=element) for argument, kind in SIGNATURES[name].items()}
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=kernels[name], signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert f".target sm_{capability}" in compiled.asm["ptx"], name
        assert len(compiled.asm["cubin"]) > 1000, name
        assert compiled.metadata.shared <= SHARED[capability], (name, element, compiled.metadata.shared)


# The names of the kernels that they launch are in tests/gpu/test_gpu_rows.py.
ROWS = ("softmax", "sparsemax", "entmax", "pnormmax", "sparsegen_lin", "sparsehourglass", "fusedmax", "oscarmax")
# What torch does without the device: views, and memory from its own store.
FREE = (
    "empty", "empty_like", "empty_strided", "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "expand_as", "as_strided", "detach",
    "alias", "select", "slice", "transpose", "unsqueeze", "squeeze", "movedim", "permute", "contiguous", "to",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROWS)
def test_a_mapping_is_one_launch_forward_and_one_backward(name, dtype, monkeypatch) -> None:
    from torch.profiler import ProfilerActivity, profile

    import sparse_attention as sa
    from sparse_attention.kernels import triton as kernels

    started: list[str] = []
    monkeypatch.setattr(kernels, "_INTERPRETED", True)  # takes CPU tensors; nothing is computed here
    monkeypatch.setattr(kernels, "launch", lambda kernel, *rest, **constants: started.append(kernel.fn.__name__))
    scores = torch.zeros(4, 2, 3, 25, dtype=dtype, requires_grad=True)
    mask, g = torch.ones(4, 1, 1, 25, dtype=torch.bool), torch.zeros(4, 2, 3, 25, dtype=dtype)
    with sa.kernels.use("triton"), profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.autograd.backward(
            getattr(sa, name)(scores, mask=mask, **({"lam": 0.3} if name == "sparsegen_lin" else {})), g
        )
    operations = [e.name.removeprefix("aten::") for e in seen.events() if e.name.startswith("aten::")]
    assert [kernel.endswith("_backward") for kernel in started] == [False, True]
    assert [o for o in operations if o not in FREE] == []


def test_enough_programs_for_a_decoder_step_and_not_too_many_for_a_batch(monkeypatch) -> None:
    from sparse_attention.kernels import triton as kernels

    started: list[tuple[int, int]] = []
    monkeypatch.setattr(kernels, "launch", lambda kernel, programs, *rest, **c: started.append((programs, c["ROWS"])))
    for rows in (64, 2048, 32768, 500_000):
        kernels.OPS["fusedmax"].forward(torch.zeros(rows, 1), lam=0.1, gamma=1.0)
    assert started == [(64, 1), (2048, 1), (2048, 16), (15625, 32)]
