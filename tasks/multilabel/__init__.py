"""Multilabel classification with a linear model and a sparse output mapping (Laha et al. 2018, section 5.1)."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The task's protocol (PRELOAD, prepare, run), imported when asked for: the generator beside it does without torch."""
    if name not in ("PRELOAD", "prepare", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tasks.multilabel import cell

    return getattr(cell, name)
