"""Labelled texts: one or two texts and a class per example, in three splits, read only when their encoding is not cached."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import NullProgress, Progress

SPLITS = ("train", "dev", "test")

# name of the data set -> module:function that opens it (imported only when asked for)
LOADERS = {
    "toy_reviews": "tasks.classification.toy:open_reviews",
    "toy_entailment": "tasks.classification.toy:open_entailment",
    "imdb": "tasks.imdb.data:open_imdb",
    "rotten_tomatoes": "tasks.imdb.data:open_rotten_tomatoes",
    "snli": "tasks.snli.data:open_snli",
    "snli_20k": "tasks.snli.data:open_snli_20k",
    "boolq": "tasks.snli.data:open_boolq",
}


@dataclass(frozen=True)
class Example:
    """One or two texts, the number of their class, and words of the first text that people pointed at (may be empty)."""

    texts: tuple[str, ...]
    label: int
    marked: frozenset[str] = frozenset()


Splits = Mapping[str, Sequence[Example]]


@dataclass(frozen=True)
class Source:
    """A data set that has been found and not yet read.

    Attributes:
        name: its name in `LOADERS`.
        fingerprint: hash of the files it will be read from and of the way of reading them; names the cached encoding.
        read: gives the splits; called only when no cached encoding fits.
        classes: names of the classes, by number.
        fields: names of the texts of an example.
        provenance: one line for the footer of a table.
        demo, stands_for: as in the manifest; True and a name when it stands in for a data set of a paper.
        notes: what a reader of the numbers must know.
    """

    name: str
    fingerprint: str
    read: Callable[[Progress], Splits]
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    provenance: str
    demo: bool = False
    stands_for: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What a config asks for; the fields are the allowed keys of its `data` node.

    Attributes:
        name: a key of `LOADERS`.
        mirror: folder of local copies, laid out as the manifests say.
        path: folder (or archive) of a data set in its published layout.
        root: folder for downloads and caches.
        limits: split -> largest number of examples (missing or None: all).
        dev_share: share of the training examples that become dev, where the data set has no dev split.
        split_seed: of that choice.
        seed: of generated data.
    """

    name: str
    mirror: str | Path | None = None
    path: str | Path | None = None
    root: str | Path = "data/cache"
    limits: Mapping[str, int | None] = field(default_factory=dict)
    dev_share: float = 0.1
    split_seed: int = 42
    seed: int = 1

    def limited(self, splits: Splits) -> dict[str, list[Example]]:
        """The first `limits[split]` examples of each split."""
        return {split: list(splits[split])[: self.limits.get(split)] for split in SPLITS}

    def fingerprint(self, *parts: Any) -> str:
        """sha256 of what the texts depend on: the files (`parts`) and this request's choices."""
        choices = [self.name, dict(self.limits), self.dev_share, self.split_seed]
        return hashlib.sha256(json.dumps([*choices, *parts], sort_keys=True, default=str).encode()).hexdigest()


def open_source(data: Mapping[str, Any], progress: Progress | None = None) -> Source:
    """Find the data set that `data` (a plain dict with the keys of `Request`) describes.

    Raises:
        DataError: unknown name or key, damaged data; DataUnavailable: missing or unreachable data.
    """
    request = parse_request(data)
    module, function = LOADERS[request.name].split(":")
    opened: Source = getattr(importlib.import_module(module), function)(request, progress or NullProgress())
    return opened


def parse_request(data: Mapping[str, Any]) -> Request:
    """Check the keys and names in `data`, all at once, and return them as a `Request`."""
    allowed = [f.name for f in dataclasses.fields(Request)]
    problems = []
    for key in data:
        if key not in allowed:
            problems.append(f"unknown key {key!r}{_near(key, allowed)}")
    name = data.get("name")
    if name not in LOADERS:
        problems.append(f"unknown data set {name!r}{_near(str(name), LOADERS)}")
    for split, limit in (data.get("limits") or {}).items():
        if split not in SPLITS:
            problems.append(f"limits names the split {split!r}, allowed are {', '.join(SPLITS)}")
        elif limit is not None and (not isinstance(limit, int) or limit < 1):
            problems.append(f"limits.{split} is {limit!r}, allowed is a whole number from 1")
    share = data.get("dev_share")
    if share is not None and not (isinstance(share, (int, float)) and 0 < share < 1):
        problems.append(f"dev_share is {share!r}, allowed is a number between 0 and 1")
    if problems:
        raise DataError(
            "the data config is wrong: " + "; ".join(problems),
            f"data sets: {', '.join(sorted(LOADERS))}; keys: {', '.join(allowed)}",
            "correct the data node of the config",
        )
    return Request(**{key: value for key, value in data.items() if value is not None})


def _near(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def hash_examples(splits: Splits) -> str:
    """sha256 over splits, in order, one JSON line per example."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(f"# {split}\n".encode())
        for example in splits[split]:
            line = json.dumps([*example.texts, example.label, sorted(example.marked)], ensure_ascii=False)
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def hub_rows(name: str, request: Request, progress: Progress, config: str | None = None) -> Mapping[str, Any]:
    """Splits of a data set of the `datasets` package, by its own split names.

    Raises:
        DataUnavailable: the package is not installed or cannot fetch the set; the message keeps the package's own.
    """
    step = f"get the files of {request.name} by hand and set data.path=FOLDER, or pip install datasets"
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise DataUnavailable(
            f"{request.name} needs its files or the datasets package", "data.path and data.mirror are empty", step
        ) from error
    progress.say(f"loading {name} through the datasets package")
    try:
        return datasets.load_dataset(name, config, cache_dir=str(Path(request.root) / "huggingface"))
    except Exception as error:  # the package raises many kinds, its own and the network's
        raise DataUnavailable(
            f"{name} could not be loaded through the datasets package", f"{type(error).__name__}: {error}", step
        ) from error
