"""Extra loggers (e.g. wandb). A logger that fails or hangs is dropped with one message, and the training continues.

A logger has
    name                         its name
    timeout                      the number of seconds that each call below may take
    said (optional)              what to tell the user after start
    start()                      called before the training; steps that may fail belong here
    curve(rows)                  receives all rows of the learning curve so far
    finish(results, state)       receives a `Results` and "done", or None and "failed" or "stopped"
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any


class Loggers:
    """The loggers of a running cell, created by `make`. No method raises an error; error messages go to `note`."""

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

    def finish(self, results: Any, state: str) -> None:
        self._tell("finish", results, state)

    def _tell(self, what: str, *arguments: Any) -> None:
        for logger in list(self.active):
            if why := _trouble(getattr(logger, what), arguments, logger.timeout):
                self.active.remove(logger)
                self.note(f"logger {logger.name} failed in {what} and is switched off: {why}")
            elif what == "start" and (said := getattr(logger, "said", "")):
                self.note(f"logger {logger.name}: {said}")


def _trouble(call: Callable[..., None], arguments: Sequence[Any], timeout: float) -> str | None:
    """Make a call; returns why it failed or that it took longer than `timeout` seconds, or None if it succeeded.

    The call runs in a thread, because a call that waits for the network cannot be stopped.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # includes SystemExit, which would go unnoticed in this thread
            logging.getLogger("cell").debug("a logger failed", exc_info=True)
            raised.append(error)

    thread = threading.Thread(target=run, name="logger", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        return f"it took longer than {timeout:g} s"
    return f"{type(raised[0]).__name__}: {str(raised[0])[:300]}" if raised else None
