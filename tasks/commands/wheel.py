"""`scripts/wheel.py`: build a wheel of the library for one platform, with compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sparse_attention.kernels.native import build, carry
from tasks.load.standalone import library


def wheel(to: Path) -> Path:
    """Compile the kernels in a copy of the library and write a wheel of it to the folder `to`. Returns the wheel."""
    to.mkdir(parents=True, exist_ok=True)
    compiler = (build.compilers() or [["c++"]])[0]
    with tempfile.TemporaryDirectory() as scratch:
        copy = library.copied(Path(scratch, "source"))
        build.SOURCES = copy / "sparse_attention/kernels/native/src"  # hash and compile the same files that are packed
        machine = carry.compile_all(build.SOURCES.with_name("prebuilt"), compiler)
        options = ["-q", "--no-deps", "--no-build-isolation", "-w", str(to)]
        options += ["--config-settings", f"--build-option=--plat-name=manylinux_2_28_{machine}"]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True)
    return max(to.glob(f"*manylinux_2_28_{machine}.whl"), key=os.path.getmtime)
