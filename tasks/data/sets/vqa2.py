"""VQA v2 (Goyal et al. 2017) from the challenge's files: the data of Martins et al. 2020, Table 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.data.dataset import DataSet, Limits, limits, make
from tasks.data.errors import DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.images import Files, ImageInput, coco_key
from tasks.data.manifests import load_manifest
from tasks.data.progress import Progress
from tasks.data.questions import hold_out, limited, read_text, read_vqa2
from tasks.data.records import Question
from tasks.options import choice, integer, listing, number, text

KIND = "questions"


@dataclass
class Options:
    """Trained on train, less dev; scored on val: the answers of the challenge's test sets are not public."""

    path: str | None = text(None, optional=True, help="folder with the four JSON files, the images, features/")
    input: str = choice(
        "features",
        "features",
        "pixels",
        "none",
        help="features of scripts/extract_features.py; a CNN on pixels; questions alone",
    )
    image_size: list = listing([64, 64], integer(low=1), length=2, help="height and width that pixels are resized to")
    dev_share: float = number(0.02, above=0, below=1, help="share of the training images whose questions are dev")
    limits: Limits = limits()


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """443,757 training questions and 214,354 of val, ten answers each; gzipped JSON is read too."""
    manifest = load_manifest("vqa2")
    if options.path is None:
        raise DataUnavailable(
            "vqa2 is read from a folder and none is set",
            "data.path is empty",
            f"set data.path=FOLDER; {manifest['get']}",
        )
    folder = Path(options.path)
    files = {
        part: (
            _first(folder, f"v2_OpenEnded_mscoco_{part}2014_questions.json"),
            _first(folder, f"v2_mscoco_{part}2014_annotations.json"),
        )
        for part in ("train", "val")
    }
    for path in (path for pair in files.values() for path in pair):
        if not path.is_file():
            raise DataUnavailable(f"{path.name} is missing", str(folder), manifest["get"])

    def read(progress: Progress) -> Mapping[str, Sequence[Question]]:
        parts, counts = {}, Counter()
        for part, pair in files.items():
            progress.say(f"reading VQA v2 {part}")
            parts[part] = read_vqa2(*pair, counts)
        for what, n in counts.items():
            if n:
                progress.say(f"{n:,} {what} left out")
        train, dev = hold_out(parts["train"], options.dev_share)
        return {"train": train, "dev": dev, "test": parts["val"]}

    hashes = {part: [sha256_of(path) for path in pair] for part, pair in files.items()}
    held_out = [hashes["train"], options.dev_share]
    places = [p for part in ("train2014", "val2014") for p in (folder / part, folder / f"{part}.zip") if p.exists()]
    source = Files(places, coco_key) if places else None
    asked = {part: read_text(pair[0]).count('"question_id"') for part, pair in files.items()}
    return make(
        manifest, KIND, read, "VQA v2, train and val", sources={"train": held_out, "dev": held_out, "test": hashes["val"]},
        limits=options.limits, cut=limited, found={"train": asked["train"], "test": asked["val"]}, notes=[f"dev: the questions on {options.dev_share:.0%} of the training images"],
        about={"images": ImageInput(options.input, tuple(options.image_size), source, folder / "features")},
    )  # fmt: skip


def _first(folder: Path, name: str) -> Path:
    """A file of the set, plain or gzipped."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), folder / name)
