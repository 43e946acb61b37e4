"""Rows and splits of our own data sets, which the cache keeps."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks.data.cache import cached_folder, read_meta
from tasks.data.dataset import SPLITS, DataSet, Manifest, Splits, fingerprint, make
from tasks.data.errors import DataError
from tasks.data.files import remembered
from tasks.data.progress import Progress
from tasks.data.read.splits import Parts, split_by_content
from tasks.data.records import Pair

Rows = list[list[str]]
ENGLISH = {"source_lang": "en", "target_lang": "en"}


def cached_rows(
    root: Path, name: str, key: Any, make: Callable[[], tuple[Rows, dict[str, Any]]], progress: Progress
) -> tuple[Rows, dict[str, Any]]:
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


def split_pairs(
    manifest: Manifest,
    options: Any,
    title: str,
    pairs: Sequence[Pair],
    parts: Parts,
    what: str,
    about: dict,
    *read: Any,
) -> DataSet:
    """The data set of pairs that were split by content, within the limits on their words; `read`: what they depend on."""

    def within(progress: Progress) -> Splits:
        return {split: options.within(some) for split, some in parts.of(pairs).items()}

    sources = dict.fromkeys(SPLITS, fingerprint(*read, options.bounds()))
    more = {"limits": options.limits, "notes": [parts.note(what)], "about": about}
    return make(manifest, "pairs", within, title, sources=sources, **more)


def cached_parts(
    path: Path, key: str, progress: Progress, keys: Iterable[Any], names: Sequence[str], texts: Sequence[Sequence[str]]
) -> Parts:
    """The split of `split_by_content`, remembered at `path` for this `key`; `keys` are read only to make it."""

    def made() -> dict[str, Any]:
        progress.step(f"splitting {path.parent.name}, near-duplicates together")
        return dataclasses.asdict(split_by_content(list(keys), names, texts))

    return Parts(**remembered(path, key, made))
