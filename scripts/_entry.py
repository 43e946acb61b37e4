"""Common start of all scripts: set the import path and one thread per library; import the reader of command lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # set before torch is imported; runtime.threads changes it later
if os.environ.get("SPARSE_ATTENTION_MIRROR") == "":
    del os.environ["SPARSE_ATTENTION_MIRROR"]  # set to an empty text: counts as not set
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def absent(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Say of a package that is not there which Python has it, in one line. Other errors are shown as usual."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] in ("tasks", "repro", "scripts"):
        return sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    python = ROOT / ".venv" / "bin" / "python"
    usable = python.exists() and Path(sys.prefix) != python.parent.parent
    way = f"use {os.path.relpath(python)}" if usable else "run `make setup`, then use .venv/bin/python"
    print(f"error: {sys.executable} has no package {error.name}: {way}", file=sys.stderr)


sys.excepthook = absent

from tasks.commands.entry import command, commands  # noqa: E402

__all__ = ["ROOT", "command", "commands"]
