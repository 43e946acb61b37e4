"""Text pairs made once from a fetched source and kept, so that a cache gives the same corpus every day."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.data.errors import DataError
from tasks.data.files import publish_file
from tasks.data.progress import Progress

Rows = list[list[str]]


def cached_rows(path: Path, make: Callable[[], tuple[Rows, dict[str, Any]]], progress: Progress) -> tuple[Rows, dict]:
    """Rows of strings kept as JSON lines at `path`; the first line holds what is known about them and their sha256.

    Args:
        path: where they are kept.
        make: makes the rows and their description when `path` is absent or damaged.

    Returns:
        rows, and the description (with `sha256`).
    """
    if path.is_file():
        try:
            return _read(path)
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            progress.say(f"{path} is damaged ({error}); making it again")
    rows, about = make()
    if not rows:
        raise DataError(f"no pair of texts was found for {path.stem}", str(about), "report this with the line above")
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")
    about = about | {"rows": len(rows), "sha256": hashlib.sha256(body).hexdigest()}
    with publish_file(path) as temporary:
        temporary.write_bytes(json.dumps(about).encode() + b"\n" + body)
    return _read(path)


def cached_parts(path: Path, sha256: str, make: Callable[[], dict[str, list[int]]]) -> dict[str, list[int]]:
    """Split -> row numbers, kept at `path` for the rows with hash `sha256`; made again when they changed."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["sha256"] == sha256:
            return stored["parts"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    parts = make()
    with publish_file(path) as temporary:
        temporary.write_text(json.dumps({"sha256": sha256, "parts": parts}), encoding="utf-8")
    return parts


def _read(path: Path) -> tuple[Rows, dict]:
    head, _, body = path.read_bytes().partition(b"\n")
    about = json.loads(head)
    found = hashlib.sha256(body).hexdigest()
    if found != about["sha256"]:
        raise ValueError(f"expected sha256 {about['sha256'][:12]}.., got {found[:12]}..")
    return [json.loads(line) for line in body.decode("utf-8", "surrogatepass").split("\n") if line], about
