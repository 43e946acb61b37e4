"""Multi30k, task 1: captions of photographs in English, French and German, from a mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.data.dataset import DataSet, Limits, limits, make
from tasks.data.manifests import load_manifest, mirror_files, mirror_hashes
from tasks.data.pairs import (
    bounds,
    bounds_shortfall,
    language,
    languages,
    parallel,
    two_languages,
    within_bounds,
    word_bounds,
)
from tasks.data.progress import Progress
from tasks.data.reading import read_lines
from tasks.data.records import Pair
from tasks.options import choice, text

KIND = "pairs"
TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")


@dataclass
class Options:
    """29,000 / 1,014 / 1,000 pairs."""

    source_lang: str = language("fr", "en", "fr", "de")
    target_lang: str = language("en", "en", "fr", "de")
    test_set: str = choice(TEST_SETS[0], *TEST_SETS, help="which of the four test sets")
    min_words: dict = word_bounds(None, None, "fewest words of a text")
    max_words: dict = word_bounds(None, None, "most words of a text")
    mirror: str | None = text(None, optional=True, help="folder of local copies, laid out as the manifest says")
    limits: Limits = limits()

    def problems(self) -> list[str]:
        return two_languages(self)


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """Raw text as published."""
    manifest = load_manifest("multi30k")
    names = {
        split: [f"{stem}.{lang}.gz" for lang in (options.source_lang, options.target_lang)]
        for split, stem in (("train", "train"), ("dev", "val"), ("test", options.test_set))
    }
    files = mirror_files(manifest, options.mirror, tuple(name for pair in names.values() for name in pair))
    hashes = mirror_hashes(manifest)

    def read(progress: Progress) -> Mapping[str, Sequence[Pair]]:
        sides = {split: [files[name] for name in pair] for split, pair in names.items()}
        return {split: within_bounds(parallel(paths, read_lines), options) for split, paths in sides.items()}

    about = languages(options)
    return make(
        manifest, KIND, read, f"Multi30k {'-'.join(about.values())}, test set {options.test_set}",
        sources={split: [[hashes[name] for name in pair], bounds(options)] for split, pair in names.items()},
        limits=options.limits, shortfalls=bounds_shortfall(options), about=about,
    )  # fmt: skip
