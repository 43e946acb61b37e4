"""Visual question answering with discrete and continuous 2-D attention (Martins et al. 2020, Table 2)."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The task's protocol (PRELOAD, prepare, run), imported when asked for: the loaders beside it do without torch."""
    if name not in ("PRELOAD", "prepare", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tasks.vqa import experiment

    return getattr(experiment, name)
