"""Stop a running cell, on a signal or because the command that started it is gone.

A scheduler sends SIGTERM, SIGUSR1 or SIGUSR2 before it takes a machine away. Inside `listening`, such a signal raises
`Stopped` in the main thread. Inside `deferred`, the signal is held back until the block reaches a point where it can
save; there the block checks `asked` and calls `obey`.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(KeyboardInterrupt):
    """The process was asked to stop; its work can be resumed."""


_STATE = SimpleNamespace(asked="", listening=False, deferring=False)  # asked: the reason


def asked() -> str:
    """Why this process was asked to stop after `listening` began; empty if it was not."""
    return _STATE.asked


def obey() -> None:
    """Raise `Stopped` if the process was asked to stop."""
    if _STATE.asked:
        raise Stopped(_STATE.asked)


def ask(why: str) -> None:
    """Ask the main thread to stop; can be called from any thread. Outside `listening`, the reason is only logged."""
    if not _STATE.listening:
        logging.getLogger("cell").error("%s, and this process goes on", why)
        return
    _STATE.asked = why
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Make signals raise `Stopped` while the block runs. Has no effect outside the main thread or in a nested block."""
    if threading.current_thread() is not threading.main_thread() or _STATE.listening:
        yield
        return

    def heard(number: int, frame: object) -> None:
        _STATE.asked = _STATE.asked or f"it was asked to stop by {signal.Signals(number).name}"
        if not _STATE.deferring:
            obey()

    before = {number: signal.signal(number, heard) for number in SIGNALS}
    _STATE.asked, _STATE.listening = "", True
    try:
        yield
    finally:
        _STATE.listening = False
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Hold signals back until the block calls `obey`."""
    before, _STATE.deferring = _STATE.deferring, True
    try:
        yield
    finally:
        _STATE.deferring = before
