"""Texts of the Hugging Face hub: Parquet files of one commit, verified and kept as rows in our own cache.

No script from the hub is run. `tasks.data.acquire.download` fetches the files (huggingface_hub does not resume an
interrupted download) and checks them against the sha256 from the hub. The rows are then stored under `<root>/encoded` with
their sha256, one JSON object per line, and the hub is not contacted again.

A source in a manifest: `kind: hub`, `repo`, `revision` (such as refs/convert/parquet; its commit is stored at first use),
`files` (split -> pattern) and `fields` (the columns, which hold texts).
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
from tasks.data.files import publish_file
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
    hub, fields = _Hub(manifest, source, root), source["fields"]
    key = ["hub", RECIPE, source["repo"], hub.commit(progress), source["files"], fields]

    def build(folder: Path) -> dict[str, Any]:
        found = hub.fetch(source["files"], progress)
        for split, paths in found.items():
            rows = (row for path in paths for *_, row in own.objects(path, dict.fromkeys(fields, (str,))))
            with open(folder / f"{split}.jsonl", "w", encoding="utf-8", newline="\n") as stream:
                for row in progress.over(rows, f"reading {manifest['name']} {split}"):
                    stream.write(json.dumps({k: row[k] for k in fields}) + "\n")  # ASCII: a line ends where JSON ends
        for path in {path for paths in found.values() for path in paths}:
            path.unlink()  # the rows are kept instead
        return {"repo": source["repo"], "commit": hub.commit(progress)}

    folder = cached_folder(root, f"{manifest['name']}-hub", key, build, progress)
    hashes = read_meta(folder)["files"]
    stamps = {split: ["hub", source["repo"], hashes[f"{split}.jsonl"]] for split in source["files"]}
    return {s: Mapped(Lines(folder / f"{s}.jsonl"), lambda line: make(json.loads(line))) for s in stamps}, stamps


class _Hub:
    """One repository of the hub at one revision, with its files under `<root>/hub`."""

    def __init__(self, manifest: Manifest, source: Mapping[str, Any], root: Path) -> None:
        self.name, self.get = manifest["name"], manifest["get"]
        self.repo, self.revision = source["repo"], source["revision"]
        self.folder = root / "hub" / self.repo.replace("/", "--")
        self.endpoint = os.environ.get("HF_ENDPOINT") or None

    def commit(self, progress: Progress) -> str:
        """The commit of the revision: the one stored earlier, or the hub's current answer."""
        kept = self.folder / (self.revision.replace("/", "--") + ".json")
        if kept.is_file():
            return json.loads(kept.read_text(encoding="utf-8"))["commit"]
        commit = self._asked(self.revision).sha
        progress.say(f"{self.name}: {self.revision} of {self.repo} is {commit}; kept in {kept}")
        publish_file(kept, json.dumps({"commit": commit}))
        return commit

    def fetch(self, files: Mapping[str, str], progress: Progress) -> dict[str, list[Path]]:
        """Download and verify the files of each split; return split -> paths."""
        import huggingface_hub as package

        commit = self.commit(progress)
        there = {f.rfilename: f for f in self._asked(commit).siblings or ()}
        found = {split: sorted(fnmatch.filter(there, pattern)) for split, pattern in files.items()}
        if missing := [f"{split} ({files[split]})" for split, names in found.items() if not names]:
            what = f"{self.name}: {self.repo} has no file for the split {', '.join(missing)}"
            names = ", ".join(sorted(there)[:20]) or "no files"
            where = f"revision {self.revision}, commit {commit}, with {names}"
            raise DataError(what, where, self.get, self.name, missing)
        secret = {"Authorization": f"Bearer {token}"} if (token := package.get_token()) else {}
        for name in dict.fromkeys(name for names in found.values() for name in names):
            stored = getattr(there[name], "lfs", None)
            url = package.hf_hub_url(self.repo, name, repo_type="dataset", revision=commit, endpoint=self.endpoint)
            path, sha256 = self.folder / commit / name, stored and stored.sha256
            download(url, path, progress, sha256, there[name].size, name=self.name, secret=secret)
        return {split: [self.folder / commit / name for name in names] for split, names in found.items()}

    def _asked(self, revision: str) -> Any:
        """The hub's information about a revision."""
        import huggingface_hub as package

        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        if fetching_off.get() or offline:
            why = "the hub may not be asked (HF_HUB_OFFLINE)" if offline else "this command contacts no hub"
            what, where = f"{self.name} is not in the cache, and {why}", f"{self.folder.parent.parent}"
            step = f"fetch it once with a network: python scripts/data.py fetch {self.name}; or {self.get}"
            raise DataUnavailable(what, where, step, self.name, "HF_HUB_OFFLINE" if offline else None)
        try:
            api = package.HfApi(endpoint=self.endpoint, token=package.get_token())
            return api.dataset_info(self.repo, revision=revision, files_metadata=True)
        except Exception as error:  # errors of the package itself and of its network library
            status = getattr(getattr(error, "response", None), "status_code", None)
            page = f"{self.endpoint or 'https://huggingface.co'}/datasets/{self.repo}"
            step = "check the network (HF_ENDPOINT)"
            if status in (401, 403, 404):
                step = f"see {page}, accept its terms if it has some, and set HF_TOKEN"
            what = f"{self.name}: the hub does not give {self.repo} at {revision}"
            where = f"{page} ({type(error).__name__}: {' '.join(str(error).split())})"
            step = f"{step}; then run the same command again, or {self.get}"
            raise DataUnavailable(what, where, step, self.name, status) from error
