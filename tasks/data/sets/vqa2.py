"""VQA v2 (Goyal et al. 2017) from the challenge's files, used in Table 2 of Martins et al. 2020."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import REQUIRED, choice, integer, listing, number, stated
from tasks.data.acquire import sources
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.files import sha256_of
from tasks.data.images import Files, ImageInput, coco_key
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.formats import read_text
from tasks.data.read.lines import find_file, folder_of
from tasks.data.read.questions import hold_out, limited, read_vqa2

KIND = "questions"


@dataclass
@stated("data/vqa2")
class Options:
    """Trained on train without dev and evaluated on val, since the challenge's test sets have no public answers."""

    path: str | None = local("folder with the four JSON files, the images, features/; null: what was fetched")
    input: str = choice(REQUIRED, "features", "pixels", "none", help="extracted features, a CNN on pixels, or neither")
    image_size: list = listing(REQUIRED, integer(low=1), length=2, help="height and width that pixels are resized to")
    dev_share: float = number(above=0, below=1, help="share of the training images whose questions are dev")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load 443,757 training and 214,354 val questions with ten answers each; the JSON files may be gzipped."""
    fetched = sources.found(manifest, root) if options.path is None else None
    folder = fetched or folder_of(options.path, manifest["get"])
    within = sources.folders_in(folder) if fetched else [folder]
    files = {
        part: [
            find_file(within, (name,), manifest["get"])
            for name in (f"v2_OpenEnded_mscoco_{part}2014_questions.json", f"v2_mscoco_{part}2014_annotations.json")
        ]
        for part in ("train", "val")
    }
    asked = {part: read_text(pair[0]).count('"question_id"') for part, pair in files.items()}

    def read(progress: Progress) -> Splits:
        parts = {}
        for part, pair in files.items():
            progress.say(f"reading VQA v2 {part}")
            parts[part] = read_vqa2(*pair)
        train, dev = hold_out(parts["train"], options.dev_share)
        return {"train": train, "dev": dev, "test": parts["val"]}

    hashes = {part: [sha256_of(path) for path in pair] for part, pair in files.items()}
    held_out = [hashes["train"], options.dev_share]
    named = [p for part in ("train2014", "val2014") for p in (folder / part, folder / f"{part}.zip")]
    places = [p for p in named if p.exists() or p.is_symlink()]
    source = Files(places, coco_key) if places else None
    return make(
        manifest, KIND, read, "VQA v2, train and val", sources={"train": held_out, "dev": held_out, "test": hashes["val"]},
        limits=options.limits, cut=limited, found={"train": asked["train"], "test": asked["val"]}, notes=[f"dev: the questions on {options.dev_share:.0%} of the training images"],
        about={"images": ImageInput(options.input, tuple(options.image_size), source, folder / "features")},
    )  # fmt: skip
