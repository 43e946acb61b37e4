"""Lock files that allow one writer per folder: a heartbeat touches the lock, and a dead process loses its lock.

docs/reference/store.md has the rules and the assumptions about the file system. filelock's leases (tried with 4.2.12) have a
heartbeat, an owner's proof and a hand-over too, but they break three rules. A dead owner's lock is taken by exchanging two
names, which NFS refuses, so there it stays forever; so does a lock whose process was killed between creating and writing
it. A live owner on another machine with the same host name counts as dead, because boots are not compared first.

A lock is never incomplete: it is written to a temporary file and hard-linked into place, which fails if a lock exists
there. Lock files are read through an open handle, because NFS asks the server when a file is opened but answers `stat`
from its cache.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from repro import signals
from repro.files import StoreError, explain, read_json

STALE_SECONDS = 180.0
HEARTBEAT_SECONDS = 15.0
NAME = "claim"  # name of the lock file, unchanged since the first stores
TAKEN = "was taken over by another process, because this one had not been heard of for long"


class Busy(StoreError):
    """Another process is working on this folder."""


class Seen(NamedTuple):
    """A lock at one moment: its content (None if unreadable), its inode, and the time of its last touch."""

    holder: dict[str, Any] | None
    file: int
    touched: float


def owner(pid: int | None = None) -> dict[str, Any]:
    """The content of this process's lock.

    Host, boot and namespace show whether another process can check if the holder is alive; pid and start time identify
    the holder.
    """
    pid = pid or os.getpid()
    start = facts[19] if (facts := _stat(pid)) else None
    return {**_here(), "pid": pid, "start": start, "token": uuid.uuid4().hex}


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[Callable[[], None]]:
    """Lock `folder` while the block runs. Raises `Busy` if another live process holds the lock.

    The block receives a function that raises `Busy` if another process has taken the lock, which can happen when this
    process was suspended for a long time.
    """
    lock, mine = folder / NAME, owner()
    draft = folder / f".{NAME}.{mine['token'][:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(mine))
        try:
            _take(draft, lock)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise explain(error, lock) from error
    for _ in os.walk(folder):  # NFS caches that a file is absent until its folder is opened again
        pass
    stop = threading.Event()
    threading.Thread(target=_beat, args=(lock, mine["token"], stop), daemon=True, name="heartbeat").start()

    def still() -> bool:
        return (read_json(lock) or {}).get("token") == mine["token"]

    def check() -> None:
        if not still():
            raise Busy(f"{folder} {TAKEN}")

    try:
        yield check
    finally:
        stop.set()
        if still():
            lock.unlink(missing_ok=True)


def _take(draft: Path, lock: Path) -> None:
    """Make the file `draft` the lock. Raises `Busy` if another process holds the lock."""
    for _ in range(5):
        try:
            os.link(draft, lock)
            return
        except FileExistsError:
            with open(draft, "rb") as file:
                if os.fstat(file.fileno()).st_nlink == 2:  # the link was made, but the server's first answer was lost
                    return
        except FileNotFoundError:
            raise Busy(f"{lock.parent} has just been moved aside by another process") from None
        if (seen := look(lock)) is None:
            continue  # the lock was released just now
        if alive(lock.parent, seen) or _touched(lock):
            who = seen.holder or {}
            where = f"process {who.get('pid', '?')} on {who.get('host', '?')}"
            raise Busy(f"{where} is working on {lock.parent}")
        _take_away(lock, seen)
    raise Busy(f"{lock.parent}: other processes keep taking its lock")


def _beat(lock: Path, token: str, stop: threading.Event) -> None:
    """Touch the lock regularly.

    If another process has taken the lock because this process was suspended for a long time, ask this process to stop
    writing.
    """
    while not stop.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):  # if the server does not answer, the lock may still be ours
            if (read_json(lock) or {}).get("token") == token:
                os.utime(lock)
            elif not stop.is_set():
                signals.ask(f"{lock.parent} {TAKEN}", save=False)
                return


def look(lock: Path) -> Seen | None:
    """The lock as it is now, or None if there is no lock."""
    try:
        with open(lock, "rb") as file:
            facts, content = os.fstat(file.fileno()), file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        holder = None
    return Seen(holder if isinstance(holder, dict) else None, facts.st_ino, facts.st_mtime)


def alive(folder: Path, seen: Seen | None = None) -> bool:
    """Whether the process that locked the folder is still running; `seen` is the lock if it has already been read."""
    if (seen := seen or look(folder / NAME)) is None:
        return False
    here, holder = _here(), seen.holder or {}
    pid: Any = holder.get("pid")
    # other values do not name a process: 0 and -1 would be whole groups of processes
    possible = type(pid) is int and 0 < pid < 2**31
    if possible and None not in here.values() and all(holder.get(k) == v for k, v in here.items()):
        return _process_alive(pid, holder.get("start"))
    # the holder cannot be checked, so the lock's age decides; a negative age means that a clock has jumped
    return abs(now(folder) - seen.touched) < (STALE_SECONDS if holder else HEARTBEAT_SECONDS)


def now(folder: Path) -> float:
    """The current time on the clock of the folder's file system; on a network, this is another machine's clock."""
    probe = folder / f".clock.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # the folder is read-only
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _touched(lock: Path) -> bool:
    """Whether a lock whose time is in the future gets touched while we wait; the age of such a lock is meaningless."""
    before = look(lock)
    if before is None or before.touched - now(lock.parent) <= STALE_SECONDS:
        return False
    time.sleep(1.5 * HEARTBEAT_SECONDS)
    after = look(lock)
    return after is not None and after.touched != before.touched


def _take_away(lock: Path, seen: Seen) -> None:
    """Remove the lock `seen`, whose holder is dead.

    The process that creates a file named after the lock's token may remove that lock and no other, so the lock of
    another successor is safe. If this process dies before it has finished, the next one may continue after
    `STALE_SECONDS`. No process removes such a file while the lock exists, so two processes never remove the lock at the
    same time.
    """
    token = (seen.holder or {}).get("token")
    safe = isinstance(token, str) and re.fullmatch(r"[\w-]{1,64}", token)  # safe to use in a file name
    row = f"{NAME}.stale.{token if safe else seen.file}"
    for place in itertools.count():
        taking = lock.with_name(f"{row}.{place}")
        try:
            os.close(os.open(taking, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            before = look(taking)
            if before is None or abs(now(lock.parent) - before.touched) <= STALE_SECONDS:
                time.sleep(0.05)
                return
    found = look(lock)
    if found is not None and found[:2] == seen[:2]:
        lock.unlink(missing_ok=True)
    for left in lock.parent.glob(f"{row}.*"):
        left.unlink(missing_ok=True)


def _process_alive(pid: int, start: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not (facts := _stat(pid)):
        return True
    # the holder is dead if it is a zombie, or if its number now belongs to another process
    return facts[0] != "Z" and start in (None, facts[19])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat, starting with the state; empty if there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _here() -> dict[str, str | None]:
    """The host, boot id and process namespace; two processes that share all three can check whether the other is alive.

    Containers on one host share its boot id and perhaps its name, but each container has its own process numbers.
    """
    boot = namespace = None
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "namespace": namespace}
