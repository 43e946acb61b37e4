"""Cache of encoded data sets. A folder is named by a hash of its inputs; all processes find the same complete entry."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tasks.data.errors import DataError
from tasks.data.files import locked, publish_folder, sha256_of
from tasks.data.progress import Progress

META = "meta.json"


def cached_folder(
    root: str | Path, name: str, key: Any, build: Callable[[Path], dict[str, Any]], progress: Progress
) -> Path:
    """The folder `root/encoded/<name>-<hash of key>`, built if it is missing or damaged.

    Args:
        name: readable part of the folder's name.
        key: everything that the content depends on, as JSON.
        build: fills an empty folder and returns the metadata that `read_meta` will return.

    Raises DataError if the disk is full; errors of `build` are passed on.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    folder = Path(root) / "encoded" / f"{name}-{digest[:16]}"
    if is_whole(folder):
        return folder
    with locked(folder.with_name(f".{folder.name}.lock")):
        if is_whole(folder):
            return folder
        if folder.exists():
            progress.say(f"the encoded copy {folder} is damaged; building it again")
            doomed = folder.with_name(f".{folder.name}.damaged.{os.getpid()}")
            os.rename(folder, doomed)  # so that no process sees it half deleted
            shutil.rmtree(doomed, ignore_errors=True)
        with publish_folder(folder) as temporary:
            write_meta(temporary, build(temporary))
    return folder


def cached_rows(
    root: Path, name: str, key: Any, make: Callable[[], tuple[list[list[str]], dict[str, Any]]], progress: Progress
) -> tuple[list[list[str]], dict[str, Any]]:
    """Rows of strings and their description, which `make` creates once and the cache under `root` keeps; also their `sha256`."""

    def build(folder: Path) -> dict[str, Any]:
        rows, about = make()
        if not rows:
            raise DataError(f"no text was found for {name}", str(about), "report this with the line above")
        body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "rows.jsonl").write_bytes(body.encode("utf-8", "surrogatepass"))
        return about

    folder = cached_folder(root, name, key, build, progress)
    body, about = (folder / "rows.jsonl").read_bytes().decode("utf-8", "surrogatepass"), read_meta(folder)
    return [json.loads(line) for line in body.split("\n")[:-1]], about | {"sha256": about["files"]["rows.jsonl"]}


def write_meta(folder: Path, facts: dict[str, Any]) -> None:
    """Write `facts` and the sha256 of every other file in `folder` to its meta.json."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != META]
    files = {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    (folder / META).write_text(json.dumps(facts | {"files": files}, indent=1, ensure_ascii=False), encoding="utf-8")


def copy_files(folder: str | Path, to: str | Path, names: Iterable[str]) -> None:
    """Copy those of the files that exist to the folder `to`, which is made if it is missing."""
    Path(to).mkdir(parents=True, exist_ok=True)
    for name in names:
        if (path := Path(folder) / name).exists():
            shutil.copyfile(path, Path(to) / name)


def keep(folder: str | Path, to: str | Path, names: Iterable[str] = ()) -> None:
    """Copy what a finished cell keeps of an encoding: the files `names` and the metadata, without splits and images."""
    copy_files(folder, to, names)
    write_meta(Path(to), {k: v for k, v in read_meta(folder).items() if k != "images"} | {"splits": []})


def read_meta(folder: str | Path) -> dict[str, Any]:
    """The metadata that `build` returned for this folder, plus `files`: name -> sha256.

    Raises DataError if this is not a folder of encoded data.
    """
    path = Path(folder) / META
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"{folder} is not a folder of encoded data"
        raise DataError(what, f"{path}: {error}", "encode the data again") from error


def is_whole(folder: Path) -> bool:
    """Whether every file is present and matches its sha256."""
    try:
        return all(sha256_of(folder / name) == digest for name, digest in read_meta(folder)["files"].items())
    except (DataError, OSError, KeyError, AttributeError, TypeError):
        return False
