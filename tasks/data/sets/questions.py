"""Questions about images: VQA v2, easy-VQA and your own.

images     your own: a folder of images, and one list of questions or one list per split
vqa2       VQA v2 (Goyal et al. 2017) from the challenge's files, used in Table 2 of Martins et al. 2020
easy_vqa   questions about generated images of one coloured shape, from a wheel; replaces VQA v2 in the demo

Readers return questions in file order. Nothing is skipped silently: questions that are left out are counted
(`tasks.data.read.formats`).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from repro.options import choice, text
from tasks.data.acquire import sources
from tasks.data.acquire.sources import fetch_wheel
from tasks.data.dataset import DataSet, Loader, Manifest, Splits, make
from tasks.data.files import sha256_of
from tasks.data.images import SUFFIXES, Files, ImageInput, coco_key, path_key
from tasks.data.manifests import load_manifest
from tasks.data.progress import Progress
from tasks.data.read import own
from tasks.data.read.formats import check_fields, count, damaged, parse_json, read_text
from tasks.data.read.lines import find_file
from tasks.data.read.splits import place
from tasks.data.records import Question

KIND = "questions"
TYPES = ("yes/no", "number", "other")
NUMBERED = (int, str)
HELD_OUT = "dev: the questions on {:.0%} of the training images"

# Normalisation of answers, as in the challenge's evaluation code before answers are compared.
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {w: str(i) for i, w in enumerate(_DIGITS)} | {"none": "0"}
_ARTICLES = {"a", "an", "the"}
_PUNCTUATION = ';/[]"{}()=+\\_-<>@`,?!'
_FULL_STOP = re.compile(r"\.(?!\d)")  # as in the challenge, also matches after a digit
_COMMA_IN_NUMBER = re.compile(r"\d,\d")


@lru_cache(maxsize=1)
def _contractions() -> dict[str, str]:
    """What annotators write without its apostrophe -> the word."""
    words = load_manifest("vqa2")["contractions"].split()
    return {word[:i] + word[i + 1 :]: word for word in words for i, sign in enumerate(word) if sign == "'"}


@lru_cache(maxsize=1 << 16)
def normalized(answer: str) -> str:
    """Lower-case an answer, remove punctuation and articles, turn number words into digits, and restore apostrophes.

    For example, "dont" -> "don't". The challenge's rule for punctuation: a mark is deleted if it touches a space (or if
    the answer has a comma inside a number) and becomes a space between letters ("t-shirt" -> "t shirt").
    """
    text = answer.replace("\n", " ").replace("\t", " ").strip()
    in_number = _COMMA_IN_NUMBER.search(text) is not None
    original = text
    for mark in _PUNCTUATION:
        if mark in original:
            loose = f"{mark} " in original or f" {mark}" in original or in_number
            text = text.replace(mark, "" if loose else " ")
    text = _FULL_STOP.sub("", text)
    words = [_NUMBERS.get(w, w) for w in text.lower().split()]
    return " ".join(_contractions().get(w, w) for w in words if w not in _ARTICLES)


def answer_type(answer: str) -> str:
    """The type "yes/no", "number" or "other", for data sets that do not provide it."""
    if answer in ("yes", "no", "true", "false"):
        return "yes/no"
    return "number" if answer.replace(".", "", 1).isdigit() else "other"


def read_vqa2(questions: Path, annotations: Path) -> list[Question]:
    """Read the challenge's JSON (VQA v1 and v2), plain or gzipped (detected from the content, whatever the file name).

    Questions without an annotation, and annotations without a question, are left out and counted.

    Args:
        questions: {"questions": [{"image_id", "question", "question_id"}, ...]}.
        annotations: {"annotations": [{"question_id", "answers": [{"answer"}, ...], "answer_type", ...}, ...]}.
    Raises:
        DataError: a file is missing, is not JSON, or does not have this format.
    """
    asked = _entries(questions, "questions", {"image_id": NUMBERED, "question": str, "question_id": NUMBERED})
    notes = _entries(annotations, "annotations", {"question_id": NUMBERED, "answers": list})
    by_id = {note["question_id"]: note for note in notes}
    records = []
    for entry in asked:
        if (note := by_id.pop(entry["question_id"], None)) is None:
            count("questions without an annotation left out")
            continue
        of = f"question {note['question_id']}: "
        given = tuple(normalized(check_fields(a, {"answer": str}, annotations, of)["answer"]) for a in note["answers"])
        chosen = note.get("multiple_choice_answer") or (Counter(given).most_common(1)[0][0] if given else "")
        check_fields({"multiple_choice_answer": chosen}, {"multiple_choice_answer": str}, annotations, of)
        kind = note.get("answer_type") or answer_type(normalized(chosen))
        if kind not in TYPES:
            raise damaged(annotations, f"{of}answer_type is {kind!r}", f"one of {', '.join(TYPES)}")
        asked_of = entry["question_id"], str(entry["image_id"]), entry["question"]
        records.append(Question(*asked_of, given, normalized(chosen), kind))
    count("annotations without a question left out", len(by_id))
    return records


def read_easy_vqa(path: Path, split: str) -> list[Question]:
    """Read easy-VQA: [[question, answer, image number], ...]; the image keys are "<split>/<number>"."""
    asked = enumerate(parse_json(read_text(path), path))
    return [Question(i, f"{split}/{n}", text, (a,), a, answer_type(a)) for i, (text, a, n) in asked]


def _entries(path: Path, key: str, fields: Mapping[str, Any]) -> list[dict]:
    loaded = parse_json(read_text(path), path)
    entries = loaded.get(key) if isinstance(loaded, dict) else None
    if not isinstance(entries, list):
        raise damaged(path, f"its top level has no list {key!r}", f'{{"{key}": [..]}}')
    for i, entry in enumerate(entries):
        check_fields(entry, fields, path, f"{key}[{i}] ")
    return entries


def hold_out(questions: Sequence[Question], share: float) -> tuple[list[Question], list[Question]]:
    """Split questions by image into (the rest, held out), using the hash of the image key.

    About `share` of the images are held out, or at least one if there are several images.
    """
    parts: tuple[list[Question], list[Question]] = ([], [])
    places = sorted({place(q.image) for q in questions})
    limit = max(share, places[1]) if len(places) > 1 else share
    for q in questions:
        parts[place(q.image) < limit].append(q)
    return parts


def limited(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions, in the original order.

    Images are taken in the order of their hash, with all their questions; only the last image may be cut.
    """
    if limit is None or len(questions) <= limit:
        return list(questions)
    order = sorted(range(len(questions)), key=lambda i: (place(questions[i].image), i))
    return [questions[i] for i in sorted(order[:limit])]


def load_vqa2(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load 443,757 training and 214,354 val questions with ten answers each; the JSON files may be gzipped."""
    folder = sources.located(manifest, options.path, root)
    name = "v2_OpenEnded_mscoco_{}2014_questions.json", "v2_mscoco_{}2014_annotations.json"
    names = {part: [one.format(part) for one in name] for part in ("train", "val")}
    files = {
        part: [find_file(sources.folders_in(folder), (one,), manifest["get"]) for one in pair]
        for part, pair in names.items()
    }
    asked = {part: read_text(pair[0]).count('"question_id"') for part, pair in files.items()}

    def read(progress: Progress) -> Splits:
        parts = {}
        for part, pair in files.items():
            progress.step(f"reading VQA v2 {part}")
            parts[part] = read_vqa2(*pair)
        train, dev = hold_out(parts["train"], options.dev_share)
        return {"train": train, "dev": dev, "test": parts["val"]}

    hashes = {part: [sha256_of(path) for path in pair] for part, pair in files.items()}
    held_out = [hashes["train"], options.dev_share]
    named = [p for part in ("train2014", "val2014") for p in (folder / part, folder / f"{part}.zip")]
    places = [p for p in named if p.exists() or p.is_symlink()]
    source = Files(places, coco_key) if places else None
    origin = {"train": held_out, "dev": held_out, "test": hashes["val"]}
    counts, notes = {"train": asked["train"], "test": asked["val"]}, [HELD_OUT.format(options.dev_share)]
    about = {"images": ImageInput(options.input, tuple(options.image_size), source, folder / "features")}
    more = {"limits": options.limits, "cut": limited, "counts": counts, "notes": notes, "about": about}
    return make(manifest, KIND, read, "VQA v2, train and val", sources=origin, **more)


def load_easy_vqa(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """38,575 + 9,673 questions about 4,000 + 1,000 images (train + test, before dev is held out)."""
    folder = fetch_wheel(manifest, root, progress) / "easy_vqa" / "data"

    def read(progress: Progress) -> Splits:
        train, dev = hold_out(read_easy_vqa(folder / "train" / "questions.json", "train"), options.dev_share)
        return {"train": train, "dev": dev, "test": read_easy_vqa(folder / "test" / "questions.json", "test")}

    held_out = [manifest["sha256"], options.dev_share]
    title = f"easy-VQA, wheel {manifest['package']} {manifest['version']}"
    origin = {"train": held_out, "dev": held_out, "test": manifest["sha256"]}
    about = {"images": ImageInput(options.input, tuple(options.image_size), Files([folder], path_key))}
    more = {"limits": options.limits, "cut": limited, "notes": [HELD_OUT.format(options.dev_share)], "about": about}
    return make(manifest, KIND, read, title, sources=origin, **more)


COLUMNS = ("image", "question", "answer")
OWN_HELD_OUT = {"dev and test": 0.1, "test": 0.05}  # shares of the images when one list is split


def load_own(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
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
    stamps = own.sources(files, list(OWN_HELD_OUT.values()) if own.WHOLE in files else [])
    notes = []
    if own.WHOLE in splits:
        train, held = hold_out(splits[own.WHOLE], OWN_HELD_OUT["dev and test"])
        splits = {"train": train, **dict(zip(("dev", "test"), hold_out(held, OWN_HELD_OUT["test"])))}
        notes.append("split by image: about 5 % of the images each are dev and test")
        own.refuse_empty(files[own.WHOLE][0], "its images", splits)

    title, how = f"own questions about images, {folder.name}", {"limits": options.limits, "cut": limited}
    about = {"images": ImageInput(options.input, (options.image_size[0], options.image_size[1]), images)}
    return make(manifest, KIND, lambda progress: splits, title, sources=stamps, notes=notes, about=about, **how)


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
SETS = {
    "images": Loader(KIND, load_own, {"questions": QUESTIONS}),
    "vqa2": Loader(KIND, load_vqa2, {"input": choice("features", "pixels", "none")}),
    "easy_vqa": Loader(KIND, load_easy_vqa),
}
