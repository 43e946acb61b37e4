"""Atomic writing of files and folders (complete or absent), and file checksums."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repro.files import broken_seal, disk_full, publish, sealed
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.read.formats import opened

NO_SPACE = "free some space or set another folder for the downloads (paths.data=FOLDER), then run the same command"
_NOT_WRITABLE = {errno.EACCES, errno.EROFS, errno.EPERM}


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes. Raises DataError, naming the file, if it cannot be read."""
    with opened(path, unpack=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify(path: Path, sha256: str | None = None, size: int | None = None, retry: str = "", name: str = "") -> None:
    """Raise `DataError` if `path` does not have the expected sha256 or size in bytes; None means unknown.

    The message names the file, or `name` if given. Raises DataUnavailable if the file is missing.
    """
    what, retry = name or path.name, retry or f"delete {path} and fetch it again"
    if not path.is_file():
        raise DataUnavailable(f"the file {what} is missing", str(path), retry)
    found_size = path.stat().st_size
    if size is not None and found_size != size:
        kind = "truncated" if found_size < size else "too long"
        raise DataError(f"{what} is {kind}", f"{path}: expected {size:,} bytes, got {found_size:,}", retry)
    if sha256 is not None and (found := sha256_of(path)) != sha256:
        raise DataError(f"{what} is damaged", f"{path}: expected sha256 {sha256}, got {found}", retry)


def check_folder(folder: Path, write: bool = False) -> None:
    """Create a folder for downloads. DataError if this fails or, with `write`, if the folder is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if write:
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        what = "cannot be written" if folder.is_dir() else "is not a folder" if folder.exists() else "cannot be made"
        step = "set another folder for the downloads (paths.data=FOLDER, --root FOLDER)"
        raise DataError(f"the folder {folder} {what}", str(error), step) from error


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn a full-disk error or a permission error into a `DataError` about `folder`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DataError):
            raise
        if full := disk_full(error):
            there = next(place for place in (folder, *folder.parents) if place.exists())
            where = f"{folder} ({shutil.disk_usage(there).free / 1e6:,.0f} MB free): {error}"
            raise DataError(full, where, NO_SPACE) from error
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            what = f"the folder {folder} cannot be written"
            raise DataError(what, str(error), "set another folder (paths.data=FOLDER)") from error
        raise


def publish_file(path: Path, data: bytes | str) -> None:
    """Write a file, completely or not at all."""
    with writing_to(path.parent):
        publish(path, data.encode() if isinstance(data, str) else data)


def remembered(path: Path, key: str, compute: Callable[[], Any]) -> Any:
    """The JSON value `compute()`; an earlier result for this key is read from `path` instead.

    A damaged file is ignored. If `path` cannot be written, the value is computed each time.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if broken_seal(kept):
            raise ValueError("computed again")
        return kept[key]
    except (OSError, ValueError, KeyError, TypeError):
        value = compute()
        with suppress(DataError):
            publish_file(path, json.dumps(sealed({key: value})))
        return value


@contextmanager
def publish_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`; rename it to `folder` on success.

    If another process has finished first, its result is kept and this one is discarded; both are made from the same
    input.
    """
    with writing_to(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield temporary
            temporary.chmod(0o755)
            try:
                os.rename(temporary, folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create the file `path` and hold an exclusive lock on it, so that one process per machine fetches at a time."""
    import fcntl

    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
