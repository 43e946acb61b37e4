"""Common start of all scripts: set the import path and one thread per library; import the command-line grammar."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # set before torch is imported; runtime.threads changes it later
if os.environ.get("SPARSE_ATTENTION_MIRROR") == "":
    del os.environ["SPARSE_ATTENTION_MIRROR"]  # set to an empty text: counts as not set
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.commands.entry import command  # noqa: E402

__all__ = ["ROOT", "command"]
