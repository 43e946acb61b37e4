"""The wheel that carries the kernels: into an empty folder, and used there without a compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import sparse_attention as sa
from sparse_attention.kernels.native import build, carry

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
CROSS = "aarch64-linux-gnu-g++"
# Says what it is asked for and compiles nothing: the arguments of each call, and the file that -include names.
STAND_IN = """#!{python}
import pathlib, sys
asked, log = sys.argv[1:], pathlib.Path(__file__).with_name("log")
if asked == ["-dumpmachine"]:
    print("{triple}")
else:
    older = pathlib.Path(asked[asked.index("-include") + 1]).read_text() if "-include" in asked else ""
    log.open("a").write(" ".join(asked) + older.replace(chr(10), "") + chr(10))
    pathlib.Path(asked[asked.index("-o") + 1]).write_bytes(b"library")
"""
EMULATOR = next(filter(shutil.which, ("qemu-aarch64", "qemu-aarch64-static")), None)
# Called with the library of float64, rows and columns; reads scores and a gradient, and writes four mappings of them with their gradients.
CALLER = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef double T;
typedef int64_t I;
int main(int, char** given) {
  I rows = atol(given[2]), n = atol(given[3]), all = rows * n;
  T *x = (T*)malloc(4 * all * sizeof(T)), *g = x + all, *p = g + all, *dx = p + all;
  int32_t* id = (int32_t*)malloc(all * sizeof(int32_t));
  dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* library = dlopen(given[1], RTLD_NOW);
  if (!library) return puts(dlerror()), 1;
  auto f = [=](const char* name) { return dlsym(library, name); };
  int bad = (I)fread(x, sizeof(T), 2 * all, stdin) != 2 * all;
  auto said = [&](int status) { bad |= status; };
  auto write = [&] { fwrite(p, sizeof(T), 2 * all, stdout); };
  said(((int (*)(T*, T*, I, I, T, int))f("sparsemax_forward"))(x, p, rows, n, 1, 1));
  said(((int (*)(T*, T*, T*, I, I, T, int))f("sparsemax_backward"))(g, p, dx, rows, n, 1, 1)), write();
  said(((int (*)(T*, T*, I, I, T, int))f("entmax_forward"))(x, p, rows, n, 1.5, 1));
  said(((int (*)(T*, T*, T*, I, I, T, int))f("entmax_backward"))(g, p, dx, rows, n, 1.5, 1)), write();
  said(((int (*)(T*, T*, I, I, T, T, int))f("fusedmax_forward"))(x, p, rows, n, .2, 1, 1));
  said(((int (*)(T*, T*, T*, T*, I, I, T, int))f("fusedmax_backward"))(g, p, x, dx, rows, n, 1, 1)), write();
  said(((int (*)(T*, T*, int32_t*, I, I, T, T, int))f("oscarmax_forward"))(x, p, id, rows, n, .05, 1, 1));
  said(((int (*)(T*, int32_t*, T*, I, I, T, int))f("oscarmax_backward"))(g, id, dx, rows, n, 1, 1)), write();
  return bad;
}
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


def compiler_for(triple: str, folder: Path) -> list[str]:
    script = folder / "g++"
    script.write_text(STAND_IN.format(python=sys.executable, triple=triple))
    script.chmod(0o700)
    return [str(script)]


def test_a_prebuilt_library_is_taken_only_whole_for_these_sources_and_this_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
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


def test_a_prebuilt_library_is_taken_on_its_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(build, "_processor", lambda: "flags\t: " + " ".join(build._AVX512))
    taken = {}
    for variant in ("portable", "aarch64"):
        library = tmp_path / build.prebuilt_name("double", variant)
        library.write_bytes(b"library" + build._checksum(b"library"))
        taken[variant] = library
    for machine, library in {"x86_64": taken["portable"], "aarch64": taken["aarch64"], "riscv64": None}.items():
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert build.prebuilt("double", "auto") == build.prebuilt("double", "portable") == library
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert build.prebuilt("double", "auto") is None


def test_the_compiler_decides_for_which_machine_the_wheel_is(tmp_path: Path) -> None:
    for triple in ("aarch64-linux-gnu", "aarch64-redhat-linux", "x86_64-pc-linux-gnu"):
        assert carry.machine_of(compiler_for(triple, tmp_path)) == triple.partition("-")[0]
    for triple in ("arm64-apple-darwin23", "x86_64-apple-darwin23", "aarch64-apple-darwin", "riscv64-linux-gnu"):
        with pytest.raises(SystemExit, match=f"{triple}.*set CXX.*x86_64 or aarch64"):
            carry.machine_of(compiler_for(triple, tmp_path))
    with pytest.raises(SystemExit, match=r"nowhere does not run.*set CXX"):
        carry.machine_of([str(tmp_path / "nowhere")])


@pytest.mark.parametrize(("machine", "first"), [("aarch64", "2.17"), ("x86_64", "2.2.5")])
def test_a_wheel_is_compiled_with_the_flags_of_its_machine(
    machine: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag of the other processor is an error of the compiler, a symbol's version of the other one of the linker."""
    monkeypatch.setattr(carry, "check", lambda library: None)
    assert carry.compile_all(tmp_path / "prebuilt", compiler_for(f"{machine}-linux-gnu", tmp_path)) == machine
    variants = ["aarch64"] if machine == "aarch64" else ["avx512vnni", "avx512", "avx2", "portable"]
    names = {build.prebuilt_name(u, v) for v in variants for u in build.UNITS if v != "avx512vnni" or u == "attention"}
    assert {path.name for path in (tmp_path / "prebuilt").iterdir()} == names
    compiled = [line for line in (tmp_path / "log").read_text().splitlines() if " -c " in line]
    assert len(compiled) == len(names)
    for line in compiled:
        assert f"pow,pow@GLIBC_{first}" in line and line.count("GLIBC") == len(carry.OLDER) == 4
        march = "-march=armv8-a" if machine == "aarch64" else "-march=x86-64"
        assert next(word for word in line.split() if word.startswith("-m")).startswith(march)


@pytest.fixture(scope="module")
def arm_wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which(CROSS) is None:
        pytest.skip(f"no {CROSS} here (apt-get install g++-aarch64-linux-gnu)")
    folder = tmp_path_factory.mktemp("arm")
    script = [sys.executable, str(root / "scripts/wheel.py"), "--to", str(folder)]
    subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": str(root), "CXX": CROSS})
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_cross_compiler_makes_the_wheel_of_aarch64(arm_wheel: Path) -> None:
    wheel = arm_wheel
    assert wheel.name.endswith("-py3-none-manylinux_2_28_aarch64.whl")
    with zipfile.ZipFile(wheel) as files:
        (tag,) = (files.read(n).decode() for n in files.namelist() if n.endswith(".dist-info/WHEEL"))
        libraries = {Path(n).name: files.read(n) for n in files.namelist() if "/prebuilt/" in n}
    assert "Tag: py3-none-manylinux_2_28_aarch64" in tag.splitlines()
    assert set(libraries) == {build.prebuilt_name(unit, "aarch64") for unit in build.UNITS}
    for content in libraries.values():
        assert content[:4] == b"\x7fELF" and int.from_bytes(content[18:20], "little") == 183  # EM_AARCH64


@pytest.mark.slow
@pytest.mark.skipif(EMULATOR is None, reason="no qemu-aarch64 here (apt-get install qemu-user-static)")
@pytest.mark.parametrize(("rows", "n"), [(7, 5), (40, 33), (3, 700)])
def test_the_wheel_of_aarch64_computes_what_this_machine_computes(
    arm_wheel: Path, tmp_path: Path, rows: int, n: int
) -> None:
    """The wheel's own library, run by an emulator: four mappings and their gradients, in float64."""
    zipfile.ZipFile(arm_wheel).extractall(tmp_path)
    (library,) = tmp_path.glob("sparse_attention/kernels/native/prebuilt/double-*.so")
    (tmp_path / "caller.cpp").write_text(CALLER)
    subprocess.run([CROSS, "-O1", "-o", "caller", "caller.cpp", "-ldl"], cwd=tmp_path, check=True)
    x = (2 * torch.randn(rows, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))).requires_grad_()
    g = torch.randn(rows, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n + 1))
    done = subprocess.run(
        [str(EMULATOR), "-L", "/usr/aarch64-linux-gnu", "./caller", str(library), str(rows), str(n)],
        input=x.detach().numpy().tobytes() + g.numpy().tobytes(), cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[:300], done.stderr)
    found = torch.frombuffer(bytearray(done.stdout), dtype=torch.float64).view(4, 2, rows, n)
    here = (sa.sparsemax(x), sa.entmax(x, alpha=1.5), sa.fusedmax(x, lam=0.2), sa.oscarmax(x, lam=0.05))
    for p, (p_there, dx_there) in zip(here, found):
        (dx,) = torch.autograd.grad(p, x, g)
        assert torch.equal(p == 0, p_there == 0)
        torch.testing.assert_close(p_there, p.detach(), rtol=0, atol=1e-13)
        torch.testing.assert_close(dx_there, dx, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in carry.FIRST, reason="there is no wheel for this machine")
def test_the_wheel_works_without_a_compiler(root: Path, tmp_path: Path) -> None:
    """The wheel's files alone on the path, an empty PATH and home: native at once, nothing compiled, no warning."""
    if not build.compilers():
        pytest.skip("no C++ compiler here to make the wheel with")
    script = [sys.executable, str(root / "scripts/wheel.py"), "--to", str(tmp_path)]
    subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": str(root)})
    (wheel,) = tmp_path.glob(f"*-manylinux_2_28_{platform.machine()}.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for isa in ("auto", "avx2", "portable") if platform.machine() == "x86_64" else ("auto", "portable"):
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


ALONE = """
import importlib.abc, sys

class Alone(importlib.abc.MetaPathFinder):  # an interpreter with torch and what torch requires
    known = {*sys.stdlib_module_names, *"torch torchgen functorch typing_extensions sympy mpmath networkx filelock fsspec jinja2".split()}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.known | {"sparse_attention"}:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Alone())
import torch
import sparse_attention as sa
assert sa.__file__.startswith(sys.argv[1]), sa.__file__
x = torch.tensor([[1.0, 2.1, 1.9]])
assert torch.allclose(sa.fusedmax(x, lam=0.1), torch.tensor([[0.0, 0.5, 0.5]]), atol=1e-6)
q = torch.randn(2, 70, 16, requires_grad=True)
sa.sparse_attention(q, q, q, "entmax", causal=True).sum().backward()
print(sa.kernels.select("sparsemax", x).__name__)
"""


@pytest.mark.slow
def test_the_source_distribution_builds_without_a_network_and_a_compiler(root: Path, tmp_path: Path) -> None:
    """A pure wheel, with all sources of the kernels, that works by the reference kernels with torch alone."""
    source, built, site = (tmp_path / name for name in ("source", "built", "site"))
    shutil.copytree(
        root / "sparse_attention", source / "sparse_attention", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    nothing = {"PATH": "", "HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1", "OMP_NUM_THREADS": "1"}
    call = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", call, str(built)], check=True, cwd=source, env=nothing, capture_output=True)
    (archive,) = built.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-build-isolation", "--no-deps", "-w", str(built)]
    subprocess.run([*pip, str(archive)], check=True, cwd=tmp_path, env=nothing, capture_output=True)
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(site)
    sources = {
        p.relative_to(root) for p in (root / "sparse_attention").rglob("*") if p.suffix in (".py", ".pyi", ".cpp", ".h")
    }
    assert {path for path in sources if not (site / path).is_file()} == set()
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(site)], env=nothing | {"PYTHONPATH": str(site)}, capture_output=True, text=True, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sparse_attention.kernels.reference"]
