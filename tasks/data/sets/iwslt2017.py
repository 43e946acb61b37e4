"""IWSLT 2017 TED talks, from the files of the archive or from the hub."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.options import stated
from tasks.data.acquire import hub, sources
from tasks.data.dataset import DataSet, Limits, Manifest, limits, make
from tasks.data.files import sha256_of
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, read_lines, read_text
from tasks.data.read.lines import find_file, folder_of, same_length
from tasks.data.read.pairs import Bounded, Translated, language, word_bounds
from tasks.data.records import Pair, clean

KIND = "pairs"
ARCHIVED = "de-en"  # the language pair at the manifest's web address
LANGUAGES = ("en", "de", "fr", "ar", "ja", "ko", "zh")
FILES = {  # split -> names of its files, with the pair of languages and the language of the file
    "train": ["train.tags.{}.{}"],
    "dev": ["IWSLT17.TED.dev2010.{}.{}.xml"],
    "test": [f"IWSLT17.TED.tst{year}.{{}}.{{}}.xml" for year in range(2010, 2016)],
}


@dataclass
@stated("data/iwslt2017")
class Options(Translated, Bounded):
    """206,112 train, 888 dev (dev2010) and 8,079 test (tst2010 to tst2015) pairs for DE-EN."""

    source_lang: str = language(*LANGUAGES)
    target_lang: str = language(*LANGUAGES)
    min_words: dict = word_bounds("fewest")
    max_words: dict = word_bounds("most")
    path: str | None = local("folder of the language pair as in its archive; null: the hub")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
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
        splits, stamps = _from_hub(manifest, stem, root, progress)
        title += ", Hugging Face release"
    else:
        splits, stamps = _from_files(folder, stem, manifest["get"])
    if stem != "de-en":
        manifest = manifest | {"sizes": {}}
    return make(
        manifest, KIND, lambda progress: {s: options.within(pairs) for s, pairs in splits.items()}, title,
        sources={split: [stamp, options.bounds()] for split, stamp in stamps.items()}, limits=options.limits,
        found={split: len(pairs) for split, pairs in splits.items()}, shortfalls=options.shortfall(), about=about,
    )  # fmt: skip


Found = tuple[dict[str, Sequence[Pair]], dict[str, Any]]  # split -> pairs, split -> their source


def _from_hub(manifest: Mapping[str, Any], pair: str, root: Path, progress: Progress) -> Found:
    def check(row: Mapping[str, Any]) -> str | None:
        whole = all(isinstance(row["translation"].get(language), str) for language in pair.split("-"))
        return None if whole else f"a translation has no text in {' or '.join(pair.split('-'))}: {str(row)[:200]}"

    def made(row: Mapping[str, Any]) -> Pair:
        source, target = (clean(row["translation"][language]) for language in pair.split("-"))
        return Pair(source, (target,))

    return hub.load(manifest, root, progress, make=made, check=check, pair=pair)


def _from_files(folder: Path, stem: str, get: str) -> Found:
    splits, stamps = {}, {}
    for split, names in FILES.items():
        splits[split], stamps[split] = [], []
        for name in names:
            files = [find_file(sources.folders_in(folder), (name.format(stem, lang),), get) for lang in stem.split("-")]
            sides = [tagged_lines(path) if split == "train" else segments(path) for path in files]
            same_length(files, sides)
            splits[split] += [Pair(clean(source), (clean(target),)) for source, target in zip(*sides)]
            stamps[split] += map(sha256_of, files)
    return splits, stamps


def tagged_lines(path: Path) -> list[str]:
    """Sentences of an IWSLT training file: all lines except those that are a tag with its text (<title>..</title>)."""
    return [line for line in read_lines(path) if not re.match(r"\s*</?[a-z]+\b[^>]*>", line)]


def segments(path: Path) -> list[str]:
    """Texts of the <seg> elements of an IWSLT evaluation file, in order."""
    page = read_text(path)
    found = re.findall(r"<seg\b[^>]*>(.*?)</seg>", page, re.S)
    if not found or len(found) != page.count("<seg"):
        problem = f"{len(found):,} whole segments of {page.count('<seg'):,}"
        raise damaged(path, problem, '<seg id="..">text</seg> elements')
    return [html.unescape(text) for text in found]
