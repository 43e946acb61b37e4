"""Debian package descriptions: first paragraph to synopsis; stands for Gigaword and DUC in the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.data.dataset import SPLITS, DataSet, Limits, fingerprint, limits, make
from tasks.data.debian import load_descriptions
from tasks.data.manifests import load_manifest
from tasks.data.pairs import ENGLISH, bounds, within_bounds, word_bounds
from tasks.data.progress import Progress
from tasks.data.records import Pair
from tasks.options import choice

KIND = "pairs"


@dataclass
class Options:
    """About 36,000 pairs; paragraphs have ten words or more."""

    min_words: dict = word_bounds(10, 1, "fewest words of a text")
    max_words: dict = word_bounds(1000, 100, "most words of a text")
    fallback: str | None = choice(
        "toy", "toy", optional=True, help="generated pairs when the text cannot be had; null: an error"
    )
    limits: Limits = limits()


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """Fetched by a private apt."""
    found = load_descriptions(root, progress)

    def read(progress: Progress) -> Mapping[str, Sequence[Pair]]:
        return {
            s: within_bounds((Pair(row.paragraph, (row.synopsis,)) for row in found.of(s)), options) for s in SPLITS
        }

    return make(
        load_manifest("debian_descriptions"), KIND, read, f"{found.provenance}, first paragraph to synopsis",
        sources=dict.fromkeys(SPLITS, fingerprint(found.sha256, bounds(options))), limits=options.limits, notes=[found.parts.note("paragraphs")],
        about=ENGLISH,
    )  # fmt: skip
