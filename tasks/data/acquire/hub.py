"""Texts of the Hugging Face hub: Parquet files of one commit, verified and kept as rows in our own cache.

No script from the hub is run. `tasks.data.acquire.download` fetches the files (huggingface_hub does not resume an
interrupted download) and checks them against the sha256 from the hub. The rows are then stored under `<root>/encoded` with
their sha256, one JSON object per line, and the hub is not contacted again.

A source in a manifest: `kind: hub`, `repo`, `revision` (such as refs/convert/parquet; the commit that it names at first use is
read), `files` (split -> pattern) and `fields` (the columns, which hold texts).
"""

import fnmatch
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.data.acquire.download import download, fetching_off
from tasks.data.cache import cached_folder, read_meta
from tasks.data.dataset import Manifest
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import Progress
from tasks.data.read import own
from tasks.data.read.lines import Lines
from tasks.data.records import Mapped

RECIPE = 1  # increased when the same files give other rows


def load(
    manifest: Manifest, root: Path, progress: Progress, make: Callable[[dict[str, str]], Any]
) -> tuple[dict[str, Mapped], dict[str, list[str]]]:
    """The splits of a data set, read on demand, from its manifest's source of kind hub; and what identifies their content.

    Args:
        make: makes a record of a row, a dict of the source's fields.

    Raises:
        DataUnavailable: a package or the network is missing, HF_HUB_OFFLINE is set and the cache is empty, or the data
            set is gated or has moved.
        DataError: files are damaged or truncated, a split or field is missing, or a field is not a text.
    """
    source = next(s for s in manifest["sources"] if s["kind"] == "hub")
    repo, fields = source["repo"], source["fields"]
    key = ["hub", RECIPE, repo, source["revision"], source["files"], fields]

    def build(folder: Path) -> dict[str, Any]:
        about = _asked(manifest, source, root)
        found = _fetched(manifest, source, about, root / "hub" / about.sha, progress)
        for split, paths in found.items():
            rows = (row for path in paths for *_, row in own.objects(path, dict.fromkeys(fields, (str,))))
            with open(folder / f"{split}.jsonl", "w", encoding="utf-8", newline="\n") as stream:
                for row in progress.over(rows, f"reading {manifest['name']} {split}"):
                    stream.write(json.dumps({k: row[k] for k in fields}) + "\n")  # ASCII: a line ends where JSON ends
        for path in {path for paths in found.values() for path in paths}:
            path.unlink()  # the rows are kept instead
        return {"repo": repo, "commit": about.sha}

    folder = cached_folder(root, f"{manifest['name']}-hub", key, build, progress)
    hashes = read_meta(folder)["files"]
    stamps = {split: ["hub", repo, hashes[f"{split}.jsonl"]] for split in source["files"]}
    return {s: Mapped(Lines(folder / f"{s}.jsonl"), lambda line: make(json.loads(line))) for s in stamps}, stamps


def _fetched(
    manifest: Manifest, source: Mapping[str, Any], about: Any, folder: Path, progress: Progress
) -> dict[str, list[Path]]:
    """Download and verify the files of each split to `folder`; return split -> paths."""
    import huggingface_hub as package

    name, repo = manifest["name"], source["repo"]
    there = {f.rfilename: f for f in about.siblings or ()}
    found = {split: sorted(fnmatch.filter(there, pattern)) for split, pattern in source["files"].items()}
    if missing := [f"{split} ({source['files'][split]})" for split, names in found.items() if not names]:
        what = f"{name}: {repo} has no file for the split {', '.join(missing)}"
        names = ", ".join(sorted(there)[:20]) or "no files"
        where = f"revision {source['revision']}, commit {about.sha}, with {names}"
        raise DataError(what, where, manifest["get"])
    secret = {"Authorization": f"Bearer {token}"} if (token := package.get_token()) else {}
    for file in dict.fromkeys(file for names in found.values() for file in names):
        stored, endpoint = getattr(there[file], "lfs", None), os.environ.get("HF_ENDPOINT") or None
        url = package.hf_hub_url(repo, file, repo_type="dataset", revision=about.sha, endpoint=endpoint)
        sha256 = stored and stored.sha256
        download(url, folder / file, progress, sha256, there[file].size, name=name, secret=secret)
    return {split: [folder / file for file in names] for split, names in found.items()}


def _asked(manifest: Manifest, source: Mapping[str, Any], root: Path) -> Any:
    """The hub's information about the revision of a source: its commit and files."""
    import huggingface_hub as package

    name, get, repo, revision = manifest["name"], manifest["get"], source["repo"], source["revision"]
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if fetching_off.get() or offline:
        why = "the hub may not be asked (HF_HUB_OFFLINE)" if offline else "this command contacts no hub"
        step = f"fetch it once with a network: python scripts/data.py fetch {name}; or {get}"
        raise DataUnavailable(f"{name} is not in the cache, and {why}", str(root), step)
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        api = package.HfApi(endpoint=endpoint, token=package.get_token())
        return api.dataset_info(repo, revision=revision, files_metadata=True)
    except Exception as error:  # errors of the package itself and of its network library
        status = getattr(getattr(error, "response", None), "status_code", None)
        page = f"{endpoint or 'https://huggingface.co'}/datasets/{repo}"
        step = "check the network (HF_ENDPOINT)"
        if status in (401, 403, 404):
            step = f"see {page}, accept its terms if it has some, and set HF_TOKEN"
        what = f"{name}: the hub does not give {repo} at {revision}"
        where = f"{page} ({type(error).__name__}: {' '.join(str(error).split())})"
        step = f"{step}; then run the same command again, or {get}"
        raise DataUnavailable(what, where, step) from error
