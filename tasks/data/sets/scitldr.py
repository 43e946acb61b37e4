"""SciTLDR-A, from a mirror: summarize a paper's abstract in one sentence; dev and test have several references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.formats import count, damaged, json_lines
from tasks.data.read.pairs import ENGLISH, Bounded, word_bounds
from tasks.data.records import Pair, clean

KIND = "pairs"


@dataclass
@stated("data/scitldr")
class Options(Bounded):
    """1,992 train, 619 dev and 618 test papers, in the published splits."""

    min_words: dict = word_bounds("fewest")
    max_words: dict = word_bounds("most")
    mirror: str | None = mirror()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the published splits."""
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)

    def read(progress: Progress) -> Splits:
        return {s: options.within(_pairs(files[f"{s}.jsonl"])) for s in SPLITS}

    return make(
        manifest, KIND, read, "SciTLDR-A, abstract to one sentence", sources={s: [hashes[f"{s}.jsonl"], options.bounds()] for s in SPLITS},
        limits=options.limits, shortfalls=options.shortfall(), about=ENGLISH,
    )  # fmt: skip


def _pairs(path: Path) -> list[Pair]:
    pairs = []
    for number, record in json_lines(path, {"source": list, "target": list}):
        if not all(isinstance(text, str) for text in (*record["source"], *record["target"])):
            raise damaged(path, "source or target holds something else", "lists of sentences", line=number)
        pair = Pair(clean(" ".join(record["source"])), tuple(filter(None, map(clean, record["target"]))))
        if pair.source and pair.references:
            pairs.append(pair)
        else:
            count(f"lines of {path.name} left out: no source or no target")
    return pairs
