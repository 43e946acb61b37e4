"""The library as a wheel for an exported folder, built from this checkout without a network."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from repro.files import StoreError
from sparse_attention.kernels.native import build
from tasks.load.standalone.sources import ROOT

BESIDE = ("pyproject.toml", "README.md", "LICENSE")
SKIPPED = shutil.ignore_patterns("__pycache__", "prebuilt")


def copied(to: Path) -> Path:
    """Copy what a wheel is built from, without compiled kernels, to the folder `to`. Returns `to`."""
    shutil.copytree(ROOT / "sparse_attention", to / "sparse_attention", ignore=SKIPPED)
    for name in BESIDE:
        shutil.copy(ROOT / name, to)
    return to


def wheel() -> Path:
    """A wheel for every platform: it compiles its kernels on first use, or runs the plain torch reference.

    It is built once for each state of the sources and kept in the library's cache directory.

    Raises:
        StoreError: setuptools is missing or cannot build it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy, digest = copied(Path(scratch, "source")), hashlib.sha256()
        for path in sorted(p for p in copy.rglob("*") if p.is_file()):
            digest.update(f"{path.relative_to(copy)}\0".encode() + path.read_bytes() + b"\0")
        place = build.cache_directory() / "wheels" / digest.hexdigest()[:16]
        if not list(place.glob("*.whl")):
            code = f"from setuptools.build_meta import build_wheel; build_wheel({str(scratch)!r})"
            done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
            if done.returncode:
                raise StoreError(
                    f"the wheel of sparse_attention cannot be built: {done.stderr.strip().splitlines()[-1]}"
                )
            place.mkdir(parents=True, exist_ok=True)
            (made,) = Path(scratch).glob("*.whl")
            shutil.copyfile(made, partial := place / f"{made.name}.{os.getpid()}")
            partial.replace(place / made.name)
        return next(place.glob("*.whl"))
