"""Files that are whole or absent: written beside, flushed, renamed; and their hashes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class StoreError(RuntimeError):
    """The store could not be written or read; the message names the file and the next step."""


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


@contextlib.contextmanager
def usable(folder: Path, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Make one sentence that names the folder of whatever its files cause while the block runs: a cell may come from anyone.

    Args:
        passing: errors that are not the folder's fault.

    Raises:
        StoreError: in place of any other error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (StoreError, MemoryError, *passing)):
            raise
        said = " ".join(str(error).split())
        told = f"{said} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {said}"
        raise StoreError(f"{folder} cannot be used ({told[:300]}); get it again, or train it anew") from error


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def without_paths(value: Any) -> Any:
    """A configuration's value with the names of files and folders in place of their paths."""
    if isinstance(value, dict):
        return {k: without_paths(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(v) for v in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value


def read_json(path: Path) -> dict[str, Any] | None:
    """The parsed object, or None when the file is absent, unreadable or holds anything else (then it counts as absent)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


SEAL = "checksum"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the hash of the rest of it."""
    rest = {k: v for k, v in json.loads(json.dumps(value)).items() if k != SEAL}
    return rest | {SEAL: hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def broken_seal(value: Mapping[str, Any]) -> str:
    """What is wrong with what `sealed` wrote; empty: nothing."""
    if SEAL not in value:
        return "has no checksum (an earlier version wrote it)"
    return "" if value[SEAL] == sealed(value)[SEAL] else "is not what was written: its checksum differs"


def archive_damage(path: Path) -> str | None:
    """What is wrong with a zip archive, as torch's checkpoints are: every record against its CRC-32. Raises OSError."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{bad} is not what was written" if bad else None


_HASHES: dict[Path, tuple[tuple[int, int, int], str]] = {}


def sha256_of(path: Path) -> str:
    """Hash of a file's content; taken again only when its size, time or inode has changed."""
    stat = path.stat()
    mark = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    known = _HASHES.get(path)
    if known is None or known[0] != mark:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        known = _HASHES[path] = (mark, digest.hexdigest())
    return known[1]
