"""One writer a folder: an exclusive file, touched as a heartbeat, that may be taken from a process which is gone.

docs/store.md says what is assumed of the file system. A claim appears whole: it is written beside and linked into place,
which fails where there is one. Files are looked at through an open handle: NFS asks its server when a file is opened, and
answers `stat` from memory.
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
NAME = "claim"
TAKEN = "was taken over by another process, because this one had not been heard of for long"


class Busy(StoreError):
    """Another process is working on this folder."""


class Seen(NamedTuple):
    """A claim as it was at one moment: what it says (None: nothing that can be read), which file it is, when it was touched."""

    holder: dict[str, Any] | None
    file: int
    touched: float


def owner(pid: int | None = None) -> dict[str, Any]:
    """Who holds a claim. Host, boot and namespace say whether its process can be asked for; pid and start time which it is."""
    pid = pid or os.getpid()
    start = facts[19] if (facts := _stat(pid)) else None
    return {**_here(), "pid": pid, "start": start, "token": uuid.uuid4().hex}


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Callable[[], None]]:
    """Own `folder` while the block runs. Raises `Busy` when another live process owns it.

    The block gets a function that raises `Busy` when the claim was taken over, for a process that was away for long.
    """
    claim, mine = folder / NAME, owner()
    draft = folder / f".{NAME}.{mine['token'][:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(mine))
        try:
            _take(draft, claim)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise explain(error, claim) from error
    for _ in os.walk(folder):  # NFS remembers what a folder did not hold until the folder is opened again
        pass
    stop = threading.Event()
    threading.Thread(target=_beat, args=(claim, mine["token"], stop), daemon=True, name="heartbeat").start()

    def still() -> bool:
        return (read_json(claim) or {}).get("token") == mine["token"]

    def check() -> None:
        if not still():
            raise Busy(f"{folder} {TAKEN}")

    try:
        yield check
    finally:
        stop.set()
        if still():
            claim.unlink(missing_ok=True)


def _take(draft: Path, claim: Path) -> None:
    """Make `draft` the claim. Raises `Busy`."""
    for _ in range(5):
        try:
            os.link(draft, claim)
            return
        except FileExistsError:
            with open(draft, "rb") as file:
                if os.fstat(file.fileno()).st_nlink == 2:  # it was made, and the server's first answer got lost
                    return
        except FileNotFoundError:
            raise Busy(f"{claim.parent} has just been moved aside by another process") from None
        if (seen := look(claim)) is None:
            continue  # given up in this moment
        if alive(claim.parent, seen) or _touched(claim):
            who = seen.holder or {}
            where = f"process {who.get('pid', '?')} on {who.get('host', '?')}"
            raise Busy(f"{claim.parent} is being worked on by {where}")
        _take_away(claim, seen)
    raise Busy(f"{claim.parent}: other processes keep claiming it")


def _beat(claim: Path, token: str, stop: threading.Event) -> None:
    """Touch the claim; a process that was away for so long that another has it now must not write any more."""
    while not stop.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):  # the server is away: the claim may be whole
            if (read_json(claim) or {}).get("token") == token:
                os.utime(claim)
            elif not stop.is_set():
                signals.ask(f"{claim.parent} {TAKEN}", save=False)
                return


def look(claim: Path) -> Seen | None:
    """The claim as it is now; None when there is none."""
    try:
        with open(claim, "rb") as file:
            facts, content = os.fstat(file.fileno()), file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        holder = None
    return Seen(holder if isinstance(holder, dict) else None, facts.st_ino, facts.st_mtime)


def alive(folder: Path, seen: Seen | None = None) -> bool:
    """Whether a process that still runs has claimed the folder: the holder of `seen`, its claim as it was looked at."""
    if (seen := seen or look(folder / NAME)) is None:
        return False
    here, holder = _here(), seen.holder or {}
    pid: Any = holder.get("pid")
    # anything else names no process: 0 and -1 would be whole groups of them
    possible = type(pid) is int and 0 < pid < 2**31
    if possible and None not in here.values() and all(holder.get(k) == v for k, v in here.items()):
        return _process_alive(pid, holder.get("start"))
    # a claim that cannot be read is no claim of ours; a negative age: a clock has jumped
    return abs(now(folder) - seen.touched) < (STALE_SECONDS if holder else HEARTBEAT_SECONDS)


def now(folder: Path) -> float:
    """The time by the clock that stamps the files of a folder, which on a network is another machine's."""
    probe = folder / f".clock.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # a folder that may only be read
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _touched(claim: Path) -> bool:
    """Whether a claim from the future, whose age says nothing, gets another time while we look."""
    before = look(claim)
    if before is None or before.touched - now(claim.parent) <= STALE_SECONDS:
        return False
    time.sleep(1.5 * HEARTBEAT_SECONDS)
    after = look(claim)
    return after is not None and after.touched != before.touched


def _take_away(claim: Path, seen: Seen) -> None:
    """Remove the claim that was `seen`, whose holder was found dead.

    Who makes the file named by that claim's token may remove that claim and no other; so a claim that another successor
    has made since stays. Behind a successor that died on the way the next one in the row may, after `STALE_SECONDS`; nobody
    removes another's file while the claim is there, so two never do it at once.
    """
    token = (seen.holder or {}).get("token")
    safe = isinstance(token, str) and re.fullmatch(r"[\w-]{1,64}", token)  # else it cannot be part of a file's name
    row = f"{NAME}.stale.{token if safe else seen.file}"
    for place in itertools.count():
        taking = claim.with_name(f"{row}.{place}")
        try:
            os.close(os.open(taking, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            before = look(taking)
            if before is None or abs(now(claim.parent) - before.touched) <= STALE_SECONDS:
                time.sleep(0.05)
                return
    found = look(claim)
    if found is not None and found[:2] == seen[:2]:
        claim.unlink(missing_ok=True)
    for left in claim.parent.glob(f"{row}.*"):
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
    # a killed child that nobody has waited for yet is not alive, nor is one whose number another process has now
    return facts[0] != "Z" and start in (None, facts[19])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _here() -> dict[str, str | None]:
    """What two processes must have in common for one to be able to ask for the other.

    Containers of one host may share its name and always share its boot; each has process numbers of its own.
    """
    boot = namespace = None
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "namespace": namespace}
