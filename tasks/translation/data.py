"""Corpora for machine translation."""

from __future__ import annotations

import gzip
from pathlib import Path

from tasks.data.errors import DataError
from tasks.data.manifests import load_manifest, mirror_files
from tasks.data.progress import Progress
from tasks.seq2seq.corpus import Corpus, Pair, Request, clean, make_corpus, within_bounds

ANY_LENGTH = {"source": (1, 1_000_000), "target": (1, 1_000_000)}


def languages(request: Request, allowed: set[str], default: tuple[str, str]) -> tuple[str, str]:
    """The pair (source, target) of a request, checked against the languages that a data set has."""
    pair = (request.source_lang or default[0], request.target_lang or default[1])
    if pair[0] == pair[1] or not set(pair) <= allowed:
        raise DataError(
            f"{request.name} has no pair {pair[0]}-{pair[1]}",
            f"languages: {', '.join(sorted(allowed))}",
            "set data.source_lang and data.target_lang to two different ones of these",
        )
    return pair


def parallel(source: list[str], target: list[str], where: str) -> list[Pair]:
    """Pair two lists of lines; `DataError` naming `where` they come from when their lengths differ."""
    if len(source) != len(target):
        raise DataError(
            "the two sides have different numbers of lines",
            f"{where}: {len(source):,} and {len(target):,}",
            "fetch both files again, from the same release",
        )
    return [Pair(clean(s), (clean(t),)) for s, t in zip(source, target, strict=True)]


def load_multi30k(request: Request, progress: Progress) -> Corpus:
    """Multi30k task 1 (29,000 / 1,014 / 1,000 pairs), read from a mirror.

    `test_set`: test_2016_flickr (default), test_2017_flickr, test_2017_mscoco or test_2018_flickr.
    """
    manifest = load_manifest("multi30k")
    source, target = languages(request, {"en", "fr", "de"}, ("fr", "en"))
    test_sets = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
    test_set = request.test_set or test_sets[0]
    if test_set not in test_sets:
        raise DataError(f"multi30k has no test set {test_set!r}", f"allowed: {', '.join(test_sets)}", "choose one")
    stems = {"train": "train", "dev": "val", "test": test_set}
    wanted = tuple(f"{stem}.{lang}.gz" for stem in stems.values() for lang in (source, target))
    files = mirror_files(manifest, None if request.mirror is None else Path(request.mirror), wanted)
    splits = {}
    for split, stem in stems.items():
        sides = [gzip.open(files[f"{stem}.{lang}.gz"], "rt", encoding="utf-8").readlines() for lang in (source, target)]
        pairs = parallel(*sides, where=f"{stem}.{{{source},{target}}}.gz")
        splits[split] = [pair for pair in pairs if within_bounds(pair, request, ANY_LENGTH)]
    return make_corpus(request, splits, manifest, f"Multi30k {source}-{target}, test set {test_set}")
