"""Files from a web address: resumed where the server allows it, verified, in place only when whole."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

from tasks.data import archives
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import locked, sha256_of, verify, writing_to
from tasks.data.progress import Progress


def download(
    url: str,
    path: Path,
    progress: Progress,
    sha256: str | None = None,
    size: int | None = None,
    timeout: float = 30.0,
) -> Path:
    """Fetch `url` to `path` unless a verified copy is there.

    What has arrived is kept as `path`.part when the connection breaks, and the next call asks for the rest. A file that
    is complete but wrong is deleted.

    Args:
        sha256, size: expected hash and bytes; unknown ones are taken from the server's answer (size) or not checked.
        timeout: seconds without data before giving up.

    Raises:
        DataError: unreachable, truncated, wrong content, disk full.
    """
    with locked(path.with_name(f".{path.name}.lock")):
        if path.is_file():
            verify(path, sha256, size, retry=f"delete {path} and run the same command again")
            return path
        part = path.with_name(path.name + ".part")
        try:
            expected = _receive(url, part, progress, size, timeout)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            have = part.stat().st_size if part.exists() else 0
            raise DataUnavailable(
                f"{path.name} could not be fetched",
                f"{url}: {getattr(error, 'reason', error)}",
                f"check the network and run the same command again ({have:,} bytes are kept and will be resumed)",
            ) from error
        found = part.stat().st_size
        if expected is not None and found < expected:
            raise DataError(
                f"{path.name} is truncated",
                f"{url}: expected {expected:,} bytes, got {found:,}",
                "run the same command again; it resumes where this one stopped",
            )
        problem = None
        if expected is not None and found != expected:
            problem = f"expected {expected:,} bytes, got {found:,}"
        elif sha256 is not None and (digest := sha256_of(part)) != sha256:
            problem = f"expected sha256 {sha256}, got {digest}"
        if problem:
            part.unlink()
            raise DataError(
                f"{path.name} is damaged",
                f"{url}: {problem}",
                "run the same command again; if it stays so the file has changed at its source",
            )
        os.replace(part, path)
    return path


def _receive(url: str, part: Path, progress: Progress, size: int | None, timeout: float) -> int | None:
    """Append to `part` what the server sends; return the size the whole file should have."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to send, the part is complete or too long
            raise
        return size if size is not None else have
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        total = None if length is None else int(length) + (have if resumed else 0)
        with (
            writing_to(part.parent),
            open(part, "ab" if resumed else "wb") as stream,
            progress.bar(total, f"fetching {part.stem}") as bar,
        ):
            if resumed:
                bar.advance(have)
            while block := response.read(1 << 16):
                stream.write(block)
                bar.advance(len(block))
    return size if size is not None else total


def unpack_tar(archive: Path, folder: Path) -> Path:
    """Extract a tar file into `folder` once; `DataError` when the archive is damaged."""
    if not folder.is_dir():
        archives.unpack(archive, folder)
    return folder
