"""Compile the kernels for other machines, for the wheel that ``make wheel`` builds (see `build.VARIANTS`).

The compiler determines the machine: a cross compiler builds the wheel for its target. Neither the C++ runtime nor
OpenMP is linked. The libraries use only libm and libc symbols that glibc 2.28 has, and torch's own OpenMP.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from . import build

GLIBC = (2, 28)
# The newer versions of these functions need glibc 2.29. The first versions, given here for each machine, differ only in
# their use of errno.
FIRST = {"x86_64": "2.2.5", "aarch64": "2.17"}
OLDER = ("pow", "exp", "log", "log2")


def machine_of(compiler: list[str]) -> str:
    """The compiler's target machine, named as in ``platform.machine()``. Raises SystemExit if it is not in `FIRST`."""
    try:
        said = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{shlex.join(compiler)} does not run: {error}; install g++, or set CXX to a compiler")
    machine = said.partition("-")[0]
    if machine not in FIRST or "-linux" not in said:
        wanted = f"set CXX to a compiler for Linux on {' or '.join(FIRST)}, such as aarch64-linux-gnu-g++"
        sys.exit(f"{shlex.join(compiler)} compiles for {said!r}; {wanted}")
    return machine


def compile_all(folder: Path, compiler: list[str]) -> str:
    """Compile every unit in every variant for the compiler's machine, and add the checksums; returns the machine."""
    machine = machine_of(compiler)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        older, unit_object = Path(scratch, "older.h"), str(Path(scratch, "unit.o"))
        older.write_text("".join(f'__asm__(".symver {f},{f}@GLIBC_{FIRST[machine]}");\n' for f in OLDER))
        for variant, (runs_on, _, flags, _, units) in build.VARIANTS.items():
            for unit in units if runs_on == machine else ():
                source, scalar = build.UNITS[unit]
                how = [f for f in build.BASE_FLAGS if f != "-shared"] + [
                    "-O3",
                    "-fopenmp",
                    "-Wno-psabi",
                    *flags,
                    "-include",
                    str(older),
                ]
                how += [f"-DSPARSE_ATTENTION_TYPE={scalar}", "-x", "c++", "-c", str(build.SOURCES / source)]
                library = folder / build.prebuilt_name(unit, variant)
                subprocess.run([*compiler, *how, "-o", unit_object], check=True)
                linked = str(Path(scratch, "linked.so"))
                subprocess.run(
                    [*compiler, "-shared", "-s", "-static-libgcc", unit_object, "-o", linked, "-lm"], check=True
                )
                check(linked)
                build._seal(linked, library)
                print(f"{library.name}: {library.stat().st_size >> 10} KB", flush=True)
    return machine


def check(library: str) -> None:
    """Check the requirements of manylinux. Raises SystemExit, which names what some machines do not have."""
    said = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED +(\S+)", said)) - {"libm.so.6", "libc.so.6"}
    newer = {v for v in re.findall(r"GLIBC_([\d.]+)", said) if tuple(map(int, v.split("."))) > GLIBC}
    if needed or newer:
        sys.exit(f"{library} needs {', '.join(needed | {'glibc ' + v for v in newer})}, which not every Linux has")
