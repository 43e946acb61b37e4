"""Provenance of a number: code, versions, machine and time. It is recorded with every cell, but not part of its id."""

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-fairseq.lock")


def collect() -> dict[str, Any]:
    """The code version, package versions, type of machine, command and time, as plain JSON values."""
    torch = sys.modules.get("torch")  # do not import torch just for this
    gpu = torch.cuda.get_device_name(0) if torch and torch.cuda.is_available() else None
    return {
        "code": code_version(),
        "python": platform.python_version(),
        "kernels": kernels_version(),
        "locked": not unlocked() if LOCKS[0].is_file() else None,
        "packages": {name: version for name in ("sparse-attention", *pinned()) if (version := _version(name))},
        "machine": {"system": platform.system(), "cpu": _cpu(), "cores": os.cpu_count(), "gpu": gpu},
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def code_version() -> dict[str, Any]:
    """The commit, and whether tracked files differ from it; empty outside a Git checkout."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": dirty}


@lru_cache(maxsize=1)
def kernels_version() -> str:
    """A hash of the kernels' source files: 12 hex digits."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "sparse_attention" / "kernels").rglob("*")):
        if path.suffix in (".py", ".cpp", ".h", ".hpp", ".cu"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@lru_cache(maxsize=1)
def pinned() -> dict[str, str]:
    """The packages in the lock files and their versions, without those for other platforms and Python versions."""
    from packaging.markers import Marker

    text = "\n".join(path.read_text(encoding="utf-8") for path in LOCKS if path.is_file())
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)(?: ; ([^\\\n]+))?", text, re.M)
    return {name: version for name, version, where in lines if not where or Marker(where.strip()).evaluate()}


def unlocked() -> list[str]:
    """The packages in the lock files that are not installed here or have another version."""
    return [name for name, at in pinned().items() if (_version(name) or "").split("+")[0] != at.split("+")[0]]


def _git(*arguments: str) -> str:
    # without Git's optional locks, so that a cell that is killed here leaves no lock behind in the repository
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


@lru_cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name and the instruction set that torch uses: some virtual machines give all processors one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    torch = sys.modules.get("torch")  # do not import torch just for this
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}" if torch else name
