"""The wheel that carries the kernels: into an empty folder, and used there without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparse_attention.kernels.native import build

USE = """
import sys, warnings, torch
warnings.simplefilter("error")
import sparse_attention as sa
assert sa.__file__.startswith(sys.argv[1]), sa.__file__
x = torch.tensor([[1.0, 2.1, 1.9]])
for scores in (x, x.double()):
    assert torch.allclose(sa.fusedmax(scores, lam=0.1), torch.tensor([[0.0, 0.5, 0.5]]).to(scores), atol=1e-6)
assert torch.allclose(sa.sparsemax(torch.randn(4000, 500)).sum(-1), torch.ones(4000))
q = torch.randn(2, 70, 16, requires_grad=True)
assert sa.fused.plan(q, q, q).path == "fused"
sa.sparse_attention(q, q, q).sum().backward()
print(sa.kernels.select("sparsemax", x).__name__, sa.kernels.native.instruction_set())
"""
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="the wheel is for x86-64 Linux"
)


def test_a_prebuilt_library_is_taken_only_whole_for_these_sources_and_this_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(build, "_processor", lambda: "flags\t: " + " ".join(build._AVX2))
    names = {variant: build.prebuilt_name("float", variant) for variant in ("avx512", "avx2", "portable")}
    assert build.prebuilt("float", "auto") is None
    for name in names.values():
        (tmp_path / name).write_bytes(b"library" + build._checksum(b"library"))
    assert build.prebuilt("float", "auto") == tmp_path / names["avx2"]
    assert build.prebuilt("float", "portable") == tmp_path / names["portable"]
    monkeypatch.setattr(build, "_processor", lambda: "flags\t: " + " ".join(build._AVX512))
    assert build.prebuilt("float", "auto") == tmp_path / names["avx512"]
    (tmp_path / names["avx512"]).write_bytes(b"librarY" + build._checksum(b"library"))
    assert build.prebuilt("float", "auto") == tmp_path / names["avx2"]
    other = tmp_path / "src"
    other.mkdir()
    (other / "api.cpp").write_text("// edited")
    monkeypatch.setattr(build, "SOURCES", other)
    assert build.prebuilt("float", "auto") is None


@pytest.mark.slow
def test_the_wheel_works_without_a_compiler(root: Path, tmp_path: Path) -> None:
    """The wheel's files alone on the path, an empty PATH and home: native at once, nothing compiled, no warning."""
    if not build.compilers():
        pytest.skip("no C++ compiler here to make the wheel with")
    script = [sys.executable, str(root / "scripts/wheel.py"), "--to", str(tmp_path)]
    subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": str(root)})
    (wheel,) = tmp_path.glob("*-manylinux_2_28_x86_64.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for isa in ("auto", "avx2", "portable"):
        environment = {"PATH": "", "HOME": str(tmp_path / "home"), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "2"}
        done = subprocess.run(
            [sys.executable, "-c", USE, str(site)], env=environment | {"SPARSE_ATTENTION_NATIVE_ISA": isa},
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert done.stdout.split()[0] == "sparse_attention.kernels.native" and (
            isa == "auto" or done.stdout.split()[1] == isa
        )
    assert not (tmp_path / "home").exists()
