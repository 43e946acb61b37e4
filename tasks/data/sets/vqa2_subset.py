"""60,000 questions of VQA v2 without images, from a mirror, to test how much the questions alone reveal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import REQUIRED, choice, stated
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.images import ImageInput
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.questions import limited, read_vqa2

KIND = "questions"
PARTS = {"train": "train", "dev": "valid", "test": "test"}


@dataclass
@stated("data/vqa2_subset")
class Options:
    """48,061 train, 8,977 dev and 2,962 test questions with ten answers each."""

    mirror: str | None = mirror()
    input: str = choice(REQUIRED, "none", help="there are no images")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the files as published, in the challenge's format."""
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)
    names = {split: [f"vqa_questions_{part}.gzip", f"vqa_annotatons_{part}.gzip"] for split, part in PARTS.items()}

    def read(progress: Progress) -> Splits:
        return {split: read_vqa2(*(files[name] for name in pair)) for split, pair in names.items()}

    sources = {split: [hashes[name] for name in pair] for split, pair in names.items()}
    return make(
        manifest, KIND, read, "VQA v2, 60,000 questions of train and val (no images)", sources=sources, limits=options.limits,
        cut=limited, about={"images": ImageInput("none", (1, 1), None)},
    )  # fmt: skip
