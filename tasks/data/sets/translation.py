"""Translation: baseline-1M, Multi30k and IWSLT 2017.

baseline_1m_enfr   1M pairs EN-FR of the NMT-Benchmark, from Europarl and News Commentary, used by Laha et al. 2018
multi30k           task 1: captions of photographs in English, French and German, from a mirror, its repository or the hub
iwslt2017          TED talks, from the files of the archive or from the hub
"""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.config.options import REQUIRED, choice, defaults
from tasks.data.acquire import hub, sources
from tasks.data.dataset import DataSet, Limited, Loader, Manifest, Splits, make
from tasks.data.files import sha256_of
from tasks.data.manifests import Mirrored, local, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, read_lines, read_text
from tasks.data.read.lines import LinePairs, find_file, folder_of, line_pairs, same_length
from tasks.data.read.pairs import Bounded, Translated, language
from tasks.data.records import Pair, clean

KIND = "pairs"


@defaults("data/baseline_1m_enfr")
class Baseline(Translated, Limited):
    """Either translation direction, with the archive's generic test set."""

    source_lang: str = language("en", "fr")
    target_lang: str = language("en", "fr")
    path: str | None = local("folder of the unpacked archive; null: where scripts/data.py fetch puts it")


def load_baseline(manifest: Manifest, options: Baseline, root: Path, progress: Progress) -> DataSet:
    """Read the files baseline-1M_train.en, baseline-1M_valid.fr and so on; lines are read on demand."""
    folder = root / manifest["name"] if options.path is None else folder_of(options.path, manifest["get"])
    about, parts = options.about(), {"train": "train", "dev": "valid", "test": "test"}
    names = {s: [(f"baseline-1M_{part}.{lang}",) for lang in about.values()] for s, part in parts.items()}
    splits, hashes = line_pairs(sources.folders_in(folder), names, manifest["get"], progress)
    title = f"baseline-1M-enfr (NMT-Benchmark), {'-'.join(about.values())}, generic test set"
    counts = {s: len(pairs) for s, pairs in splits.items()}
    more = {"sources": hashes, "limits": options.limits, "counts": counts, "about": about}
    return make(manifest, KIND, lambda progress: splits, title, **more)


TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")


@defaults("data/multi30k")
class Multi30k(Translated, Bounded, Mirrored):
    """29,000 train, 1,014 dev and 1,000 test pairs."""

    source_lang: str = language("en", "fr", "de")
    target_lang: str = language("en", "fr", "de")
    test_set: str = choice(REQUIRED, *TEST_SETS, help="which of the four test sets")


def load_multi30k(manifest: Manifest, options: Multi30k, root: Path, progress: Progress) -> DataSet:
    """Load the raw text as published."""
    about, short = options.about(), options.shortfall()
    stems = {"train": "train", "dev": "val", "test": options.test_set}
    names = {split: [f"{stem}.{lang}.gz" for lang in about.values()] for split, stem in stems.items()}
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

    origin = {split: [stamp, options.bounds()] for split, stamp in stamps.items()}
    return make(manifest, KIND, read, title, sources=origin, limits=options.limits, shortfalls=short, about=about)


ARCHIVED = "de-en"  # the language pair at the manifest's web address
LANGUAGES = ("en", "de", "fr", "ar", "ja", "ko", "zh")
FILES = {  # split -> names of its files, with the pair of languages and the language of the file
    "train": ["train.tags.{}.{}"],
    "dev": ["IWSLT17.TED.dev2010.{}.{}.xml"],
    "test": [f"IWSLT17.TED.tst{year}.{{}}.{{}}.xml" for year in range(2010, 2016)],
}


@defaults("data/iwslt2017")
class Iwslt(Translated, Bounded):
    """206,112 train, 888 dev (dev2010) and 8,079 test (tst2010 to tst2015) pairs for DE-EN."""

    source_lang: str = language(*LANGUAGES)
    target_lang: str = language(*LANGUAGES)
    path: str | None = local("folder of the language pair as in its archive; null: the hub")


def load_iwslt(manifest: Manifest, options: Iwslt, root: Path, progress: Progress) -> DataSet:
    """Load a language pair. `path` is a folder with train.tags.de-en.de, IWSLT17.TED.dev2010.de-en.de.xml and so on.

    These files may also be in its subfolder de-en.
    """
    about = options.about()
    stem = "-".join(about.values())
    title = f"IWSLT 2017 {stem}, dev2010, tst2010-2015"
    if options.path is None:
        folder = sources.found(manifest, root) if stem == ARCHIVED else None
    else:
        folder = folder_of(options.path, manifest["get"])
    if folder is None:

        def check(row: Mapping[str, Any]) -> str | None:
            whole = all(isinstance(row["translation"].get(lang), str) for lang in about.values())
            return None if whole else f"a translation has no text in {' or '.join(about.values())}: {str(row)[:200]}"

        def made(row: Mapping[str, Any]) -> Pair:
            source, target = (clean(row["translation"][lang]) for lang in about.values())
            return Pair(source, (target,))

        splits, stamps = hub.load(manifest, root, progress, make=made, check=check, pair=stem)
        title += ", Hugging Face release"
    else:
        splits, stamps = {split: [] for split in FILES}, {split: [] for split in FILES}
        for split, name in ((split, name) for split, names in FILES.items() for name in names):
            wanted = [(name.format(stem, lang),) for lang in about.values()]
            files = [find_file(sources.folders_in(folder), one, manifest["get"]) for one in wanted]
            sides = [segments(path) for path in files]
            same_length(files, sides)
            splits[split] += [Pair(clean(source), (clean(target),)) for source, target in zip(*sides)]
            stamps[split] += map(sha256_of, files)
    if stem != "de-en":
        manifest = manifest | {"sizes": {}}

    def read(progress: Progress) -> Splits:
        return {s: options.within(pairs) for s, pairs in splits.items()}

    origin = {split: [stamp, options.bounds()] for split, stamp in stamps.items()}
    counts = {split: len(pairs) for split, pairs in splits.items()}
    more = {"limits": options.limits, "counts": counts, "shortfalls": options.shortfall(), "about": about}
    return make(manifest, KIND, read, title, sources=origin, **more)


def segments(path: Path) -> list[str]:
    """Sentences of an IWSLT file, in order: the <seg>s, or, for training, all lines but those that are a tag."""
    if path.name.startswith("train.tags"):
        return [line for line in read_lines(path) if not re.match(r"\s*</?[a-z]+\b[^>]*>", line)]
    page = read_text(path)
    found = re.findall(r"<seg\b[^>]*>(.*?)</seg>", page, re.S)
    if not found or len(found) != page.count("<seg"):
        problem = f"{len(found):,} whole segments of {page.count('<seg'):,}"
        raise damaged(path, problem, '<seg id="..">text</seg> elements')
    return [html.unescape(text) for text in found]


SETS = {
    "baseline_1m_enfr": Loader(KIND, Baseline, load_baseline),
    "multi30k": Loader(KIND, Multi30k, load_multi30k),
    "iwslt2017": Loader(KIND, Iwslt, load_iwslt),
}
