"""The sources of a data set, tried in the order of its manifest: a mirror, the hub, web addresses.

    sources:
      - {kind: mirror}                                        data.mirror=FOLDER, the files under `files`
      - {kind: hub, repo: .., revision: .., files: .., fields: ..}      see `tasks.data.acquire.hub`
      - {kind: url, base: ..}                                 the same files by name, in <root>/<name> as in a mirror
      - kind: url
        files: [{url: .., bytes: .., sha256: .., unpack: true}]         in <root>/<name>; unpacked into a folder there

A manifest without `sources` has one source, which is described by `kind` and `get`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from tasks.data.acquire import archives
from tasks.data.acquire.download import download
from tasks.data.cache import META, is_whole, write_meta
from tasks.data.errors import DataError
from tasks.data.files import sha256_of
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
            progress.say(f"unpacking {archive.name}")
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


def unverified(manifest: Mapping[str, Any], node: Mapping[str, Any], root: Path) -> str | None:
    """Why the data of a paper's table may differ from the original; None if they are covered by the manifest's sha256.

    Files from a mirror or a download are checked against the manifest when read. For a folder or file given as `path`,
    only the size is known, unless it is an archive listed in the manifest. The same holds for downloads with unknown
    sha256.
    """
    if not manifest.get("tables") or manifest["kind"] not in ("mirror", "files", "http"):
        return None
    ways, files = manifest.get("sources", ()), manifest.get("files", ())
    if node.get("path") is not None:
        path, listed = Path(node["path"]), [*files, *_entries(manifest)]
        known = path.is_file() and sha256_of(path) in {entry.get("sha256") for entry in listed}
    elif node.get("mirror") is not None and files:
        known = all("sha256" in entry for entry in files)
    elif found(manifest, root) is not None:
        known = all("sha256" in entry for entry in _entries(manifest))
    else:  # any of the sources may be used
        hubs = [bool(way.get("sha256")) for way in ways if way["kind"] == "hub"]
        known = bool(ways) and all([*hubs, *("sha256" in entry for entry in _entries(manifest))])
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
