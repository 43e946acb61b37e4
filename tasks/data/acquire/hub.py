"""Data sets of the Hugging Face hub: Parquet files of one revision, verified and streamed into our own cache.

No script from the hub is run. `tasks.data.acquire.download` fetches the files (huggingface_hub does not resume an
interrupted download) and checks them against the sha256 from the hub or the manifest. The `datasets` package reads them
one row group at a time, so that memory use does not grow with the data set. The rows are then stored under
`<root>/encoded` with their sha256, one JSON object per line, and the hub is not contacted again.

A source in a manifest: `kind: hub`, `repo`, `revision`, `files` (split -> pattern), `fields` (name -> type), and
`sha256` of the files if known. `revision` is a commit, or a name such as refs/convert/parquet, which is resolved to a
commit and stored at first use.
"""

import fnmatch
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.data.acquire.download import download, fetching_off
from tasks.data.cache import cached_folder, read_meta
from tasks.data.dataset import Manifest
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import publish_file
from tasks.data.progress import Progress
from tasks.data.read.lines import Lines
from tasks.data.records import Mapped

RECIPE = 1  # increased when the same files give other rows
_TYPES = {"str": str, "int": int, "dict": dict}
Make, Check = Callable[[dict[str, Any]], Any], Callable[[Mapping[str, Any]], str | None]


def load(
    manifest: Manifest,
    root: Path,
    progress: Progress,
    *,
    make: Make = dict,
    check: Check = lambda row: None,
    **names: str,
) -> tuple[dict[str, Mapped], dict[str, list[str]]]:
    """The splits of a data set, read on demand, from its manifest's source of kind hub; and what identifies their content.

    Args:
        manifest: manifest of the data set; error messages give its `get` as the next step.
        make: makes a record of a row, a dict of the source's fields.
        check: returns a description of the problem of a row whose fields have the right types, or None.
        names: replacements for the {..} placeholders in the patterns of `files`.

    Raises:
        DataUnavailable: a package or the network is missing, HF_HUB_OFFLINE is set and the cache is empty, or the data
            set is gated or has moved.
        DataError: files are damaged or truncated, a split or field is missing, or a row has the wrong type.
    """
    source = next(s for s in manifest["sources"] if s["kind"] == "hub")
    files = {split: pattern.format(**names) for split, pattern in source["files"].items()}
    hub = _Hub(manifest, source, root)
    key = ["hub", RECIPE, source["repo"], hub.commit(progress), files, source["fields"]]

    def build(folder: Path) -> dict[str, Any]:
        found = hub.fetch(files, progress)
        for split, paths in found.items():
            rows = progress.over(hub.rows(paths, split, check), f"reading {manifest['name']} {split}")
            with open(folder / f"{split}.jsonl", "w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)  # ASCII: a line ends where JSON ends
        for path in {path for paths in found.values() for path in paths}:
            path.unlink()  # the rows are kept instead
        return {"repo": source["repo"], "commit": hub.commit(progress)}

    folder = cached_folder(root, f"{manifest['name']}-hub", key, build, progress)
    hashes = read_meta(folder)["files"]
    stamps = {split: ["hub", source["repo"], hashes[f"{split}.jsonl"]] for split in files}
    return {s: Mapped(Lines(folder / f"{s}.jsonl"), lambda line: make(json.loads(line))) for s in files}, stamps


class _Hub:
    """One repository of the hub at one revision, with its files under `<root>/hub`."""

    def __init__(self, manifest: Manifest, source: Mapping[str, Any], root: Path) -> None:
        self.name, self.repo, self.revision = manifest["name"], source["repo"], source["revision"]
        self.get, self.fields = manifest["get"], {k: _TYPES[v] for k, v in source["fields"].items()}
        self.known = source.get("sha256", {})
        self.folder = root / "hub" / self.repo.replace("/", "--")
        self.endpoint = os.environ.get("HF_ENDPOINT") or None

    def commit(self, progress: Progress) -> str:
        """The commit of the revision: the revision itself, the commit stored earlier, or the hub's current answer."""
        if len(self.revision) == 40:  # hexadecimal digits
            return self.revision
        kept = self.folder / (self.revision.replace("/", "--") + ".json")
        if kept.is_file():
            return json.loads(kept.read_text(encoding="utf-8"))["commit"]
        commit = self._asked(self.revision).sha
        progress.say(f"{self.name}: {self.revision} of {self.repo} is {commit}; kept in {kept}")
        with publish_file(kept) as temporary:
            temporary.write_text(json.dumps({"commit": commit}), encoding="utf-8")
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
            path, sha256 = self.folder / commit / name, self.known.get(name) or (stored and stored.sha256)
            download(url, path, progress, sha256, there[name].size, name=self.name, secret=secret)
        return {split: [self.folder / commit / name for name in names] for split, names in found.items()}

    def rows(self, paths: Sequence[Path], split: str, check: Any) -> Iterator[dict[str, Any]]:
        """The fields of every row, after checking them."""
        import datasets

        expected = ", ".join(f"{k} ({v.__name__})" for k, v in self.fields.items())
        again = f"{self.get}; if {self.repo} has changed, correct its source in data/manifests/{self.name}.yaml"
        place = ", ".join(map(str, paths))
        try:
            stream = datasets.Dataset.from_parquet(list(map(str, paths)), streaming=True)
            for i, row in enumerate(stream.reshard()):  # row groups; otherwise Arrow keeps the whole file
                wrong = next((k for k, kind in self.fields.items() if not isinstance(row.get(k), kind)), "")
                missing = f"no {wrong}, or one that is not of type {self.fields[wrong].__name__}" if wrong else None
                if problem := missing or check(row):
                    what = f"{self.name}: {self.repo}, {split}, row {i}: it has {problem}"
                    raise DataError(what, f"{place}: expected {expected}", again, self.name, split, i)
                yield {k: row[k] for k in self.fields}
        except DataError:
            raise
        except Exception as error:  # errors of Arrow and of the package itself
            what = f"{self.name}: {self.repo}, {split} cannot be read ({type(error).__name__}: {error})"
            where = f"{place}: expected Parquet with {expected}"
            raise DataError(what, where, again, self.name, split) from error

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
