"""make wheel: a wheel that carries the CPU kernels compiled, for Linux with glibc 2.28 or newer (manylinux_2_28).

Examples: python scripts/wheel.py
          python scripts/wheel.py --to /tmp/wheels
          CXX=clang++ python scripts/wheel.py                  # another compiler
          CXX=aarch64-linux-gnu-g++ python scripts/wheel.py    # a wheel for aarch64, by a cross compiler

The library is copied, its kernels are compiled beside their sources for every kind of processor of the compiler's
machine (`sparse_attention/kernels/native/carry.py`), and the wheel gets its platform's name.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sparse_attention.kernels.native import build, carry

ROOT = Path(__file__).resolve().parents[1]


def renamed(wheel: Path, to: Path, platform: str) -> Path:
    """The wheel with the platform's tag in place of "any"."""
    target = to / wheel.name.replace("-none-any.whl", f"-none-{platform}.whl")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder for the wheel")
    to, compiler = parser.parse_args().to.resolve(), (build.compilers() or [["c++"]])[0]
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "source")
        shutil.copytree(
            ROOT / "sparse_attention",
            copy / "sparse_attention",
            ignore=shutil.ignore_patterns("__pycache__", "prebuilt"),
        )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        build.SOURCES = copy / "sparse_attention/kernels/native/src"  # what is hashed and compiled is what is packed
        machine = carry.compile_all(build.SOURCES.with_name("prebuilt"), compiler)
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            scratch,
            str(copy),
        ]
        subprocess.run(command, check=True)
        print(f"pip install {renamed(next(Path(scratch).glob('*.whl')), to, f'manylinux_2_28_{machine}')}")


if __name__ == "__main__":
    main()
