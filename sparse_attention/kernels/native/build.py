"""Load the C++ kernels: those built into a wheel, or compiled here, once per machine and user.

A wheel holds libraries for several instruction sets (``BUILT``, made by tests/release.py); the best one that the processor
has is loaded. Without them, as in a checkout, a library is compiled on first use with the machine's own compiler
(``-O3 -march=native``); float32 and float64 take a few seconds of one core each. It is stored in a cache directory under a
hash of everything it depends on: sources, flags, compiler version and processor. No library needs torch headers, the C++
runtime or an OpenMP runtime, so a new torch version does not invalidate it; its threads are those of torch.

Several processes may start a build at once: one compiles under a file lock, and the others wait. If locks do not work,
all processes compile, and the last rename wins; a file gets its final name only when it is complete. Each file ends
with a checksum, so a truncated or damaged file is detected and rebuilt.

Environment:
    SPARSE_ATTENTION_CACHE       directory for the libraries (default ``$XDG_CACHE_HOME`` or ``~/.cache``, then a private
                                 directory in the system's temporary directory)
    CXX, CC                      the compiler to use; if set, no other compiler is tried
    SPARSE_ATTENTION_NATIVE_ISA  ``auto`` (default); ``avx2`` or ``portable``, which exclude faster instructions; or
                                 ``native``: compiled here, even if the wheel has kernels
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "src"
# unit -> (source file, element type); the fused attention is a separate library (attention.py)
UNITS = {"float": ("api.cpp", "float"), "double": ("api.cpp", "double"), "attention": ("attention.cpp", "float")}
BUILT = Path(__file__).parent / "built"
# The built libraries of a unit, best first, and what /proc/cpuinfo must list for each.
BUILT_FOR = {
    "avx512": "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx2 fma f16c bmi1 bmi2 movbe abm",
    "avx2": "avx2 fma f16c bmi1 bmi2 movbe abm",
    "portable": "",
}
ISA_FLAGS = {
    "auto": (),
    "native": (),
    "avx2": ("-DSPARSE_ATTENTION_NO_AVX512",),
    "portable": ("-DSPARSE_ATTENTION_PORTABLE",),
}
BASE_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # The code does not throw exceptions or read errno or the floating-point flags. Disabling all three removes the need
    # for the C++ runtime and lets square roots and comparisons be vectorised.
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# A compiler that does not support -march=native or -fopenmp-simd (hints for vectors, no threads) still builds a correct library.
OPTIMISATION = (("-O3", "-march=native", "-fopenmp-simd"), ("-O2",))
_MAGIC = b"sparse_attention"
COMPILE_SECONDS = 600  # a compiler that takes longer is assumed to hang


class BuildError(RuntimeError):
    """There is no usable library. The message says what was tried, and ``advice`` says what to do."""

    advice = "Install a C++ compiler (for example the package g++) or point CXX at one"


class FolderError(BuildError):
    """There is no directory where the library can be stored, or none from which it can be loaded."""

    advice = (
        "Free some space, or set SPARSE_ATTENTION_CACHE to a folder that only you can write and that may hold programs"
    )


def compilers() -> list[list[str]]:
    """The compiler commands to try, best first; only ``$CXX`` or ``$CC`` if one of them is set."""
    for variable in ("CXX", "CC"):
        if os.environ.get(variable):
            return [shlex.split(os.environ[variable])]
    return [[name] for name in ("c++", "g++", "clang++", "cc", "gcc", "clang") if shutil.which(name)]


def requested_isa() -> str:
    """The value of ``SPARSE_ATTENTION_NATIVE_ISA``; raises ``BuildError`` for an unknown one."""
    isa = os.environ.get("SPARSE_ATTENTION_NATIVE_ISA", "auto")
    if isa not in ISA_FLAGS:
        raise BuildError(f"SPARSE_ATTENTION_NATIVE_ISA is {isa!r}; set it to one of {', '.join(ISA_FLAGS)}")
    return isa


def _version(compiler: list[str]) -> str | None:
    try:
        answer = subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # A program that is not a compiler (such as CC=true) may succeed, but prints no version.
    return answer.stdout.strip() or None


def built(unit: str, isa: str) -> Path | None:
    """The best library in this package that the processor can run and ``isa`` allows; None if there is none."""
    has = set(_processor().split())
    allowed = list(BUILT_FOR)[list(BUILT_FOR).index(isa) if isa in BUILT_FOR else 0 :]
    found = [BUILT / f"{unit}-{name}.so" for name in allowed if has.issuperset(BUILT_FOR[name].split())]
    return next((path for path in found if path.exists() and isa != "native"), None)


def _processor() -> str:
    """The properties of the processor on which ``-march=native`` depends."""
    facts = [platform.machine(), platform.system()]
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]  # all processors are assumed to be the same
        facts += [line for line in first.splitlines() if line.startswith(wanted)]
    return "\n".join(facts)


def cache_key(compiler: list[str], version: str, isa: str, ctype: str) -> str:
    """A hash of everything that the library depends on."""
    known = compiler, version, _processor(), ISA_FLAGS[isa], ctype, BASE_FLAGS, OPTIMISATION
    digest = hashlib.sha256(repr(known).encode())
    for source in sorted(SOURCES.iterdir()):
        if ctype != "attention" and source.name.startswith("attention"):
            continue  # the row kernels include none of the fused attention's files
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _usable(path: Path) -> bool:
    """True if the folder belongs to us and we alone can write to it, since code will be loaded from it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if hasattr(os, "getuid") and (shared or status.st_uid != os.getuid()):
            return False
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def cache_directory() -> Path:
    """The first usable directory: ``$SPARSE_ATTENTION_CACHE``, the user's cache, or a private temporary directory."""
    chosen = os.environ.get("SPARSE_ATTENTION_CACHE")
    if chosen:
        path = Path(chosen).expanduser()
        if not _usable(path):
            raise FolderError(f"SPARSE_ATTENTION_CACHE={chosen!r} must be a folder that only you own and can write to")
        return path
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    owner = os.getuid() if hasattr(os, "getuid") else "user"
    for path in (Path(home) / "sparse_attention", Path(tempfile.gettempdir()) / f"sparse_attention-{owner}"):
        if path.is_absolute() and _usable(path):
            return path
    return Path(tempfile.mkdtemp(prefix="sparse_attention-"))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let only one process in at a time. If locks do not work, all processes continue, which only costs time."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(held.enter_context(open(path, "a")), fcntl.LOCK_EX)
        yield


def _checksum(content: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(content).digest()


def is_intact(library: Path) -> bool:
    """True if the file exists and ends with the checksum of its other bytes."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    size = len(_checksum(b""))
    return len(content) > size and content[-size:] == _checksum(content[:-size])


def _compile(compiler: list[str], isa: str, ctype: str, target: Path) -> None:
    """Compile to a temporary file and rename it to ``target``; raises ``BuildError`` with the compiler's message."""
    last = ""
    try:
        with tempfile.TemporaryDirectory(prefix=f"{target.stem}-", dir=target.parent) as folder:
            library = Path(folder, target.name)
            for optimisation in OPTIMISATION:
                if not (last := _run(compile_command(compiler, isa, ctype, optimisation, str(library)))):
                    library.write_bytes((content := library.read_bytes()) + _checksum(content))
                    library.replace(target)
                    return
    except OSError as error:
        raise FolderError(f"{target} cannot be written: {error.strerror}") from error
    raise BuildError(f"{shlex.join(compiler)} failed: {last}")


def compile_command(compiler: list[str], isa: str, ctype: str, optimisation: tuple[str, ...], target: str) -> list[str]:
    source, scalar = UNITS[ctype]
    command = [*compiler, *BASE_FLAGS, *optimisation, *ISA_FLAGS[isa], f"-DSPARSE_ATTENTION_TYPE={scalar}"]
    # -x c++ lets a C compiler driver (cc) compile C++, which works because the C++ runtime is not linked.
    return [*command, "-x", "c++", str(SOURCES / source), "-o", target]


def _run(command: list[str]) -> str:
    """Run the compiler. Returns its error message, or an empty string if it has written its file."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0 and os.path.getsize(command[-1]):
        return ""
    return (done.stderr or done.stdout).strip()[-600:] or f"exit status {done.returncode}"


def _open(path: Path) -> ctypes.CDLL:
    """The library, which gets the threads of torch's OpenMP runtime; ``has_threads`` says if there was one."""
    try:
        library: Any = ctypes.CDLL(str(path))
    except OSError as error:
        raise FolderError(f"{path} cannot be loaded ({error})") from error
    library.has_threads = False
    with contextlib.suppress(AttributeError, OSError):  # no torch; or a torch without such a runtime
        runtime = ctypes.CDLL(sys.modules["torch"]._C.__file__) if "torch" in sys.modules else None
        names = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
        library.sparse_attention_threads(*(ctypes.cast(getattr(runtime, name), ctypes.c_void_p) for name in names))
        library.has_threads = True
    return library


def say(text: str) -> None:
    print(f"sparse_attention: {text}", file=sys.stderr, flush=True)


def load(ctype: str) -> ctypes.CDLL:
    """The library of a unit (``UNITS``), compiled first if necessary. Raises ``BuildError``."""
    isa = requested_isa()
    tried = []
    if shipped := built(ctype, isa):
        try:
            return _open(shipped)
        except FolderError as error:
            tried.append(str(error))
    directory = cache_directory()
    for compiler in compilers():
        version = _version(compiler)
        if version is None:
            tried.append(f"{shlex.join(compiler)} does not run")
            continue
        target = directory / f"{ctype}-{cache_key(compiler, version, isa, ctype)}.so"
        try:
            if not is_intact(target):
                with _lock(target.with_suffix(".lock")):
                    if not is_intact(target):  # no other process built it while we waited
                        say(
                            f"compiling the CPU kernels for {ctype} into {directory}, once; 5 to 30 seconds "
                            "(ahead of time: python -m sparse_attention.kernels.native)"
                        )
                        _compile(compiler, isa, ctype, target)
            return _open(target)
        except FolderError:
            raise  # another compiler would not help
        except (BuildError, OSError) as error:
            tried.append(str(error))
    reason = "; ".join(tried) or "no compiler found (c++, g++, clang++, cc, gcc, clang)"
    raise BuildError(reason)
