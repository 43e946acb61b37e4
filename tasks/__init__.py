"""Tasks: data, models and scores around the attention mappings; one folder per task."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# What `sparse_attention.repro.protocol` and the configuration check ask of a task; the last three are optional.
PROTOCOL = ("PRELOAD", "prepare", "run", "SCORES", "DEV_METRICS", "problems")


def lazy(module: str) -> Callable[[str], Any]:
    """`__getattr__` of a task's package: its protocol, out of `module`, imported when asked for.

    So the loaders beside it do without torch.
    """

    def find(name: str) -> Any:
        if name not in PROTOCOL:
            raise AttributeError(f"the task has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return find
