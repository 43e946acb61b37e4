"""Generated sentence pairs with a planted alignment: quick, offline, with a known answer."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The task's protocol (PRELOAD, prepare, run), imported when asked for: the loaders beside it do without torch."""
    if name not in ("PRELOAD", "SCORES", "DEV_METRICS", "prepare", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tasks.seq2seq import run

    return getattr(run, name)
