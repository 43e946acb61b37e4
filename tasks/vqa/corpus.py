"""Data sets of visual questions by name: easy-VQA, VQA v2, a VQA v2 text subset, NLVR; their splits and their images."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.manifests import load_manifest, mirror_files
from tasks.data.progress import NullProgress, Progress
from tasks.data.wheels import fetch_wheel
from tasks.vqa.images import Files, ImageSource, coco_key, decode_all, path_key, stem_key
from tasks.vqa.questions import Counts, Question, read_easy_vqa, read_nlvr, read_vqa2
from tasks.vqa.store import FeatureStore

SPLITS = ("train", "dev", "test")
INPUTS = ("pixels", "features", "none")


class Images(Protocol):
    """Images as the model gets them, by number: `images.Pixels`, `store.FeatureStore` or `Blank`."""

    kind: str
    grid: tuple[int, int]
    channels: int
    index: dict[str, int]
    bad: dict[str, str]
    sha256: str

    def rows(self, numbers: np.ndarray) -> np.ndarray: ...


class Blank:
    """No images: every one is a single cell of zeros. What questions alone tell."""

    kind, grid, channels, sha256 = "features", (2, 2), 1, "blank"

    def __init__(self, keys: Sequence[str]) -> None:
        self.index, self.bad = dict.fromkeys(keys, 0), {}

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        return np.zeros((len(numbers), 4, 1), np.float16)


@dataclass
class Request:
    """The `data` node of a configuration.

    Attributes:
        name: easy_vqa, vqa2, vqa2_subset or nlvr.
        root: cache. mirror: folder of local copies. path: folder of a set got by hand (vqa2).
        input: pixels (a CNN in the model), features (a store at <path>/features), none (questions only).
        image_size: (height, width) that pixels are resized to.
        limits: split -> most questions; whole images are taken, in the order of their hash.
        dev_share: share of the training images whose questions are held out for dev, where a set has no dev of its own.
        fallback: unused by this task; the schema is shared.
    """

    name: str
    root: str
    mirror: str | None = None
    path: str | None = None
    fallback: str | None = None
    input: str = "pixels"
    image_size: Sequence[int] = (64, 64)
    limits: Mapping[str, int | None] = field(default_factory=dict)
    dev_share: float = 0.05

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Request:
        """From a plain mapping. Raises DataError listing unknown keys and impossible values together."""
        known = [f.name for f in fields(cls)]
        wrong = []
        for key in data:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                wrong.append(f"data.{key} is unknown" + (f", did you mean {near[0]}?" if near else ""))
        request = cls(**{k: v for k, v in data.items() if k in known})
        if request.name not in LOADERS:
            wrong.append(f"data.name={request.name!r}; allowed: {', '.join(LOADERS)}")
        if request.input not in INPUTS:
            wrong.append(f"data.input={request.input!r}; allowed: {', '.join(INPUTS)}")
        if bad := [s for s in request.limits if s not in SPLITS]:
            wrong.append(f"data.limits names {', '.join(bad)}; allowed: {', '.join(SPLITS)}")
        for split, limit in request.limits.items():
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                wrong.append(f"data.limits.{split}={limit!r}; it must be a whole number of at least 1")
        if not (isinstance(request.dev_share, (int, float)) and 0 < request.dev_share < 1):
            wrong.append(f"data.dev_share={request.dev_share!r}; it must be a number between 0 and 1")
        if wrong:
            raise DataError(
                "; ".join(wrong), "the data node of the configuration", f"correct it; known keys: {', '.join(known)}"
            )
        return request


@dataclass
class Corpus:
    """Questions by split, and where their images are.

    sha256 covers questions, answers and splits. counts: what happened while reading.
    """

    name: str
    splits: dict[str, list[Question]]
    provenance: str
    source: ImageSource | None
    counts: Counts = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    stands_for: str = ""
    demo: bool = False
    sha256: str = ""

    def image_keys(self) -> list[str]:
        """Keys of all images that a question asks about, in the order of first use."""
        return list(dict.fromkeys(q.image for split in SPLITS for q in self.splits[split]))


def load_corpus(data: Mapping[str, Any], progress: Progress | None = None) -> Corpus:
    """Read the questions that a configuration's data node asks for. Raises `DataError`, see `Request.of` and the loaders."""
    request = Request.of(data)
    corpus = LOADERS[request.name](request, progress or NullProgress())
    if not corpus.splits.get("dev"):
        corpus.splits["train"], corpus.splits["dev"] = hold_out(corpus.splits["train"], request.dev_share)
    for split, limit in request.limits.items():
        corpus.splits[split] = limited(corpus.splits[split], limit)
    if empty := [s for s in SPLITS if not corpus.splits[s]]:
        raise DataError(
            f"{request.name} has no questions for {', '.join(empty)}",
            corpus.provenance,
            "raise data.limits or data.dev_share",
        )
    text = json.dumps(
        {s: [[q.question_id, q.image, q.text, q.answers, q.answer_type] for q in corpus.splits[s]] for s in SPLITS}
    )
    corpus.sha256 = hashlib.sha256(text.encode()).hexdigest()
    return corpus


def load_images(data: Mapping[str, Any], corpus: Corpus, progress: Progress | None = None) -> Images:
    """The images of a corpus as the model gets them."""
    request = Request.of(data)
    if request.input == "none":
        return Blank(corpus.image_keys())
    if request.input == "features":
        if request.path is None:
            raise DataUnavailable(
                "no folder with features is set",
                "data.path is empty",
                "set data.path=FOLDER; features are read from FOLDER/features",
            )
        return FeatureStore(Path(request.path) / "features")
    if corpus.source is None:
        raise DataUnavailable(
            f"{request.name} comes without images",
            corpus.provenance,
            "set data.input=none to learn from questions alone",
        )
    height, width = request.image_size
    folder = Path(request.root) / "vqa"
    return decode_all(corpus.source, corpus.image_keys(), (height, width), folder, progress or NullProgress())


def hold_out(questions: Sequence[Question], share: float) -> tuple[list[Question], list[Question]]:
    """Split by image, decided by the hash of its key: (the rest, about `share` of the images, but at least one of several)."""
    parts: tuple[list[Question], list[Question]] = ([], [])
    places = sorted({_place(q.image) for q in questions})
    limit = max(share, places[1]) if len(places) > 1 else share
    for q in questions:
        parts[_place(q.image) < limit].append(q)
    return parts


def limited(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions: whole images in the order of their hash, the last one cut; in the original order."""
    if limit is None or len(questions) <= limit:
        return list(questions)
    order = sorted(range(len(questions)), key=lambda i: (_place(questions[i].image), i))
    return [questions[i] for i in sorted(order[:limit])]


def _place(key: str) -> float:
    return int(hashlib.sha256(key.encode()).hexdigest()[:12], 16) / 16**12


def _easy_vqa(request: Request, progress: Progress) -> Corpus:
    manifest = load_manifest("easy_vqa")
    wheel = fetch_wheel(manifest["package"], str(manifest["version"]), request.root, progress, manifest["sha256"])
    folder = wheel / "easy_vqa" / "data"
    splits = {s: read_easy_vqa(folder / s / "questions.json", s) for s in ("train", "test")}
    return Corpus(
        "easy_vqa", splits, f"easy-VQA, wheel {manifest['package']} {manifest['version']}", Files([folder], path_key),
        stands_for="VQA-v2", demo=True,
    )  # fmt: skip


def _vqa2(request: Request, progress: Progress) -> Corpus:
    """Training questions from train, test questions from val: the answers of the challenge's test sets are not public."""
    manifest = load_manifest("vqa2")
    if request.path is None:
        raise DataUnavailable(
            "vqa2 is read from a folder and none is set",
            "data.path is empty",
            f"set data.path=FOLDER; {manifest['get']}",
        )
    folder, counts = Path(request.path), Counter()
    splits = {}
    for split, part in (("train", "train"), ("test", "val")):
        progress.say(f"reading VQA v2 {part}")
        questions = _first(folder, f"v2_OpenEnded_mscoco_{part}2014_questions.json")
        splits[split] = read_vqa2(questions, _first(folder, f"v2_mscoco_{part}2014_annotations.json"), counts)
    places = [p for part in ("train2014", "val2014") for p in (folder / part, folder / f"{part}.zip") if p.exists()]
    source = Files(places, coco_key) if places else None
    return Corpus("vqa2", splits, "VQA v2, train and val", source, counts)


def _vqa2_subset(request: Request, progress: Progress) -> Corpus:
    files = mirror_files(load_manifest("vqa2_subset"), Path(request.mirror) if request.mirror else None)
    counts: Counts = Counter()
    splits = {}
    for split, part in (("train", "train"), ("dev", "valid"), ("test", "test")):
        splits[split] = read_vqa2(files[f"vqa_questions_{part}.gzip"], files[f"vqa_annotatons_{part}.gzip"], counts)
    return Corpus(
        "vqa2_subset",
        splits,
        "VQA v2, 60,000 questions of train and val (no images)",
        None,
        counts,
        stands_for="VQA-v2",
    )


def _nlvr(request: Request, progress: Progress) -> Corpus:
    files = mirror_files(load_manifest("nlvr"), Path(request.mirror) if request.mirror else None)
    names = {"train": "dev", "dev": "hidden", "test": "test"}
    splits = {split: read_nlvr(files[f"{part}.json"], part) for split, part in names.items()}
    source = Files([files[f"{part}_images_perm0.tar"] for part in names.values()], stem_key)
    note = "NLVR's training images are not in the mirror: its dev split is trained on, its hidden split selects"
    return Corpus("nlvr", splits, "NLVR, permutation 0", source, notes=[note])


def _first(folder: Path, name: str) -> Path:
    """A file of the set, plain or gzipped."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), folder / name)


LOADERS: dict[str, Callable[[Request, Progress], Corpus]] = {
    "easy_vqa": _easy_vqa, "vqa2": _vqa2, "vqa2_subset": _vqa2_subset, "nlvr": _nlvr,
}  # fmt: skip
