"""Downloads from web addresses: resumed if the file's sha256 is known, verified, and moved into place only when complete.

This is our own code because pooch and huggingface_hub (2.4) restart an interrupted download from its first byte, and
some of our files have 13 GB.
"""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import locked, verify, writing_to
from tasks.data.progress import Progress

TIMEOUT = 30.0  # seconds without data before giving up
fetching_off: ContextVar[bool] = ContextVar("off", default=False)


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Context in which nothing is downloaded: requesting a missing file raises DataUnavailable."""
    token = fetching_off.set(True)
    try:
        yield
    finally:
        fetching_off.reset(token)


def download(
    url: str,
    path: Path,
    progress: Progress,
    sha256: str | None = None,
    size: int | None = None,
    *,
    name: str = "",
    secret: Mapping[str, str] | None = None,
) -> Path:
    """Download `url` to `path` unless a verified copy exists.

    If the connection breaks, the received data are kept as `path`.part. With a sha256 to verify the whole file, the next call
    requests the rest (Range), otherwise it starts again. A file that is complete but wrong is deleted.

    Args:
        sha256, size: expected hash and size in bytes; if unknown, the size is taken from the server's response, and the
            hash is not checked.
        name: name of the data set, for messages.
        secret: headers that are sent only to this server, not to servers that it redirects to.

    Raises:
        DataUnavailable: the server is unreachable, refuses access, or does not have the file.
        DataError: the file is truncated or has the wrong content, or the disk is full.
    """
    what = f"{name}: {path.name}" if name else path.name
    with locked(path.with_name(f".{path.name}.lock")):
        if path.is_file():
            verify(path, sha256, size, f"delete {path} and run the same command again", what)
            return path
        if fetching_off.get():
            raise DataUnavailable(f"{what} was not fetched", str(path), f"python scripts/data.py fetch {name}".rstrip())
        part = path.with_name(path.name + ".part")
        try:
            if sha256 is None:
                part.unlink(missing_ok=True)
            expected = _receive(url, secret or {}, part, progress, size)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            have = part.stat().st_size if part.exists() else 0
            step = f"check the network and run the same command again ({have:,} bytes are here)"
            why = str(getattr(error, "reason", error)) or type(error).__name__
            if isinstance(error, urllib.error.HTTPError):
                step, why = _ANSWERS.get(error.code, step), f"HTTP {error.code} {why}"
            raise DataUnavailable(f"{what} could not be fetched", f"{url}: {why}", step) from error
        try:
            step = f"run the same command again; if it fails again, the file has changed at its source, {url}"
            verify(part, sha256, expected, step, what)
        except DataError:
            if expected is None or part.stat().st_size >= expected:  # a shorter one is resumed
                part.unlink()
            raise
        os.replace(part, path)
    return path


_REFUSED = "accept the terms of the data set on its page, set HF_TOKEN if it is on the hub, and run the command again"
_GONE = "it has moved or was withdrawn: see `source` in its manifest (data/manifests), or get the file elsewhere"
_ANSWERS = {401: _REFUSED, 403: _REFUSED, 404: _GONE, 410: _GONE}


def _receive(url: str, secret: Mapping[str, str], part: Path, progress: Progress, size: int | None) -> int | None:
    """Append the data that `part` lacks; return the expected size of the whole file."""
    have, request = part.stat().st_size if part.exists() else 0, urllib.request.Request(url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    for key, value in secret.items():
        request.add_unredirected_header(key, value)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing left to send, because the part is complete or too long
            raise
        return size if size is not None else have
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        total = None if length is None else int(length) + (have if resumed else 0)
        mode = "ab" if resumed else "wb"
        with writing_to(part.parent), open(part, mode) as stream, progress.bar(total, f"fetching {part.stem}") as bar:
            bar.advance(have if resumed else 0)
            while block := response.read(1 << 16):
                stream.write(block)
                bar.advance(len(block))
    return size if size is not None else total
