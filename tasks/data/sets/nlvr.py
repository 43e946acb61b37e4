"""NLVR (Suhr et al. 2017): sentences that are true or false for a generated image, from a mirror."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import REQUIRED, choice, integer, listing, stated
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.images import Files, ImageInput, stem_key
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.questions import limited, read_nlvr

KIND = "questions"
PARTS = {"train": "dev", "dev": "hidden", "test": "test"}


@dataclass
@stated("data/nlvr")
class Options:
    """989 train, 985 dev and 990 test sentences: NLVR's dev split is used for training, and its hidden split as dev."""

    mirror: str | None = mirror()
    input: str = choice(REQUIRED, "pixels", "none", help="pixels: a CNN of the model reads them; none: sentences alone")
    image_size: list = listing(REQUIRED, integer(low=1), length=2, help="height and width that pixels are resized to")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load permutation 0 of the boxes of every image."""
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)

    def read(progress: Progress) -> Splits:
        return {split: read_nlvr(files[f"{part}.json"], part) for split, part in PARTS.items()}

    source = Files([files[f"{part}_images_perm0.tar"] for part in PARTS.values()], stem_key)
    return make(
        manifest, KIND, read, "NLVR, permutation 0", sources={split: hashes[f"{part}.json"] for split, part in PARTS.items()},
        limits=options.limits, cut=limited,
        notes=["NLVR's training images are not in the mirror: its dev split is trained on, its hidden split selects"],
        about={"images": ImageInput(options.input, tuple(options.image_size), source)},
    )  # fmt: skip
