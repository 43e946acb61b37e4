"""One writer per folder: a POSIX lock (`fcntl.lockf`) on the file `claim` in it.

The kernel, or the server of a network file system, returns the lock when its process ends in any way. So nobody has to
find out whether an owner is dead, and no clocks are compared. docs/reference/store.md names the file systems.

The file stays after the lock is returned: if it were removed, two processes could each lock a file of that name. Its
content tells people who holds the lock. A process would return its lock by closing any handle of the file, so a process
that holds a lock does not open the file again.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from repro.errors import StoreError
from repro.files import explain, read_json

NAME = "claim"  # name of the lock file, unchanged since the first stores
ATTEMPTS, PAUSE = 10, 0.02  # a process that only looks holds the lock for a moment; seconds between two attempts
_HELD: set[Path] = set()  # the locks of this process, which a fork of it does not have
os.register_at_fork(after_in_child=_HELD.clear)


class Busy(StoreError):
    """Another process is working on this folder."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock `folder` while the block runs.

    Raises:
        Busy: another process, or another part of this one, holds the lock.
        StoreError: the folder cannot be written, or its file system has no locks.
    """
    lock = folder.resolve() / NAME
    if lock in _HELD:
        raise Busy(f"this process, {os.getpid()}, is working on {folder}; wait until it ends")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise explain(error, lock) from error
    try:
        _take(file, lock)
        try:
            _HELD.add(lock)
            os.write(file, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
            for _ in os.walk(folder):  # NFS caches that a file is absent until its folder is opened again
                pass
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        _HELD.discard(lock)
        os.close(file)


def _take(file: int, lock: Path) -> None:
    for attempt in range(ATTEMPTS):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)  # what a killed owner has left
            break
        except (BlockingIOError, PermissionError):
            if attempt == ATTEMPTS - 1:
                who = read_json(lock) or {}
                where = f"process {who.get('pid', '?')} on {who.get('host', '?')}"
                raise Busy(f"{where} is working on {lock.parent}; wait until it ends") from None
            time.sleep(PAUSE)
        except OSError as error:
            raise explain(error, lock) from error
    try:
        same = os.path.samestat(os.fstat(file), os.stat(lock))
    except FileNotFoundError:
        same = False
    if not same:
        raise Busy(f"{lock.parent} has just been moved aside by another process; run the command again")


def held(folder: Path) -> bool:
    """Whether a process holds the lock of the folder."""
    if (lock := folder.resolve() / NAME) in _HELD:
        return True
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            with open(lock, "rb") as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
    return False
