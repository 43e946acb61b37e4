"""A data set that has been found and not yet read, and what every loader reports of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.config.options import integer, node
from tasks.data.progress import Progress
from tasks.data.read.formats import TOO_LONG, count, too_long
from tasks.data.records import Labelled, Subset, first, texts_of

SPLITS = ("train", "dev", "test")
Splits = Mapping[str, Sequence[Any]]  # split -> its records
Manifest = Mapping[str, Any]
NOUNS = {"pairs": "pairs", "texts": "examples", "questions": "questions", "features": "documents"}
_SPLIT_WORDS = {"train": "training", "dev": "dev", "test": "test"}


@dataclass
class DataSet:
    """A data set that can be read.

    Attributes:
        name: of the set ("toy" after a fallback).
        kind: pairs, texts, questions or features, see `tasks.data.records`.
        fingerprint: split -> hash of what the split is read from: files and the options that matter to this split. That of
            train and dev knows nothing of test.
        read: gives split -> records; a split that the set does not have is absent or empty.
        provenance: one line for the footer of a table.
        notes: what a reader of the numbers must know. Reading may add to them and to the shortfalls (`tasks.data.open_data`).
        shortfalls: why this is not all of a paper's data, a sentence each; empty: it is all of them.
        demo: True when it replaces a data set of a paper in the demo.
        stands_for: the data set it stands in for.
        about: by kind. pairs: source_lang, target_lang; digits when the model's training text has every digit as this sign.
            texts: classes, fields. questions: images (`tasks.data.images.Images`). features: labels.
    """

    name: str
    kind: str
    fingerprint: Mapping[str, str]
    read: Callable[[Progress], Splits]
    provenance: str
    notes: tuple[str, ...] = ()
    shortfalls: tuple[str, ...] = ()
    demo: bool = False
    stands_for: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Limits:
    """The first so many records of a split; null: all."""

    train: int | None = integer(None, low=1, optional=True, help="training records")
    dev: int | None = integer(None, low=1, optional=True, help="dev records")
    test: int | None = integer(None, low=1, optional=True, help="test records")

    def of(self, split: str) -> int | None:
        return getattr(self, split)


def limits() -> Any:
    """The option `limits` of a data set."""
    return node(Limits)


def make(
    manifest: Manifest,
    kind: str,
    read: Callable[[Progress], Splits],
    provenance: str,
    *,
    sources: Mapping[str, Any],
    limits: Limits | None = None,
    found: Mapping[str, int] | None = None,
    notes: Iterable[str] = (),
    shortfalls: Iterable[str] = (),
    about: Mapping[str, Any] | None = None,
    cut: Callable[[Sequence[Any], int | None], Sequence[Any]] = first,
) -> DataSet:
    """Finish a loader: apply the limits, fingerprint every split, say what is short of the paper's data.

    Args:
        manifest: of the set; its `sizes`, `tables`, `stands_for` and `shortfalls` decide what is missing.
        sources: split -> what it is read from, as JSON: hashes of files and options that matter to the split.
        found: split -> number of records there are, where that is known before reading.
        cut: how a split is limited (default: its first records).
    """
    limits = limits or Limits(None, None, None)
    name = manifest["name"]
    return DataSet(
        name=name,
        kind=kind,
        fingerprint={s: fingerprint(name, s, source, limits.of(s)) for s, source in sources.items()},
        read=lambda progress: {
            split: _readable(cut(records, limits.of(split)), f"{_SPLIT_WORDS[split]} {NOUNS[kind]}")
            for split, records in read(progress).items()
        },
        provenance=provenance,
        notes=tuple(notes),
        shortfalls=(*_shortfalls(manifest, NOUNS[kind], limits, found or {}), *shortfalls),
        demo=bool(manifest.get("demo", False)),
        stands_for=manifest.get("stands_for"),
        about=dict(about or {}),
    )


def _readable(records: Sequence[Any], what: str) -> Sequence[Any]:
    """The records whose texts are within the limits of `tasks.data.read.formats`; the others are counted."""
    if isinstance(records, Labelled):
        return records
    long = {i for i, record in enumerate(records) if any(map(too_long, texts_of(record)))}
    count(f"{what} left out: {TOO_LONG}", len(long))
    return Subset(records, [i for i in range(len(records)) if i not in long]) if long else records


def _shortfalls(manifest: Manifest, noun: str, limits: Limits, found: Mapping[str, int]) -> list[str]:
    told = list(manifest.get("shortfalls", ()))
    if manifest.get("kind") == "own":
        told.append("own data")
    elif manifest.get("stands_for"):
        told.append(f"{manifest['name']} stands for {manifest['stands_for']}")
    elif not manifest.get("tables"):
        told.append(f"{manifest['name']} is not in the papers' tables")
    for split in SPLITS:
        full, limit = manifest.get("sizes", {}).get(split), limits.of(split)
        released = full if isinstance(full, list) else [full] if full else []
        have = found.get(split, max(released, default=None))
        used = limit if have is None else have if limit is None else min(have, limit)
        what = f"{_SPLIT_WORDS[split]} {noun}"
        if released and used not in released:
            told.append(
                f"{used:,} of {max(released):,} {what}"
                if used < max(released)
                else f"{used:,} {what} where the paper has {max(released):,}"
            )
        elif not released and limit is not None and used == limit:
            told.append(f"at most {limit:,} {what}")
    return told


def fingerprint(*parts: Any) -> str:
    """sha256 of the parts as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def content_sha256(records: Sequence[Any]) -> str:
    """sha256 of one split's records: one JSON line each; of arrays, ten decimals (below, machines differ)."""
    digest = hashlib.sha256()
    if isinstance(records, Labelled):
        for part in (np.round(records.features, 10) + 0.0, records.labels):
            digest.update(repr((part.shape, part.dtype.str)).encode() + part.tobytes())
        return digest.hexdigest()
    for record in records:
        values = [
            sorted(v) if isinstance(v, frozenset) else v
            for v in (getattr(record, f.name) for f in dataclasses.fields(record))
        ]
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
