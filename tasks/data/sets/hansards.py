"""Hansards: 447 sentence pairs of the Canadian parliament with sure and possible links, from a mirror.

Sources: Och & Ney 2003; NAACL 2003.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read import formats
from tasks.data.read.alignments import aligned, read_pharaoh
from tasks.data.read.pairs import Translated, language
from tasks.data.records import clean

KIND = "pairs"


@dataclass
class Options(Translated):
    """447 pairs, only a test set; tokenised text in lower case."""

    source_lang: str = language("fr", "en", "fr")
    target_lang: str = language("en", "en", "fr")
    mirror: str | None = mirror()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the copy of awesome-align: English-French, with words numbered from 1."""
    files = mirror_files(manifest, options.mirror)

    def read(progress: Progress) -> Splits:
        path = files["enfr.src-tgt"]
        sides = [[clean(side) for side in line.split("|||")] for line in formats.read_lines(path)]
        if wrong := next((i for i, line in enumerate(sides, 1) if len(line) != 2), None):
            raise formats.damaged(path, "not two sides", "English ||| French", line=wrong)
        golds = read_pharaoh(files["enfr.gold"], first=1)
        return {"test": aligned(*map(list, zip(*sides)), golds, swap=options.source_lang == "fr")}

    about = options.about()
    return make(
        manifest, KIND, read, f"Hansards {'-'.join(about.values())}, links of Och & Ney 2003",
        sources={"test": [mirror_hashes(manifest), about]}, limits=options.limits, about=about,
    )  # fmt: skip
