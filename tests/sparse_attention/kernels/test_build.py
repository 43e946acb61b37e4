"""Building on first use: many processes at once, damaged files, homes that cannot be written, no compiler."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparse_attention.kernels.native import build

USE = """
import warnings, torch
warnings.simplefilter("always")
import sparse_attention as sa
x = torch.tensor([[1.0, 2.1, 1.9]])
p = sa.fusedmax(x, lam=0.1)
q = sa.sparsemax(x)
assert torch.allclose(p, torch.tensor([[0.0, 0.5, 0.5]]), atol=1e-6), p
assert torch.allclose(q, torch.tensor([[0.0, 0.6, 0.4]]), atol=1e-6), q
print(sa.kernels.select("sparsemax", x).__name__)
"""
# The builder needs no torch: a process that only builds takes some 15 MB where torch takes hundreds.
BUILD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("build", sys.argv[1])
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
sys.stdin.readline()  # all start together
library = build.load("float")
assert "torch" not in sys.modules
library.sparse_attention_isa.restype = build.ctypes.c_char_p
print(library.sparse_attention_isa().decode())
"""
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(c[0]) for c in build.compilers()), reason="no C++ compiler here"
)


def start(root: Path, **environment: str) -> subprocess.Popen[str]:
    full = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "SPARSE_ATTENTION_KERNELS")}
    full |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"} | environment
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", USE], env=full, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=1500)
    assert process.returncode == 0, err[-2000:]
    return out.strip(), err


@needs_compiler
def test_every_library_is_there() -> None:
    """Tests of the kernels skip where there are none: sources that no longer compile must not hide behind that."""
    import torch

    from sparse_attention.kernels import native
    from sparse_attention.kernels.native import attention

    assert all(native.available("sparsemax", torch.zeros(1, 1, dtype=t)) for t in (torch.float32, torch.float64))
    assert attention._load() is not None, attention._failure
    assert all(library.has_threads for library in (*native._libraries.values(), attention._library))


@needs_compiler
def test_kernels_share_their_work_among_the_threads_of_the_runtime_that_they_are_given() -> None:
    """A runtime that stands in for torch's gives 2 threads where 3 are asked: all rows are computed, and it is asked once."""
    library = build.load("float")
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    asked, running = [], [0]

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def parallel(body, data, threads, flags):
        asked.append(threads)
        for running[0] in range(2):
            region(body)(data)

    thread, team = (ctypes.CFUNCTYPE(ctypes.c_int)(f) for f in (lambda: running[0], lambda: 2))
    x = torch.randn(20_000, 64)
    p = torch.full_like(x, -1)
    library.sparse_attention_threads(parallel, thread, team)
    try:
        at = [ctypes.c_void_p(t.data_ptr()) for t in (x, p)]
        library.sparsemax_forward(*at, *map(ctypes.c_int64, x.shape), ctypes.c_double(1.0), 3)
    finally:
        build._open(Path(library._name))  # the same library gets torch's threads again
    assert asked == [3] and torch.allclose(p.sum(-1), torch.ones(len(x)), atol=1e-5)


def test_the_best_built_library_that_the_processor_runs_is_loaded(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(build, "BUILT", tmp_path)
    flags = build.BUILT_FOR["avx512"]
    assert build.built("float", "auto") is None
    for name in build.BUILT_FOR:
        (tmp_path / f"float-{name}.so").write_bytes(b"")

    def chosen(flags: str, isa: str) -> str | None:
        monkeypatch.setattr(build, "_processor", lambda: f"x86_64\nLinux\nflags\t\t: fpu {flags} sse")
        found = build.built("float", isa)
        return found and found.stem

    assert chosen(flags, "auto") == "float-avx512" and chosen(flags, "avx2") == "float-avx2"
    assert chosen(flags.replace("avx512_vnni", ""), "auto") == "float-avx2"
    assert chosen("", "auto") == chosen(flags, "portable") == chosen("", "avx2") == "float-portable"
    assert chosen(flags, "native") is None
    (tmp_path / "float-avx512.so").unlink()
    assert chosen(flags, "auto") == "float-avx2"


@needs_compiler
def test_a_built_library_is_used_and_one_that_cannot_be_loaded_is_compiled(monkeypatch, tmp_path) -> None:
    compiled = Path(build.load("float")._name)
    monkeypatch.setattr(build, "BUILT", tmp_path)
    shipped = tmp_path / "float-portable.so"
    shutil.copy(compiled, shipped)
    assert build.load("float")._name == str(shipped)
    monkeypatch.setenv("SPARSE_ATTENTION_NATIVE_ISA", "native")
    assert build.load("float")._name == str(compiled)
    monkeypatch.delenv("SPARSE_ATTENTION_NATIVE_ISA")
    (tmp_path / "double-portable.so").write_bytes(b"no library")
    with pytest.raises(build.FolderError, match=r"double-portable\.so cannot be loaded"):
        build._open(tmp_path / "double-portable.so")
    assert Path(build.load("double")._name).parent == compiled.parent


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("processes", [8, 100])
def test_processes_build_at_once_then_damage_is_repaired_ahead_of_use(root: Path, tmp_path: Path, processes) -> None:
    cache, log, compiler = tmp_path / "cache", tmp_path / "compilations", tmp_path / "c++"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo $$ >> "{log}"\nexec {shutil.which(build.compilers()[0][0])} "$@"\n'
    )
    compiler.chmod(0o755)
    own = {"SPARSE_ATTENTION_CACHE": str(cache), "CXX": str(compiler)}
    environment = os.environ | own | {"PYTHONPATH": str(root)}
    command, pipe = [sys.executable, "-I", "-c", BUILD, str(build.__file__)], subprocess.PIPE
    running = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [finish(process) for process in running]
    assert {out for out, _ in results} <= {"avx512", "avx2", "portable"} and len(results) == processes
    (library,) = cache.glob("*.so")
    assert build.is_intact(library) and not [f for f in cache.iterdir() if f.is_dir()]
    assert len(log.read_text().split()) == 1, "one compiles, the others wait for it"

    whole = library.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5000] + b"\0" * 64 + whole[5064:], b""):
        library.unlink()
        library.write_bytes(damaged)
        assert not build.is_intact(library)
    ahead = [sys.executable, "-m", "sparse_attention.kernels.native"]
    done = subprocess.run(ahead, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and str(cache) in done.stdout and build.is_intact(library)
    assert done.stderr.count("compiling the CPU kernels for float ") == 1
    assert done.stderr.count("compiling the CPU kernels for double ") == 1
    out, err = finish(start(root, **own))
    assert out == "sparse_attention.kernels.native" and "compiling" not in err


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_every_instruction_set_passes_the_same_tests(root: Path, tmp_path: Path, isa: str) -> None:
    environment = os.environ | {"SPARSE_ATTENTION_NATIVE_ISA": isa, "SPARSE_ATTENTION_CACHE": str(tmp_path / "cache")}
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in ("native", "masked", "fused_attention")]
    command, env = "-m pytest -q -p no:cacheprovider".split(), environment | {"PYTHONPATH": str(root)}
    given = {"capture_output": True, "text": True, "timeout": 1500}
    done = subprocess.run([sys.executable, *command, *files], env=env, **given)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout


OTHERS = [pytest.param(how, marks=pytest.mark.slow) for how in ("CC=false", "broken compiler", "file for a folder")]


@pytest.mark.parametrize("how", ["empty path", *OTHERS])
def test_where_nothing_can_be_built_the_reference_answers_and_warns(root: Path, tmp_path: Path, how: str) -> None:
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit 0\necho no luck >&2; exit 1\n')
    broken.chmod(0o755)
    environment, said = {
        "empty path": ({"PATH": str(tmp_path / "empty")}, "CXX"),
        "CC=false": ({"CC": "false"}, "CXX"),
        "broken compiler": ({"CXX": str(broken)}, "no luck"),
        "file for a folder": ({"SPARSE_ATTENTION_CACHE": str(broken)}, "set SPARSE_ATTENTION_CACHE to a folder"),
    }[how]
    out, err = finish(start(root, **({"SPARSE_ATTENTION_CACHE": str(tmp_path / "cache")} | environment)))
    assert out == "sparse_attention.kernels.reference"
    assert err.count("RuntimeWarning") == 1 and said in err, err
    assert ("CXX" in err) == (how != "file for a folder") == ("C++ compiler" in err)


def test_cache_directory_is_private_and_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSE_ATTENTION_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert build.cache_directory() == tmp_path / "home" / "sparse_attention"
    # A home that cannot be written: a file where the directory should be, which stops even root.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    fallback = build.cache_directory()
    assert fallback.parent == tmp_path and fallback.name.startswith("sparse_attention-")
    # Somebody else could have put code there: not used.
    fallback.chmod(0o777)
    assert build.cache_directory() != fallback
    monkeypatch.setenv("SPARSE_ATTENTION_CACHE", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match="SPARSE_ATTENTION_CACHE"):
        build.cache_directory()


def test_the_key_depends_on_what_the_library_depends_on() -> None:
    base = build.cache_key(["g++"], "12.2", "auto", "float")
    others = [
        build.cache_key(["clang++"], "12.2", "auto", "float"),
        build.cache_key(["g++"], "13.1", "auto", "float"),
        build.cache_key(["g++"], "12.2", "portable", "float"),
        build.cache_key(["g++"], "12.2", "auto", "double"),
    ]
    assert len({base, *others}) == 5 and base == build.cache_key(["g++"], "12.2", "auto", "float")


def test_unknown_instruction_set_names_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSE_ATTENTION_NATIVE_ISA", "mmx")
    with pytest.raises(build.BuildError, match="auto, native, avx2, portable"):
        build.requested_isa()


@pytest.mark.slow
@needs_compiler
def test_the_gradient_of_pnormmax_is_the_same_whether_or_not_the_compiler_contracts(tmp_path):
    """g++ 12 and 14 choose differently which products and sums become one operation; tables of two machines would differ."""
    source = str(build.SOURCES / "api.cpp")
    y, g = torch.rand(50, 37) * (torch.rand(50, 37) > 0.5), torch.randn(50, 37)
    found = []
    for flag in ("fast", "off"):
        library = tmp_path / f"{flag}.so"
        flags = [*build.BASE_FLAGS, *build.OPTIMISATION[0], f"-ffp-contract={flag}", "-DSPARSE_ATTENTION_TYPE=float"]
        subprocess.run([*build.compilers()[0], *flags, source, "-o", str(library)], check=True)
        backward = ctypes.CDLL(str(library)).pnormmax_backward
        for p in (1.3, 1.5):
            dx = torch.empty_like(g)
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (g, y, dx)]
            sizes = [ctypes.c_int64(n) for n in g.shape]
            backward(*pointers, *sizes, ctypes.c_double(p), ctypes.c_double(1.0), 1)
            found.append(dx)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3]) and found[0].abs().sum() > 0
