"""PUD English-French: 999 sentences of news and Wikipedia with linked content words, from a mirror.

Source: Nikolaev et al. 2020.
"""

from __future__ import annotations

from pathlib import Path

from tasks.data.dataset import DataSet, Manifest, Splits, make
from tasks.data.manifests import mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.alignments import aligned, read_pud
from tasks.data.sets.hansards import Options as Options

KIND = "pairs"


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the sentences. All links are sure.

    Function words have no links: predicted links of function words, which were never annotated, count against
    precision.
    """
    files = mirror_files(manifest, options.mirror)

    def read(progress: Progress) -> Splits:
        english, french, golds = read_pud(files["alignment.json"], files["en.conllu"], files["target.conllu"])
        sides = [[" ".join(words) for words in side] for side in (english, french)]
        return {"test": aligned(*sides, golds, swap=options.source_lang == "fr")}

    about = options.about()
    return make(
        manifest, KIND, read, f"PUD {'-'.join(about.values())}, content words linked (Nikolaev et al. 2020)",
        sources={"test": [mirror_hashes(manifest), about]}, limits=options.limits, about=about,
        notes=["PUD: content words alone are linked, so precision is at most about .6"],
    )  # fmt: skip
