"""One writer per folder: a lock file, touched as a heartbeat, that may be taken from a process that has died.

docs/store.md has the rules and what they assume of the file system. Written here rather than taken from a library (filelock and
others) because a lock must work over NFS, be released when its process dies, and go to exactly one successor.

A lock appears complete: it is written to a temporary file and hard-linked into place, which fails where there is a lock. Lock files
are read through an open handle: NFS asks its server when a file is opened, and answers `stat` from its cache.
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
NAME = "claim"  # of the lock file, as stores have always had it
TAKEN = "was taken over by another process, because this one had not been heard of for long"


class Busy(StoreError):
    """Another process is working on this folder."""


class Seen(NamedTuple):
    """A lock at one moment: its content (None: unreadable), its inode, and when it was touched."""

    holder: dict[str, Any] | None
    file: int
    touched: float


def owner(pid: int | None = None) -> dict[str, Any]:
    """The content of this process's lock. Host, boot and namespace tell whether another process can check it; pid and start time which one it is."""
    pid = pid or os.getpid()
    start = facts[19] if (facts := _stat(pid)) else None
    return {**_here(), "pid": pid, "start": start, "token": uuid.uuid4().hex}


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[Callable[[], None]]:
    """Own `folder` while the block runs. Raises `Busy` when another live process owns it.

    The block gets a function that raises `Busy` if another process has taken the lock, because this one was suspended for long.
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
    for _ in os.walk(folder):  # NFS caches which files a folder lacks until the folder is opened again
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
    """Make `draft` the lock. Raises `Busy`."""
    for _ in range(5):
        try:
            os.link(draft, lock)
            return
        except FileExistsError:
            with open(draft, "rb") as file:
                if os.fstat(file.fileno()).st_nlink == 2:  # it was made, and the server's first answer was lost
                    return
        except FileNotFoundError:
            raise Busy(f"{lock.parent} has just been moved aside by another process") from None
        if (seen := look(lock)) is None:
            continue  # released at this moment
        if alive(lock.parent, seen) or _touched(lock):
            who = seen.holder or {}
            where = f"process {who.get('pid', '?')} on {who.get('host', '?')}"
            raise Busy(f"{where} is working on {lock.parent}")
        _take_away(lock, seen)
    raise Busy(f"{lock.parent}: other processes keep taking its lock")


def _beat(lock: Path, token: str, stop: threading.Event) -> None:
    """Touch the lock. If another process has taken it, because this one was suspended for long, this one must stop writing."""
    while not stop.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):  # the server does not answer: the lock may still be ours
            if (read_json(lock) or {}).get("token") == token:
                os.utime(lock)
            elif not stop.is_set():
                signals.ask(f"{lock.parent} {TAKEN}", save=False)
                return


def look(lock: Path) -> Seen | None:
    """The lock as it is now; None without a lock."""
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
    """Whether the process that locked the folder still runs; `seen`: the lock, if it was read already."""
    if (seen := seen or look(folder / NAME)) is None:
        return False
    here, holder = _here(), seen.holder or {}
    pid: Any = holder.get("pid")
    # anything else names no process: 0 and -1 would be whole groups of them
    possible = type(pid) is int and 0 < pid < 2**31
    if possible and None not in here.values() and all(holder.get(k) == v for k, v in here.items()):
        return _process_alive(pid, holder.get("start"))
    # an unreadable lock is not ours; a negative age means that a clock has jumped
    return abs(now(folder) - seen.touched) < (STALE_SECONDS if holder else HEARTBEAT_SECONDS)


def now(folder: Path) -> float:
    """The time by the clock of the folder's file system; on a network that is another machine's clock."""
    probe = folder / f".clock.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # a read-only folder
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _touched(lock: Path) -> bool:
    """Whether a lock with a time in the future is touched while we wait: its age tells nothing."""
    before = look(lock)
    if before is None or before.touched - now(lock.parent) <= STALE_SECONDS:
        return False
    time.sleep(1.5 * HEARTBEAT_SECONDS)
    after = look(lock)
    return after is not None and after.touched != before.touched


def _take_away(lock: Path, seen: Seen) -> None:
    """Remove the lock that was `seen`, whose holder is dead.

    The process that creates the file named after the lock's token may remove that lock and no other, so the lock of another
    successor stays. If a successor dies before it is done, the next one may go on after `STALE_SECONDS`. Nobody removes such a
    file while the lock exists, so two processes never remove the lock at once.
    """
    token = (seen.holder or {}).get("token")
    safe = isinstance(token, str) and re.fullmatch(r"[\w-]{1,64}", token)  # else it must not be part of a file name
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
    # a zombie is not alive, nor is a process whose number another process has now
    return facts[0] != "Z" and start in (None, facts[19])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _here() -> dict[str, str | None]:
    """What two processes must share so that one can check whether the other runs.

    Containers on one host share its boot id and perhaps its name, but each has its own process numbers.
    """
    boot = namespace = None
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "namespace": namespace}
