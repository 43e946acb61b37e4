"""Loggers beside the store. One that fails or hangs is dropped with one message, and the training goes on.

A logger has
    name, timeout                seconds that each of these calls may take
    start()                      before the training; whatever may fail belongs here
    curve(rows)                  all rows of the learning curve so far
    finish(found, state)         a `Found` and "done", or None and "failed" or "stopped"
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any


class Loggers:
    """The loggers of a running cell, made by `make`. Nothing raises; `note` receives the error messages."""

    def __init__(self, make: Callable[[], Sequence[Any]], note: Callable[[str], None]) -> None:
        self.active: list[Any] = []
        self.note = note
        try:
            self.active.extend(make())
        except Exception as error:
            note(f"no loggers: {type(error).__name__}: {error}")
        self._tell("start")

    def curve(self, rows: list[dict[str, float]]) -> None:
        self._tell("curve", rows)

    def finish(self, found: Any, state: str) -> None:
        self._tell("finish", found, state)

    def _tell(self, what: str, *arguments: Any) -> None:
        for logger in list(self.active):
            if why := _trouble(getattr(logger, what), arguments, logger.timeout):
                self.active.remove(logger)
                self.note(f"logger {logger.name} failed in {what} and is switched off: {why}")


def _trouble(call: Callable[..., None], arguments: Sequence[Any], timeout: float) -> str | None:
    """Why a call failed or took longer than `timeout` seconds. It runs in a thread, because a call that waits for a network cannot be stopped."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # also SystemExit: nobody else would see it in this thread
            logging.getLogger("cell").debug("a logger failed", exc_info=True)
            raised.append(error)

    thread = threading.Thread(target=run, name="logger", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        return f"it took longer than {timeout:g} s"
    return f"{type(raised[0]).__name__}: {str(raised[0])[:300]}" if raised else None
