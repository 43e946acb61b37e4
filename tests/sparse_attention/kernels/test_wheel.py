"""The wheel: it holds the library alone, and works with torch alone, without a compiler."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from alone import HEAD

CHECK = """
assert sa.__file__.startswith(sys.argv[1]), sa.__file__
x = torch.tensor([[1.0, 2.1, 1.9]])
assert torch.allclose(sa.fusedmax(x, lam=0.1), torch.tensor([[0.0, 0.5, 0.5]]), atol=1e-6)
q = torch.randn(2, 70, 16, requires_grad=True)
sa.sparse_attention(q, q, q, "entmax", causal=True).sum().backward()
print(sa.kernels.select("sparsemax", x).__name__)
"""


@pytest.mark.slow
def test_the_source_distribution_builds_without_a_network_and_a_compiler(root: Path, tmp_path: Path) -> None:
    """A pure wheel of exactly the library's files, from py.typed to the kernels' sources; the reference kernels run."""
    source, built, site = (tmp_path / name for name in ("source", "built", "site"))
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "sparse_attention", source / "sparse_attention", ignore=without)
    files = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()}
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    nothing = {"PATH": "", "HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1", "OMP_NUM_THREADS": "1"}
    call = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", call, str(built)], check=True, cwd=source, env=nothing, capture_output=True)
    (archive,) = built.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-build-isolation", "--no-deps", "-w", str(built)]
    subprocess.run([*pip, str(archive)], check=True, cwd=tmp_path, env=nothing, capture_output=True)
    (wheel,) = built.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if ".dist-info/" not in name} == files
        assert "sparse_attention/py.typed" in files
        packed.extractall(site)
    command, env = [sys.executable, "-c", HEAD + CHECK, str(site)], nothing | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sparse_attention.kernels.reference"]
