"""`scripts/wheel.py`: build a wheel of the library for one platform, with compiled kernels."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sparse_attention.kernels.native import build, carry

ROOT = Path(__file__).resolve().parents[2]


def wheel(to: Path) -> Path:
    """Compile the kernels in a copy of the library and write a wheel of it to the folder `to`. Returns the wheel."""
    to.mkdir(parents=True, exist_ok=True)
    compiler = (build.compilers() or [["c++"]])[0]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "source")
        ignored = shutil.ignore_patterns("__pycache__", "prebuilt")
        shutil.copytree(ROOT / "sparse_attention", copy / "sparse_attention", ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        build.SOURCES = copy / "sparse_attention/kernels/native/src"  # hash and compile the same files that are packed
        machine = carry.compile_all(build.SOURCES.with_name("prebuilt"), compiler)
        options = ["-q", "--no-deps", "--no-build-isolation", "-w", scratch]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True)
        return _renamed(next(Path(scratch).glob("*.whl")), to, f"manylinux_2_28_{machine}")


def _renamed(made: Path, to: Path, platform: str) -> Path:
    """Write a copy of the wheel that has the platform's tag instead of "any". Returns the copy."""
    target = to / made.name.replace("-none-any.whl", f"-none-{platform}.whl")
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        record: list[str] = []
        for name in sorted(old.namelist(), key=lambda n: n.endswith("/RECORD")):
            content = old.read(name)
            if name.endswith(".dist-info/WHEEL"):
                content = content.replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
                content = content.replace(b"-none-any", f"-none-{platform}".encode())
            if name.endswith("/RECORD"):
                content = "\n".join([*record, f"{name},,", ""]).encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}")
            new.writestr(name, content)
    return target
