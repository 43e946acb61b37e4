"""Questions about your own images: a folder of images, and one list of questions or one list per split."""

from pathlib import Path, PurePosixPath
from typing import Any

from repro.options import text
from tasks.data.dataset import DataSet, Loader, Manifest, make
from tasks.data.images import SUFFIXES, Files, ImageInput
from tasks.data.progress import Progress
from tasks.data.read import own
from tasks.data.read.formats import damaged
from tasks.data.records import Question
from tasks.data.sets.questions import answer_type, hold_out, limited, normalized

KIND = "questions"
COLUMNS = ("image", "question", "answer")
HELD_OUT = {"dev and test": 0.1, "test": 0.05}  # shares of the images when one list is split


def load(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load questions and images.

    Every image that a question names must exist. An image that cannot be decoded is replaced by black and counted.
    """
    folder = Path(options.path or ".")
    named = options.path if options.questions is None else str(folder / options.questions)
    files = own.find(named if options.path else None, own.FILES)
    if not folder.is_dir():
        step = "set data.path to it and data.questions to the list"
        raise damaged(folder, "it is a file", "a folder with images", step=step)
    images = Files([folder.absolute()], below)
    there = set(images.keys())
    lists = {split: own.rows(path, COLUMNS) for split, (path,) in files.items()}
    splits = {split: [_question(row, n, split, there) for n, row in enumerate(lists[split])] for split in lists}
    sources = own.sources(files, list(HELD_OUT.values()) if own.WHOLE in files else [])
    notes = []
    if own.WHOLE in splits:
        train, held = hold_out(splits[own.WHOLE], HELD_OUT["dev and test"])
        splits = {"train": train, **dict(zip(("dev", "test"), hold_out(held, HELD_OUT["test"])))}
        notes.append("split by image: about 5 % of the images each are dev and test")
        own.refuse_empty(files[own.WHOLE][0], "its images", splits)

    title, how = f"own questions about images, {folder.name}", {"limits": options.limits, "cut": limited}
    about = {"images": ImageInput(options.input, (options.image_size[0], options.image_size[1]), images)}
    return make(manifest, KIND, lambda progress: splits, title, sources=sources, notes=notes, about=about, **how)


def below(name: str) -> str | None:
    """The path of an image relative to the folder; `name` starts with the folder's own name."""
    return str(PurePosixPath(*PurePosixPath(name).parts[1:])) if name.lower().endswith(SUFFIXES) else None


def _question(row: own.Row, number: int, split: str, images: set[str]) -> Question:
    image, question, answer = row.cells
    if image not in images:
        expected = f"the path of a {', '.join(SUFFIXES)} file below data.path"
        raise row.wrong(f"there is no image {image[:80]!r}", expected)
    if not question or not (answer := normalized(answer)):
        raise row.wrong("a blank question or answer", "both")
    return Question(f"{split}{number}", image, question, (answer,), answer, answer_type(answer))


QUESTIONS = text(optional=True, help="one list in the folder with the images, which is split by image")
SETS = {"images": Loader(KIND, load, {"questions": QUESTIONS})}
