"""Test sentences in English and French with manually linked words, from a mirror.

hansards   447 pairs of the Canadian parliament, sure and possible links (Och & Ney 2003; NAACL 2003); the copy of
           awesome-align, tokenised and in lower case, with words numbered from 1
pud_enfr   999 pairs of news and Wikipedia, sure links of content words (Nikolaev et al. 2020). Function words have no
           links: predicted links of function words, which were never annotated, count against precision
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read import formats
from tasks.data.read.alignments import Gold, aligned, read_pharaoh, read_pud
from tasks.data.read.pairs import Translated, language
from tasks.data.records import clean

KIND = "pairs"


@dataclass
@stated("data/hansards")
class Options(Translated):
    """Only a test set, in one of two directions."""

    source_lang: str = language("en", "fr")
    target_lang: str = language("en", "fr")
    mirror: str | None = mirror()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the sentences and their links."""
    files, about = mirror_files(manifest, options.mirror), options.about()
    reader, title, notes = SETS[manifest["name"]]

    def read(progress: Progress) -> Splits:
        return {"test": aligned(*reader(files), swap=options.source_lang == "fr")}

    return make(
        manifest, KIND, read, title.format("-".join(about.values())), sources={"test": [mirror_hashes(manifest), about]},
        limits=options.limits, about=about, notes=notes,
    )  # fmt: skip


def _hansards(files: Mapping[str, Path]) -> tuple[list[str], list[str], list[Gold]]:
    path = files["enfr.src-tgt"]
    sides = [[clean(side) for side in line.split("|||")] for line in formats.read_lines(path)]
    if wrong := next((i for i, line in enumerate(sides, 1) if len(line) != 2), None):
        raise formats.damaged(path, "not two sides", "English ||| French", line=wrong)
    english, french = map(list, zip(*sides))
    return english, french, read_pharaoh(files["enfr.gold"], first=1)


def _pud(files: Mapping[str, Path]) -> tuple[list[str], list[str], list[Gold]]:
    english, french, golds = read_pud(files["alignment.json"], files["en.conllu"], files["target.conllu"])
    return [" ".join(words) for words in english], [" ".join(words) for words in french], golds


SETS = {  # name -> reader, provenance, notes
    "hansards": (_hansards, "Hansards {}, links of Och & Ney 2003", ()),
    "pud_enfr": (
        _pud, "PUD {}, content words linked (Nikolaev et al. 2020)",
        ("PUD: content words alone are linked, so precision is at most about .6",),
    ),
}  # fmt: skip
