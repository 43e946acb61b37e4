"""What a script begins with: the repository on the path, one thread of each library, and the grammar of all scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; runtime.threads decides afterwards
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.commands.entry import command  # noqa: E402

__all__ = ["ROOT", "command"]
