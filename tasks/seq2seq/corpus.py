"""Corpora of sentence pairs: raw text as published, in three splits, with its hash and where it came from."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import NullProgress, Progress

SPLITS = ("train", "dev", "test")

# name of the data set -> module:function that loads it (imported only when asked for)
LOADERS = {
    "toy": "tasks.toy.data:load",
    "multi30k": "tasks.translation.data:load_multi30k",
    "libreoffice_help": "tasks.translation.data:load_libreoffice_help",
    "iwslt2017": "tasks.translation.data:load_iwslt2017",
    "baseline_1m_enfr": "tasks.translation.data:load_baseline_1m",
    "debian_descriptions": "tasks.summarization.data:load_debian_descriptions",
    "reuters21578": "tasks.summarization.data:load_reuters",
    "scitldr": "tasks.summarization.data:load_scitldr",
    "gigaword": "tasks.summarization.data:load_gigaword",
    "duc2003": "tasks.summarization.data:load_duc",
    "duc2004": "tasks.summarization.data:load_duc",
}


@dataclass(frozen=True)
class Pair:
    """One source text and its reference outputs, raw and detokenised as published."""

    source: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """A loaded data set.

    Attributes:
        name: its name in `LOADERS` ("toy" after a fallback).
        splits: sequences of `Pair` under "train", "dev", "test"; a split may be empty (DUC has only "test").
        sha256: hash of the pairs in use, after filters and limits.
        provenance: one line for the footer of a table.
        demo: True when it stands in for a data set of a paper.
        stands_for: the data set it stands in for.
        notes: what a reader of the numbers must know (fallbacks, filters, counts).
    """

    name: str
    splits: Mapping[str, Sequence[Pair]]
    sha256: str
    provenance: str
    demo: bool
    stands_for: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What a config asks for; the fields are the allowed keys of its `data` node.

    Attributes:
        name: a key of `LOADERS`.
        source_lang, target_lang: language codes, where the data set has several.
        mirror: folder of local copies, laid out as the manifests say.
        path: folder of a data set that a person has to get (licensed or too large to fetch).
        root: folder for downloads and caches.
        limits: split -> largest number of pairs (missing or None: all).
        min_words, max_words: bounds on whitespace words, a number for both sides or {source: .., target: ..};
            None: the data set's default.
        fallback: "toy" to go on with generated pairs when the data cannot be had, None to raise.
        test_set: which test set, where the data set has several.
        seed: of generated data; does not change real data, which is split by content.
    """

    name: str
    source_lang: str | None = None
    target_lang: str | None = None
    mirror: str | Path | None = None
    path: str | Path | None = None
    root: str | Path = "data/cache"
    limits: Mapping[str, int | None] = field(default_factory=dict)
    min_words: int | Mapping[str, int | None] | None = None
    max_words: int | Mapping[str, int | None] | None = None
    fallback: str | None = None
    test_set: str | None = None
    seed: int = 1

    def bound(self, which: str, side: str, default: int) -> int:
        """The bound `which` ("min" or "max") on `side` ("source" or "target") in words."""
        value = self.min_words if which == "min" else self.max_words
        if isinstance(value, Mapping):
            value = value.get(side)
        return default if value is None else int(value)

    def folder(self, what: str) -> Path:
        """`path` as a folder that exists; `DataError` saying `what` to get when it is not set or missing."""
        if self.path is None:
            raise DataUnavailable(f"{self.name} has to be got by hand", "data.path is not set", what)
        folder = Path(self.path)
        if not folder.is_dir():
            raise DataUnavailable(f"{self.name}: the folder {folder} does not exist", f"data.path={folder}", what)
        return folder


Loader = Callable[[Request, Progress], Corpus]


def load_corpus(data: Mapping[str, Any], progress: Progress | None = None) -> Corpus:
    """Load the data set that `data` describes.

    Args:
        data: plain dict with the keys of `Request`.
        progress: where to say what takes time.

    Returns:
        the corpus; with `fallback: toy` and the data unreachable, the generated corpus with a note saying so.

    Raises:
        DataError: unknown name, key or fallback; damaged data; a full disk.
        DataUnavailable: data missing or unreachable and no fallback set.
    """
    request = parse_request(data)
    progress = progress or NullProgress()
    module, function = LOADERS[request.name].split(":")
    loader: Loader = getattr(importlib.import_module(module), function)
    try:
        return loader(request, progress)
    except DataUnavailable as error:
        if request.fallback is None or request.name == "toy":
            raise
        progress.say(f"{request.name} cannot be had ({error.what}); going on with generated pairs")
        return _fallback(request, error, progress)


def parse_request(data: Mapping[str, Any]) -> Request:
    """Check the keys and names in `data`, all at once, and return them as a `Request`."""
    allowed = [f.name for f in dataclasses.fields(Request)]
    problems = []
    for key in data:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            problems.append(f"unknown key {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    name = data.get("name")
    if name not in LOADERS:
        near = difflib.get_close_matches(str(name), LOADERS, n=1)
        problems.append(f"unknown data set {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    if data.get("fallback") not in (None, "toy"):
        problems.append(f"fallback is {data['fallback']!r}, allowed are 'toy' and null")
    for split, limit in (data.get("limits") or {}).items():
        if split not in SPLITS:
            problems.append(f"limits names the split {split!r}, allowed are {', '.join(SPLITS)}")
        elif limit is not None and int(limit) < 0:
            problems.append(f"limits.{split} is {limit}, allowed is 0 or more")
    if problems:
        raise DataError(
            "the data config is wrong: " + "; ".join(problems),
            f"data sets: {', '.join(sorted(LOADERS))}; keys: {', '.join(allowed)}",
            "correct the data node of the config",
        )
    values = {key: value for key, value in data.items() if value is not None}
    return Request(**values)


def _fallback(request: Request, error: DataError, progress: Progress) -> Corpus:
    toy = load_corpus({"name": "toy", "limits": dict(request.limits), "seed": request.seed}, progress)
    notes = (
        f"GENERATED TEXT, not {request.name}: {error.what} ({error.where})",
        f"for the real text: {error.next_step}",
    )
    return dataclasses.replace(toy, stands_for=request.name, notes=notes + toy.notes)


def make_corpus(
    request: Request,
    splits: Mapping[str, Sequence[Pair]],
    manifest: Mapping[str, Any],
    provenance: str,
    notes: Iterable[str] = (),
    sha256: str | None = None,
) -> Corpus:
    """Finish a loader: apply the limits (first pairs of each split), hash, and take demo/stands_for from the manifest.

    Args:
        sha256: hash of the raw files, for corpora too large to hash pair by pair; the limits are mixed in.
    """
    limited = {split: take(splits.get(split, ()), request.limits.get(split)) for split in SPLITS}
    if sha256 is None:
        digest = hash_pairs(limited)
    else:
        digest = hashlib.sha256(f"{sha256} {[len(limited[s]) for s in SPLITS]}".encode()).hexdigest()
    counts = ", ".join(f"{len(limited[s]):,} {s}" for s in SPLITS)
    return Corpus(
        name=request.name,
        splits=limited,
        sha256=digest,
        provenance=f"{provenance}; {counts} pairs",
        demo=bool(manifest.get("demo", False)),
        stands_for=manifest.get("stands_for"),
        notes=tuple(notes),
    )


def take(pairs: Sequence[Pair], limit: int | None) -> Sequence[Pair]:
    """The first `limit` pairs (None: all)."""
    return pairs if limit is None or limit >= len(pairs) else Subset(pairs, range(int(limit)))


def hash_pairs(splits: Mapping[str, Sequence[Pair]]) -> str:
    """sha256 over splits, in order, one JSON line per pair."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(f"# {split}\n".encode())
        for pair in splits.get(split, ()):
            line = json.dumps([pair.source, *pair.references], ensure_ascii=False, separators=(",", ":"))
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


class Subset(Sequence[Pair]):
    """A view of `pairs` at `indices`, without copying them."""

    def __init__(self, pairs: Sequence[Pair], indices: Sequence[int]) -> None:
        self.pairs, self.indices = pairs, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self.pairs[int(j)] for j in self.indices[i]]
        return self.pairs[int(self.indices[i])]


def clean(text: str) -> str:
    """Runs of white space (line ends, no-break and other Unicode spaces) become one space."""
    return " ".join(text.split())


def within_bounds(pair: Pair, request: Request, defaults: Mapping[str, tuple[int, int]]) -> bool:
    """Whether both sides of `pair` have an allowed number of whitespace words.

    Args:
        defaults: side -> (smallest, largest) number used where the request sets none.
    """
    for side, text in (("source", pair.source), ("target", pair.references[0])):
        words = len(text.split())
        low, high = defaults[side]
        if not request.bound("min", side, low) <= words <= request.bound("max", side, high):
            return False
    return True
