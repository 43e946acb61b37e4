"""The C++ kernels under the address and undefined behaviour sanitizers, for every instruction set of this machine, and under the thread sanitizer."""

import subprocess
from pathlib import Path

import pytest

from sparse_attention.kernels.native import build

FLAGS = ["-O1", "-g", "-march=native", "-fno-sanitize-recover=all", "-std=c++17", "-pthread"]
SOURCES = [("sanitized.cpp", "float", 30_000), ("sanitized.cpp", "double", 30_000)]
SOURCES += [("sanitized_attention.cpp", "float", 1000)]
MEMORY = "address,undefined"


@pytest.mark.slow
@pytest.mark.parametrize(("source", "ctype", "least"), SOURCES)
@pytest.mark.parametrize(
    ("checks", "isa"), [(MEMORY, "auto"), (MEMORY, "avx2"), (MEMORY, "portable"), ("thread", "auto")]
)
def test_no_kernel_reads_or_writes_beyond_its_arrays_or_what_another_thread_writes(
    tmp_path: Path, source, ctype, least, checks, isa
) -> None:
    compiler = next((c for c in (["g++"], ["clang++"]) if build._version(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler here")
    program = tmp_path / "program"
    command = [*compiler, *FLAGS, f"-fsanitize={checks}", *build.ISA_FLAGS[isa], f"-DSPARSE_ATTENTION_TYPE={ctype}"]
    command += [f"-I{build.SOURCES}", str(Path(__file__).with_name(source)), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if "asan" in built.stderr or "tsan" in built.stderr or "sanitize" in built.stderr:
        pytest.skip(f"this compiler has no sanitizers: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr[-2000:]
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[:3000]
    assert int(done.stdout.split()[0]) > least
