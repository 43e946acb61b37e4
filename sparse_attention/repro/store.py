"""Finished cells on disk: one folder each, safe with many writers, never half-written.

    <root>/cells/<task>/<mapping>/<cell_id>/
        config.yaml  status.json  metrics.json  curves.csv  predictions.jsonl.gz  attention.safetensors
        provenance.json  log.txt  checkpoints/

`metrics.json` is renamed into place last: its presence means done. A writer holds `claim` (created exclusively, touched
as a heartbeat); a claim whose process is gone, or that has not been touched for `STALE_SECONDS`, may be taken over, and
the new owner resumes from the checkpoints it finds.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import logging
import os
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
STALE_SECONDS = 180.0
HEARTBEAT_SECONDS = 15.0


class StoreError(RuntimeError):
    """The store could not be written or read; the message names the file and the next step."""


class Busy(StoreError):
    """Another process is working on this cell."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside, flush, rename: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> StoreError:
    """An OSError as a sentence with the next step."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"no space left while writing {path}; finished cells are whole. Free some space and run the same command again"
        )
    if error.errno in (errno.EACCES, errno.EROFS):
        return StoreError(f"{path} cannot be written ({error.strerror}); set paths.outputs to a folder of yours")
    return StoreError(f"{path} cannot be written ({error.strerror or error})")


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The parsed file, or None when it is absent or unreadable (it is then treated as absent)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


class Store:
    """All cells below `root`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def entry(self, task: str, mapping: str, cell_id: str) -> Entry:
        return Entry(self.root / "cells" / task / mapping / cell_id)

    def __iter__(self) -> Iterator[Entry]:
        for path in sorted((self.root / "cells").glob("*/*/*/config.yaml")):
            yield Entry(path.parent)


class Entry:
    """One cell's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    def metrics(self) -> dict[str, Any] | None:
        """What the cell measured, None unless it is finished."""
        return read_json(self.path("metrics.json"))

    def state(self) -> str:
        """queued, running, done, failed or lost (was running, its process is gone)."""
        if self.metrics() is not None:
            return "done"
        status = read_json(self.path("status.json"))
        if status is None:
            return "queued"
        if status["state"] == "running" and not self._claim_alive():
            return "lost"
        return status["state"]

    def status(self) -> dict[str, Any]:
        return (read_json(self.path("status.json")) or {}) | {"state": self.state()}

    def set_status(self, state: str, **facts: Any) -> None:
        """Replace the status; the number of the attempt stays unless given."""
        before = read_json(self.path("status.json")) or {}
        kept = {"attempt": before["attempt"]} if "attempt" in before else {}
        write_json(self.path("status.json"), {"state": state, "time": time.time(), **kept, **facts})

    def predictions(self) -> list[dict[str, Any]]:
        """One record per test example; empty when the file is absent or damaged (the latter is logged)."""
        path = self.path("predictions.jsonl.gz")
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                return [json.loads(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, EOFError, ValueError, zlib.error) as error:
            log.warning("%s is damaged (%s): no significance and no samples from it", path, error)
            return []

    def write_predictions(self, records: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_atomic(self.path("predictions.jsonl.gz"), gzip.compress(text.encode(), mtime=0))

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Own the cell while the block runs. Raises `Busy` when another live process owns it."""
        claim = self.path("claim")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for _ in range(5):
                try:
                    handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                    break
                except FileExistsError:
                    if self._claim_alive():
                        raise Busy(f"{self.folder} is being worked on by {_owner(claim)}") from None
                    self._take_away(claim)
            else:
                raise Busy(f"{self.folder}: other processes keep claiming it")
        except OSError as error:
            raise explain(error, claim) from error
        mine = {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        with os.fdopen(handle, "w") as file:
            json.dump(mine, file)
        for stale in self.folder.glob("claim.stale.*"):
            stale.unlink(missing_ok=True)
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(HEARTBEAT_SECONDS):
                with contextlib.suppress(OSError):
                    os.utime(claim)

        thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            if (read_json(claim) or {}).get("token") == mine["token"]:
                claim.unlink(missing_ok=True)

    @staticmethod
    def _take_away(claim: Path) -> None:
        """Remove a stale claim; of several successors one wins, and a claim made in between is put back."""
        judged = read_json(claim)
        aside = claim.with_name(f"claim.stale.{uuid.uuid4().hex[:8]}")
        try:
            claim.rename(aside)
        except FileNotFoundError:
            return
        if read_json(aside) != judged:
            with contextlib.suppress(FileExistsError):
                os.link(aside, claim)

    def _claim_alive(self) -> bool:
        claim = self.path("claim")
        owner = read_json(claim)
        try:
            age = time.time() - claim.stat().st_mtime
        except FileNotFoundError:
            return False
        if owner is None:  # being written just now, or its writer died between create and write
            return age < HEARTBEAT_SECONDS
        if owner["host"] == socket.gethostname():
            return _process_alive(owner["pid"])
        return age < STALE_SECONDS


def _process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # a killed child that nobody has waited for yet is not alive
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def _owner(claim: Path) -> str:
    owner = read_json(claim) or {}
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
