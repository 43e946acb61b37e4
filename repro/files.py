"""Files that are complete or absent (written to a temporary file, flushed, renamed), and their hashes."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class StoreError(RuntimeError):
    """The store could not be written or read; the message names the file and the next step."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write a temporary file, flush and rename it: a reader sees the old file or the new one, never a part."""
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
    """An OSError as an error message with the next step."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"no space left while writing {path}; finished cells are safe. Free some space and run the same command again"
        )
    if error.errno in (errno.EACCES, errno.EROFS):
        return StoreError(
            f"{path} cannot be written ({error.strerror}); set paths.outputs to a folder you can write to"
        )
    return StoreError(f"{path} cannot be written ({error.strerror or error})")


@contextlib.contextmanager
def usable(folder: Path, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error that a folder's files cause in the block into one message that names the folder; its files are untrusted.

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
        raise StoreError(f"{folder} cannot be used ({told[:300]}); copy it again, or train it again") from error


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def without_paths(value: Any) -> Any:
    """A value of a configuration with each path replaced by the name of its file or folder."""
    if isinstance(value, dict):
        return {k: without_paths(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(v) for v in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value


def read_json(path: Path) -> dict[str, Any] | None:
    """The parsed object; None when the file is absent or does not hold a JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


SEAL = "checksum"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of its content."""
    rest = {k: v for k, v in json.loads(json.dumps(value)).items() if k != SEAL}
    return rest | {SEAL: hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def broken_seal(value: Mapping[str, Any]) -> str:
    """What is wrong with the checksum that `sealed` wrote; empty: nothing."""
    if SEAL not in value:
        return "has no checksum (written by an earlier version)"
    return "" if value[SEAL] == sealed(value)[SEAL] else "is not what was written: its checksum differs"


def archive_damage(path: Path) -> str | None:
    """What is wrong with a zip archive such as a torch checkpoint, by the CRC-32 of its records. Raises OSError."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{bad} is not what was written" if bad else None


_HASHES: dict[Path, tuple[tuple[int, int, int], str]] = {}


def sha256_of(path: Path) -> str:
    """Hash of a file's content; computed again only when its size, time or inode has changed."""
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
