"""Generated test sentences (see `toy`) with the alignments from their generation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import integer, stated
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.progress import Progress
from tasks.data.read.alignments import AlignedPair
from tasks.data.sets.toy import generate, translate

KIND = "pairs"
SIZE = 300


@dataclass
@stated("data/toy_aligned")
class Options:
    """Only a test set: 300 pairs, or as many as `limits` allows."""

    seed: int = integer(low=0, help="of the sentences; toy's own are of seed 1")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Generate pairs in which every link is sure."""
    count = options.limits.test or SIZE

    def read(progress: Progress) -> Splits:
        made = ((text, *translate(text.split())) for text in generate(count, options.seed))
        return {"test": [AlignedPair(text, (" ".join(words),), links, links) for text, words, links in made]}

    return make(
        manifest, KIND, read, f"generated pairs with their planted alignment, seed {options.seed}",
        sources={"test": [options.seed, count]}, about={"source_lang": None, "target_lang": None},
    )  # fmt: skip
