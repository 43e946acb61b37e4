"""The proof of a GPU, at toy size without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from dataclasses import replace

import pytest
import torch

from benchmarks import attention_proof, gpu_proof, wheels
from benchmarks import proof as kernels


@pytest.mark.parametrize("part", ["kernels", "training"])
def test_a_part_runs_on_a_cpu_and_says_so(part, tmp_path, root):
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(root / "scripts" / "gpu_proof.py"),
        part,
        "--device",
        "cpu",
        "--results",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (folder,) = tmp_path.iterdir()
    page, found = (folder / f"{part}.md").read_text(), json.loads((folder / f"{part}.json").read_text())
    assert page.startswith("# DEVICE: CPU. NOTHING HERE WAS RUN ON A GPU.") and page.startswith(
        done.stdout.split("\n")[0]
    )
    assert found["machine"]["device"] == "cpu" and folder.name.startswith("CPU-")
    if part == "kernels":
        assert {row["dtype"] for row in found["agreement"]} == {"float32", "float16", "bfloat16"}
        assert {row["path"] for row in found["attention_agreement"]} == {"fused"}
        assert len(found["sparse_attention"]) == 12
        assert {row["label"] for row in found["speed"]} >= {"torch.softmax", *(label for label, *_ in kernels.MAPPINGS)}
    else:
        assert [row["model"] for row in found["models"]] == list(gpu_proof.MODELS)
        assert all(row["waits"] == [] and len(row["losses"]) >= 4 for row in found["models"])


def test_what_is_wrong_is_found(monkeypatch):
    import sparse_attention as sa

    monkeypatch.setattr(kernels, "MAPPINGS", (("sparsemax", "sparsemax", {}),))
    right = sa.sparsemax
    monkeypatch.setattr(
        sa, "sparsemax", lambda x, mask: right(x, mask=mask) * (1.001 if x.dtype is torch.float32 else 1)
    )
    found = {"agreement": kernels.compare("cpu", kernels.Sizes(((3, 1, 7),), (), (1, 1, 1, 1), 0.0))}
    assert [row["agrees"] for row in found["agreement"]] == [False, True, True]
    model = {"model": "LSTM", "agrees": False, "apart": 0.5, "waits": ["item"]}
    wrong = gpu_proof.failures({**found, "models": [model], "table": {"table": "demo", "status": 124}})
    assert [w.partition(":")[0] for w in wrong] == [
        "sparsemax in float32 on [3, 1, 7]",
        "LSTM",
        "LSTM",
        "demo ended with 124; its output stands in the page",
    ]


def test_adasplash_is_timed_beside_ours(monkeypatch):
    def theirs(q, k, v, alpha, is_causal):  # of softmax for alpha 1.5, so that it is apart
        if alpha == 2.0:
            raise RuntimeError("no | here\nand there")
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    sizes = replace(kernels.TOY, seconds=0.0)
    monkeypatch.setattr(attention_proof, "_module", lambda name: None)
    alone = attention_proof.speeds("cpu", sizes)
    monkeypatch.setattr(attention_proof, "_module", lambda name: types.SimpleNamespace(adasplash=theirs))
    both = attention_proof.speeds("cpu", sizes)
    assert {row["label"] for row in alone} == {"scaled_dot_product_attention", "alpha 2", "alpha 1.5"}
    peers = [row for row in both if "adasplash" in row["label"]]
    assert [row["microseconds"] for row in peers if row["label"] == "adasplash, alpha 2"] == [
        "RuntimeError: no / here"
    ] * 2
    timed = [row for row in peers if row["label"] == "adasplash, alpha 1.5"]
    assert len(timed) == 4 and all(row["apart"] > 0.05 and row["microseconds"] > 0 for row in timed)
    assert "apart" in both[0] and "speedup" in both[0]


def test_the_wheels_hold_what_training_imports_and_no_torch():
    pytest.importorskip("fairseq")
    names = wheels.needed()
    assert {"fairseq-fixed", "hydra-core", "antlr4-python3-runtime", "numpy"} <= set(names)
    assert not {n for n in names if n.startswith(("torch", "nvidia", "triton"))}
