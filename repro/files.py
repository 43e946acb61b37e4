"""Read, write and hash files. New content goes to a temporary file that is renamed, so no file is left half-written."""

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from repro.errors import StoreError

_NO_SPACE = f"{os.strerror(errno.ENOSPC)}|requested and \\d+ written"  # the second: NumPy's


def publish(path: Path, data: bytes) -> None:
    """Write a temporary file, flush it and rename it, so that readers see the old or the new file, never a part."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """`publish` a file. Raises StoreError, with the next step, if it cannot be written."""
    try:
        publish(path, data)
    except OSError as error:
        raise explain(error, path) from error


def disk_full(error: BaseException | None) -> str:
    """ "the disk is full" or "your disk quota is used up" if an error, or one that it came from, says so; else "".

    Libraries wrap this error (safetensors) or leave its number out (NumPy).
    """
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.EDQUOT or os.strerror(errno.EDQUOT) in str(error):
            return "your disk quota is used up"
        if number == errno.ENOSPC or re.search(_NO_SPACE, str(error)):
            return "the disk is full"
        error = error.__cause__ or error.__context__
    return ""


def explain(error: BaseException, path: Path | str) -> StoreError:
    """Turn the error of a write into a StoreError whose message says what to do next."""
    if full := disk_full(error):
        kept = "finished cells are safe, and an unfinished one resumes from its last checkpoint"
        step = "Free some space and run the same command again"
        return StoreError(f"{full}: no space left while writing {path}; {kept}. {step}")
    assert isinstance(error, OSError)
    if error.errno in (errno.EACCES, errno.EROFS):
        return StoreError(
            f"{path} cannot be written ({error.strerror}); set paths.outputs to a folder you can write to"
        )
    return StoreError(f"{path} cannot be written ({error.strerror or error})")


@contextlib.contextmanager
def usable(folder: Path, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error in the block, which reads untrusted files in a folder, into a message that names the folder.

    Args:
        passing: error types that are not the folder's fault; these are raised unchanged, as is that of a full disk.

    Raises:
        StoreError: replaces any other error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (StoreError, MemoryError, *passing)) or disk_full(error):
            raise
        said = " ".join(str(error).split())
        told = f"{said} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {said}"
        raise StoreError(f"{folder} cannot be used ({told[:300]}); copy it again, or train it again") from error


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """The text of a CSV file with these rows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@cache
def templates(folder: Path, autoescape: bool = False) -> Any:
    """The jinja2 environment of a folder of templates, whose blocks leave no lines behind; `autoescape` is for HTML."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def without_paths(value: Any) -> Any:
    """A value from a configuration, with each path replaced by the name of the file or folder it leads to."""
    if isinstance(value, dict):
        return {k: without_paths(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(v) for v in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value


def read_json(path: Path) -> dict[str, Any] | None:
    """Parse a JSON file; returns None if the file is absent or does not contain a JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


SEAL = "checksum"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object, with a checksum of its content added."""
    rest = {k: v for k, v in json.loads(json.dumps(value)).items() if k != SEAL}
    return rest | {SEAL: hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def broken_seal(value: Mapping[str, Any]) -> str:
    """Check the checksum that `sealed` wrote; returns the problem, or an empty string if there is none."""
    if SEAL not in value:
        return "has no checksum (written by an earlier version)"
    return "" if value[SEAL] == sealed(value)[SEAL] else "is not what was written: its checksum differs"


def archive_damage(path: Path) -> str | None:
    """Check a zip archive, such as a torch checkpoint, by the CRC-32 of its records.

    Returns the problem, or None if there is none. Raises OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{bad} is not what was written" if bad else None


_HASHES: dict[Path, tuple[tuple[int, int, int], str]] = {}


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content; recomputed only if the file's size, modification time or inode has changed."""
    stat = path.stat()
    mark = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    known = _HASHES.get(path)
    if known is None or known[0] != mark:
        with path.open("rb") as file:
            known = _HASHES[path] = (mark, hashlib.file_digest(file, "sha256").hexdigest())
    return known[1]
