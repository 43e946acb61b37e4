"""Multi30k, task 1: captions of photographs in English, French and German, from a mirror, its repository or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import REQUIRED, choice, stated
from tasks.data.acquire import hub, sources
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.lines import LinePairs
from tasks.data.read.pairs import Bounded, Translated, language, word_bounds
from tasks.data.records import Pair, clean

KIND = "pairs"
TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")


@dataclass
@stated("data/multi30k")
class Options(Translated, Bounded):
    """29,000 train, 1,014 dev and 1,000 test pairs."""

    source_lang: str = language("en", "fr", "de")
    target_lang: str = language("en", "fr", "de")
    test_set: str = choice(REQUIRED, *TEST_SETS, help="which of the four test sets")
    min_words: dict = word_bounds("fewest")
    max_words: dict = word_bounds("most")
    mirror: str | None = mirror()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the raw text as published."""
    names = {
        split: [f"{stem}.{lang}.gz" for lang in (options.source_lang, options.target_lang)]
        for split, stem in (("train", "train"), ("dev", "val"), ("test", options.test_set))
    }
    about, short = options.about(), options.shortfall()
    title = f"Multi30k {'-'.join(about.values())}, test set {options.test_set}"
    mirror = options.mirror or sources.found(manifest, root)
    if mirror is None and {*about.values()} == {"en", "de"} and options.test_set == TEST_SETS[0]:

        def pair(row: Mapping[str, str]) -> Pair:
            return Pair(clean(row[options.source_lang]), (clean(row[options.target_lang]),))

        found, stamps = hub.load(manifest, root, progress, make=pair)
        title, short = f"{title}, the hub", [*short, "the hub's copy, which was not held against the released files"]
    else:
        files = mirror_files(manifest, mirror, (*names["train"], *names["dev"], *names["test"]))
        found, hashes = None, mirror_hashes(manifest)
        stamps = {split: [hashes[name] for name in pair] for split, pair in names.items()}

    def read(progress: Progress) -> Splits:
        splits = found or {s: LinePairs(files[one], [files[two]]) for s, (one, two) in names.items()}
        return {split: options.within(pairs) for split, pairs in splits.items()}

    return make(
        manifest, KIND, read, title, sources={split: [stamp, options.bounds()] for split, stamp in stamps.items()},
        limits=options.limits, shortfalls=short, about=about,
    )  # fmt: skip
