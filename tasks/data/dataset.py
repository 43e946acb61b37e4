"""A data set that has been found but not yet read, with the description that every loader returns."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.files import remembered
from tasks.data.options import Limits, different
from tasks.data.progress import Progress
from tasks.data.read.formats import TOO_LONG, count, too_long
from tasks.data.read.splits import Parts, split_by_content
from tasks.data.records import Example, Labelled, Pair, first, subset, texts_of

SPLITS = ("train", "dev", "test")
Splits = Mapping[str, Sequence[Any]]  # split -> its records
Manifest = Mapping[str, Any]
NOUNS = {"pairs": "pairs", "texts": "examples", "questions": "questions", "features": "documents"}
ENGLISH = {"source_lang": "en", "target_lang": "en"}
MEMORISED = 0.01  # the footer warns if a larger share of a split's texts is also in another
_SPLIT_WORDS = {"train": "training", "dev": "dev", "test": "test"}


@dataclass
class DataSet:
    """A data set that can be read.

    Attributes:
        name: name of the data set ("toy" after a fallback).
        kind: pairs, texts, questions or features; see `tasks.data.records`.
        fingerprint: split -> hash of the split's source: its files and the options that affect this split. The
            fingerprints of train and dev do not depend on test.
        read: returns split -> records. A split that the data set does not have is absent or empty.
        provenance: one line for the footer of a table.
        notes: what a reader of the results must know. Reading may add notes and shortfalls (`tasks.data.open_data`).
        shortfalls: the reasons why this is not all of a paper's data, one sentence each; empty if it is complete.
        demo: True if it replaces a paper's data set in the demo.
        stands_for: name of the data set that it replaces.
        about: depends on the kind. pairs: source_lang, target_lang, and digits if every digit in the model's training
            text is replaced by this character. texts: classes, fields. questions: images (`tasks.data.images.Images`).
            features: labels.
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


@dataclass(eq=False)
class Loader:
    """How a data set is read; the dict `SETS` of a file in `tasks/data/sets` has one by the name of each set.

    Attributes:
        KIND: as in `tasks.data.records`.
        load: (manifest, options, root, progress) -> DataSet.
        own: option -> what it accepts, if `tasks.data.options.FIELDS` does not say it.
        check: options -> problems of their combination.
    """

    KIND: str
    load: Callable[..., DataSet]
    own: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Any], list[str]] = different


def make(
    manifest: Manifest,
    kind: str,
    read: Callable[[Progress], Splits],
    provenance: str,
    *,
    sources: Mapping[str, Any],
    limits: Limits | None = None,
    counts: Mapping[str, int] | None = None,
    notes: Iterable[str] = (),
    shortfalls: Iterable[str] = (),
    about: Mapping[str, Any] | None = None,
    cut: Callable[[Sequence[Any], int | None], Sequence[Any]] = first,
) -> DataSet:
    """Finish a loader's work: apply the limits, fingerprint each split, and list what is missing from the paper's data.

    Args:
        manifest: manifest of the data set; its `sizes`, `tables`, `stands_for` and `shortfalls` determine what is
            missing.
        sources: split -> description of its source, as JSON: hashes of the files and the options that affect the split.
        counts: split -> number of records available, if known before reading.
        cut: function that limits a split (by default, it keeps the first records).
    """
    limits = limits or Limits(**dict.fromkeys(SPLITS))
    name = manifest["name"]

    def limited(progress: Progress) -> Splits:
        splits = {
            split: _readable(cut(records, limits.of(split)), f"{_SPLIT_WORDS[split]} {NOUNS[kind]}")
            for split, records in read(progress).items()
        }
        if manifest.get("kind") == "own":
            inputs = {s: _inputs(splits.get(s, ())) for s in SPLITS}
            for split, other in (("dev", "train"), ("test", "train"), ("test", "dev")):
                n, known = len(inputs[split]), set(inputs[other])
                share = (same := sum(one in known for one in inputs[split])) / max(n, 1)
                warning = ". WARNING: its scores are too good" if share >= MEMORISED else ""
                count(f"of {n:,} {split} inputs ({share:.1%}) are also in {other}{warning}", same)
        classes = (about or {}).get("classes" if kind == "texts" else "labels", ())
        for split, records in splits.items() if manifest.get("kind") == "own" else ():
            if isinstance(records, Labelled):
                there = {*np.flatnonzero(np.any(records.labels, 0)).tolist()}
            else:
                there = {record.label for record in records} if classes else set()
            absent = [name for i, name in enumerate(classes) if i not in there]
            named = ", ".join(absent[:6]) + (", ..." if absent[6:] else "")
            count(f"of {len(classes)} classes without an example in {split}: {named}", len(absent))
        return splits

    prints = {s: fingerprint(name, s, source, limits.of(s)) for s, source in sources.items()}
    short = (*_shortfalls(manifest, NOUNS[kind], limits, counts or {}), *shortfalls)
    replaced = bool(manifest.get("demo", False)), manifest.get("stands_for")
    return DataSet(name, kind, prints, limited, provenance, tuple(notes), short, *replaced, dict(about or {}))


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


def _readable(records: Sequence[Any], what: str) -> Sequence[Any]:
    """The records whose texts are within the limits of `tasks.data.read.formats`; others are left out and counted."""
    if isinstance(records, Labelled):
        return records
    long = {i for i, record in enumerate(records) if any(map(too_long, texts_of(record)))}
    count(f"{what} left out: {TOO_LONG}", len(long))
    return subset(records, [i for i in range(len(records)) if i not in long]) if long else records


def _inputs(records: Sequence[Any]) -> list[int]:
    """A hash of what a model reads of each record."""
    if isinstance(records, Labelled):
        return [hash(row.tobytes()) for row in records.features]
    return [
        hash(r.source if isinstance(r, Pair) else r.texts if isinstance(r, Example) else (r.image, r.text))
        for r in records
    ]


def _shortfalls(manifest: Manifest, noun: str, limits: Limits, counts: Mapping[str, int]) -> list[str]:
    shortfalls = list(manifest.get("shortfalls", ()))
    if manifest.get("kind") == "own":
        shortfalls.append("own data")
    elif manifest.get("stands_for"):
        shortfalls.append(f"{manifest['name']} stands for {manifest['stands_for']}")
    elif not manifest.get("tables"):
        shortfalls.append(f"{manifest['name']} is not in the papers' tables")
    for split in SPLITS:
        full, limit = manifest.get("sizes", {}).get(split), limits.of(split)
        released = full if isinstance(full, list) else [full] if full else []
        have = counts.get(split, max(released, default=None))
        used = limit if have is None else have if limit is None else min(have, limit)
        what = f"{_SPLIT_WORDS[split]} {noun}"
        if released and used not in released:
            full = max(released)
            more = f"{used:,} {what} where the paper has {full:,}"
            shortfalls.append(f"{used:,} of {full:,} {what}" if used < full else more)
        elif not released and limit is not None and used == limit:
            shortfalls.append(f"at most {limit:,} {what}")
    return shortfalls


def fingerprint(*parts: Any) -> str:
    """sha256 of the parts, serialised as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def content_sha256(records: Sequence[Any]) -> str:
    """sha256 of one split's records, one JSON line per record.

    Arrays are rounded to ten decimals, because further digits differ between machines.
    """
    digest = hashlib.sha256()
    if isinstance(records, Labelled):
        for part in (np.round(records.features, 10) + 0.0, records.labels):
            digest.update(repr((part.shape, part.dtype.str)).encode() + part.tobytes())
        return digest.hexdigest()
    for record in records:
        values = [getattr(record, field.name) for field in dataclasses.fields(record)]
        values = [sorted(value) if isinstance(value, frozenset) else value for value in values]
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
