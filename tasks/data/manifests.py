"""Manifests: a YAML file for each data set with its description, its source and the required files.

Keys: `name`, `title`, `kind` (apt, wheel, mirror, files, http, generated or own), `licence`, `source`, `get` (how to
obtain the data by hand) and `loader` (its file in `tasks/data/sets`, if named differently; `plain` needs no code). Depending on the kind:
`files` (path, sha256 and bytes; paths are relative to the mirror), `layout`, `packages`, `version`. For comparisons
with a paper: `tables` (the tables that use this data set), `sizes` (full numbers of records; a list if releases
differ), `shortfalls` (what is always missing), `stands_for`, `demo`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from repro.errors import near
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import verify

FOLDER = Path(__file__).resolve().parents[2] / "data" / "manifests"


def manifest_names() -> list[str]:
    """Names of all data sets that have a manifest."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_manifest(name: str) -> dict[str, Any]:
    """The manifest of data set `name`. Raises `DataError` with the nearest known name if there is none."""
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = manifest_names()
        what = f"unknown data set {name!r}{near(name, known)}"
        raise DataError(what, f"{FOLDER}: {', '.join(known)}", "choose one of these")
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def mirror_files(
    manifest: Mapping[str, Any], mirror: str | Path | None, only: tuple[str, ...] = ()
) -> tuple[dict[str, Path], dict[str, str]]:
    """Paths of a mirrored data set's files, each verified against the manifest, and the sha256 of all; both by file name.

    `only` names the files that are needed (default: all). Raises DataError if no mirror was given, or a file is missing,
    truncated or different.
    """
    name = manifest["name"]
    if mirror is None:
        step = f"set data.mirror=FOLDER to a folder that holds {manifest['files'][0]['path']}; {manifest['get']}"
        raise DataUnavailable(f"{name} is read from a local mirror, but none is set", "data.mirror is empty", step)
    files = {}
    for entry in manifest["files"]:
        path = Path(mirror) / entry["path"]
        if only and path.name not in only:
            continue
        verify(path, entry.get("sha256"), entry.get("bytes"), retry=f"copy it again from {manifest['source']}")
        files[path.name] = path
    return files, {Path(entry["path"]).name: entry["sha256"] for entry in manifest["files"]}
