"""Entailment between two sentences: SNLI (Bowman et al. 2015); BoolQ stands in for it in the demo."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The task's protocol (PRELOAD, prepare, run), imported when asked for: the loaders beside it do without torch."""
    if name not in ("PRELOAD", "prepare", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tasks.classification import run

    return getattr(run, name)
