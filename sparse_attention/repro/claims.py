"""One writer a folder: an exclusive file, touched as a heartbeat, that may be taken from a process which is gone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparse_attention.repro.files import StoreError, explain, read_json

STALE_SECONDS = 180.0
HEARTBEAT_SECONDS = 15.0
NAME = "claim"


class Busy(StoreError):
    """Another process is working on this folder."""


def owner(pid: int | None = None) -> dict[str, Any]:
    """Who holds a claim: host and boot say whether its process can be asked for, pid and start time which one it is."""
    pid = pid or os.getpid()
    start = facts[19] if (facts := _stat(pid)) else None
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "start": start, "token": uuid.uuid4().hex}


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Own `folder` while the block runs. Raises `Busy` when another live process owns it."""
    claim = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(5):
            try:
                handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                break
            except FileExistsError:
                holder = read_json(claim)
                if alive(folder, holder) or _touched(claim):
                    who = holder or {}
                    where = f"process {who.get('pid', '?')} on {who.get('host', '?')}"
                    raise Busy(f"{folder} is being worked on by {where}") from None
                _take_away(claim, holder)
        else:
            raise Busy(f"{folder}: other processes keep claiming it")
    except OSError as error:
        raise explain(error, claim) from error
    mine = owner()
    with os.fdopen(handle, "w") as file:
        json.dump(mine, file)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(claim)

    threading.Thread(target=beat, daemon=True, name="heartbeat").start()
    try:
        yield
    finally:
        stop.set()
        if (read_json(claim) or {}).get("token") == mine["token"]:
            claim.unlink(missing_ok=True)


def alive(folder: Path, holder: dict[str, Any] | None = None) -> bool:
    """Whether a process that still runs has claimed the folder: `holder`, as read from its claim."""
    claim = folder / NAME
    holder = holder or read_json(claim)
    if holder and holder.get("host") == socket.gethostname() and holder.get("boot") == _boot():
        return _process_alive(int(holder.get("pid", 0)), holder.get("start"))
    try:
        age = now(folder) - claim.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return False
    # no holder: being written just now, or its writer died between create and write; a negative age: a clock has jumped
    return abs(age) < (STALE_SECONDS if holder else HEARTBEAT_SECONDS)


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
    with contextlib.suppress(FileNotFoundError):
        before = claim.stat().st_mtime
        if before - now(claim.parent) > STALE_SECONDS:
            time.sleep(1.5 * HEARTBEAT_SECONDS)
            return claim.stat().st_mtime != before
    return False


def _take_away(claim: Path, holder: dict[str, Any] | None) -> None:
    """Remove the claim of `holder`, who was found dead.

    Who makes the file named by that claim's token may remove that claim and no other; so a claim that another successor
    has made since stays. A successor that died on the way is passed over after `STALE_SECONDS`.
    """
    taking = claim.with_name(f"{NAME}.stale.{(holder or {}).get('token', 'unwritten')}")
    try:
        os.close(os.open(taking, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if abs(now(claim.parent) - taking.stat().st_mtime) > STALE_SECONDS:
                taking.unlink()
        time.sleep(0.05)
        return
    try:
        if read_json(claim) == holder:
            claim.unlink(missing_ok=True)
    finally:
        taking.unlink(missing_ok=True)


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


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
