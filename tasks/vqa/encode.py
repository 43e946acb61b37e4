"""Encode questions as a folder of numbers: words, soft answer targets, image rows, and the path of the images.

    dict.txt answers.json             words, with ids from 4 on (`tasks.data.symbols`), in fairseq's format; the answers
    <split>.words.npy, .answers.npy   rows of ids, with their .offsets.npy; <split>.scores.npy: scores of the answers
    <split>.image.npy                 int64 [N]: row of the image, or -1 if the image cannot be read
    <split>.questions.jsonl           the questions as they were read
    vectors.npy                       float32 [words, dim], initial word vectors, if options.vectors names a file
    meta.json                         options, images, counts of special cases, sha256 of everything

Images are not copied: they stay in the cache, decoded once, or in a feature store, and are memory-mapped.

Answers are evaluated as in the VQA challenge (Antol et al. 2015): an answer is fully correct if at least three of ten
annotators gave it. The official accuracy averages over the ten ways to leave out one annotator,

    acc(a) = mean_i min(#{j != i : answer_j = a} / 3, 1)      0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of ten,

and the same values are the training targets.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from repro.options import plain
from tasks.data import DataError, DataSet, Progress, content_sha256
from tasks.data.cache import copy_files, keep, read_meta
from tasks.data.dataset import fingerprint
from tasks.data.files import sha256_of
from tasks.data.images import Images, open_images
from tasks.data.ragged import Ragged
from tasks.data.read import vectors
from tasks.data.read.formats import damaged, parse_json, read_text
from tasks.data.records import Question
from tasks.data.symbols import DICT, FIRST, PAD, UNK, frequent, read_dictionary, write_dictionary
from tasks.encoding import Build, encoders, split_of
from tasks.vqa.options import Encode


@dataclass(frozen=True)
class ImageSpec:
    """The form in which a model sees an image.

    kind: "pixels" (uint8 [height, width, 3], read by the model's own CNN) or "features" (regions x channels).
    grid: (height, width) of the pixels, or (rows, columns) of the feature map. channels: 3, or the number of feature
    channels.
    """

    kind: str
    grid: tuple[int, int]
    channels: int


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """The accuracy of each distinct answer (see the module); a single answer (one gold label) has accuracy 1."""
    if len(answers) == 1:
        return {answers[0]: 1.0}
    n = len(answers)
    scores = {}
    for answer, count in Counter(answers).items():
        without = count * min((count - 1) / 3, 1.0) + (n - count) * min(count / 3, 1.0)
        scores[answer] = without / n
    return scores


def accuracy(answer: str, answers: Sequence[str]) -> float:
    """Accuracy of `answer`, from 0 to 1, given the `answers` of the annotators (all normalised)."""
    return soft_scores(answers).get(answer, 0.0)


RECIPE = 2  # raise when a code change gives different numbers for the same questions and options
VOCABULARY = (DICT, "answers.json")
PAPER_IMAGE = ImageSpec("features", (14, 14), 2048)  # ResNet-152 on 448 x 448 pixels


@dataclass
class Split:
    """Questions of a split: rows of words, answers and their soft scores; row of the image [N] (see the module)."""

    tokens: Ragged
    answers: Ragged
    scores: Ragged
    image: np.ndarray
    file: Path

    def __len__(self) -> int:
        return len(self.image)

    @cached_property
    def questions(self) -> list[Question]:
        """The questions as they were read from the data set."""
        with open(self.file, encoding="utf-8") as lines:
            found = map(json.loads, lines)
            return [Question(**{**q, "answers": tuple(q["answers"])}) for q in found]


@dataclass
class Encoded:
    """An opened folder of encoded questions.

    Attributes:
        words, answers: vocabularies; word i of the list has id i + 4.
        image_spec: the form in which a model sees an image.
        counts: how often each special case occurred during encoding: description -> count.
        sha256: hash of the content and the options.
        vectors: initial word vectors [word_count, embed_dim], or None for random ones.
    """

    folder: Path
    options: Encode
    words: list[str]
    answers: list[str]
    image_spec: ImageSpec
    counts: dict[str, int]
    sha256: str
    splits: dict[str, Split]
    vectors: np.ndarray | None

    @property
    def word_count(self) -> int:
        return FIRST + len(self.words)

    @cached_property
    def images(self) -> Images:
        """The images of all splits, memory-mapped; opened on first use."""
        return open_images(read_meta(self.folder)["images"], self.folder)


def words_of(question: str) -> list[str]:
    """Split into lower-case words; punctuation is dropped, and "/" and "-" separate words (the MCAN authors' rule)."""
    text = re.sub(r"[.,'!?\"()*#:;]", "", question.lower())
    return re.sub(r"[-/]", " ", text).split()


def _training(data: DataSet, options: Encode, root: Path, progress: Progress) -> tuple[Any, Build]:
    """These special cases are counted:

    * questions whose image cannot be read (left out of training, asked with an empty image in dev and test);
    * training questions without any answer in the vocabulary (all-zero targets, as in the authors' code);
    * test answers outside the vocabulary (the model cannot give them);
    * questions truncated to max_tokens.
    """
    records = data.read(progress)
    splits = {s: list(split_of(data, records, s)) for s in ("train", "dev")}
    images, key = _images(data, splits, options, root, progress)
    kept = splits | {"train": [q for q in splits["train"] if q.image in images.index and q.image not in images.bad]}
    seen = Counter(w for q in kept["train"] for w in words_of(q.text))
    words = frequent(seen)
    given = None if options.answers is None else read_answers(Path(options.answers))
    answers = given or frequent(Counter(q.answer for q in kept["train"]), options.min_answer_count)
    if not answers:
        where = f"{len(kept['train'])} questions, no answer given at least {options.min_answer_count} times"
        step = "lower encode.min_answer_count or raise data.limits.train"
        raise DataError("nothing is left to train on", where, step)
    key = fingerprint(key, given) if given else key

    def build(folder: Path) -> dict[str, Any]:
        write_dictionary(folder / DICT, ((word, seen[word]) for word in words))
        (folder / "answers.json").write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
        meta = _write(folder, splits, kept, words, answers, images, options, key)
        if options.vectors is not None:
            table, meta["counts"]["words without a vector"] = starting_vectors(Path(options.vectors), words, progress)
            np.save(folder / "vectors.npy", table)
        return meta

    return [key, images.path], build


def _testing(data: DataSet, encoding: Path, root: Path, progress: Progress) -> tuple[Any, Build]:
    known = open_encoded(encoding)
    splits = {"test": list(split_of(data, data.read(progress), "test"))}
    images, key = _images(data, splits, known.options, root, progress)
    key = fingerprint(key, known.words, known.answers)

    def build(folder: Path) -> dict[str, Any]:
        copy_files(known.folder, folder, VOCABULARY)
        return _write(folder, splits, splits, known.words, known.answers, images, known.options, key)

    return [key, images.path], build


def open_encoded(folder: str | Path) -> Encoded:
    """Open a folder made by `encode`, `encode_test` or `keep_encoding`. Raises DataError if it is none of these."""
    folder = Path(folder)
    meta = read_meta(folder)
    words = read_dictionary(folder / DICT)
    answers = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    spec = ImageSpec(meta["image"]["kind"], tuple(meta["image"]["grid"]), meta["image"]["channels"])
    start = np.load(folder / "vectors.npy", mmap_mode="r") if (folder / "vectors.npy").is_file() else None
    splits = {s: _open_split(folder, s) for s in meta["splits"]}
    options = Encode(**meta["options"])
    return Encoded(folder, options, words, answers, spec, meta["counts"], meta["sha256"], splits, start)


encode, encode_test = encoders(_training, _testing, open_encoded)
keep_encoding = partial(keep, names=VOCABULARY)


def shortfalls(options: Encode, spec: ImageSpec) -> list[str]:
    """How word vectors and images differ from the paper's: 300-d GloVe, as in en_vectors_web_lg, and grid features."""
    found = ["random word vectors instead of GloVe"] if options.vectors is None else []
    if spec != PAPER_IMAGE:
        features = f"features of {spec.grid[0]} x {spec.grid[1]} cells and {spec.channels} channels"
        what = "pixels" if spec.kind == "pixels" else features
        found.append(f"{what} instead of ResNet-152 features of 14 x 14 cells")
    return found


def starting_vectors(path: Path, words: Sequence[str], progress: Progress) -> tuple[np.ndarray, int]:
    """Initial word vectors from a file (`tasks.data.read.vectors`).

    Returns:
        float32 [4 + words, dim], and the number of words that are not in the file; they get small random vectors.

    Raises:
        DataError: the file is damaged or contains none of the words.
    """
    found, rows, _ = vectors.read_vectors(path, set(words), progress)
    table = np.random.default_rng(0).normal(0, 0.1, (FIRST + len(words), rows.shape[1])).astype(np.float32)
    table[PAD] = 0
    place = {word: i for i, word in enumerate(words, FIRST)}
    table[[place[word] for word in found]] = rows
    return table, len(words) - len(found)


def read_answers(path: Path) -> list[str]:
    """The answers in a JSON file: a list of texts, or the pair {answer: number}, {number: answer} of MCAN's answer_dict.json.

    Raises DataError if it does not exist or holds neither.
    """
    found = parse_json(read_text(path), path)
    if isinstance(found, list) and found and isinstance(found[0], dict):
        by_number = {number: answer for answer, number in found[0].items()}
        found = [by_number.get(number) for number in range(len(found[0]))]
    texts = found if isinstance(found, list) and all(isinstance(answer, str) for answer in found) else []
    if not all(texts) or not 0 < len(texts) == len(set(texts)):
        step = "set encode.answers=FILE, or null for the frequent answers of training"
        raise damaged(path, "it is no list of answers", "different texts, or MCAN's answer_dict.json", step=step)
    return texts


def _images(
    data: DataSet, splits: Mapping[str, Sequence[Question]], options: Encode, root: Path, progress: Progress
) -> tuple[Images, str]:
    """The images that the splits ask about, decoded now or found in the cache; the hash of all content and the options."""
    keys = dict.fromkeys(q.image for questions in splits.values() for q in questions)
    images, settings = data.about["images"](list(keys), root, progress), plain(options)
    del settings["answers"]  # their content counts, see `encode`
    if options.vectors is not None:
        settings["vectors"] = sha256_of(Path(options.vectors))
    unreadable = sorted(key for key in keys if key in images.bad)
    content = {split: content_sha256(questions) for split, questions in splits.items()}
    return images, fingerprint(RECIPE, content, images.sha256, unreadable, settings)


def _write(
    folder: Path,
    asked: Mapping[str, Sequence[Question]],
    kept: Mapping[str, Sequence[Question]],
    words: Sequence[str],
    answers: Sequence[str],
    images: Images,
    options: Encode,
    sha256: str,
) -> dict[str, Any]:
    """Write the splits; returns the content of meta.json."""
    counts: Counter[str] = Counter()
    word_number = {w: i for i, w in enumerate(words, FIRST)}
    answer_number = {a: i for i, a in enumerate(answers)}
    for split, questions in kept.items():
        row = {q.image: -1 if q.image in images.bad else images.index.get(q.image, -1) for q in asked[split]}
        counts[f"{split} questions with an unreadable image"] = sum(row[q.image] < 0 for q in asked[split])
        tokens = [[word_number.get(w, UNK) for w in words_of(q.text)] or [UNK] for q in questions]
        long = sum(len(t) > options.max_tokens for t in tokens)
        counts[f"{split} questions cut at {options.max_tokens} words"] = long
        shares = [soft_scores(q.answers).items() for q in questions]
        soft = [{answer_number[a]: s for a, s in own if a in answer_number and s > 0} for own in shares]
        counts[f"{split} questions without an answer in the vocabulary"] = sum(not s for s in soft)
        _save_rows(folder, f"{split}.words", [t[: options.max_tokens] for t in tokens])
        _save_rows(folder, f"{split}.answers", soft)
        np.save(folder / f"{split}.scores.npy", np.fromiter(chain(*(s.values() for s in soft)), np.float32))
        np.save(folder / f"{split}.image.npy", np.array([row[q.image] for q in questions], np.int64))
        with open(folder / f"{split}.questions.jsonl", "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(dataclasses.asdict(q), ensure_ascii=False) + "\n" for q in questions)
    made = {"options": plain(options), "counts": {k: n for k, n in counts.items() if n}, "sha256": sha256}
    made["image"] = {"kind": images.kind, "grid": list(images.grid), "channels": images.channels}
    return made | {"images": {"kind": images.kind, "path": images.path}, "splits": sorted(kept)}


def _save_rows(folder: Path, name: str, rows: Sequence[Sequence[int] | Mapping[int, float]]) -> None:
    np.save(folder / f"{name}.npy", np.fromiter(chain(*rows), np.int32))
    np.save(folder / f"{name}.offsets.npy", np.cumsum([0, *map(len, rows)], dtype=np.int64))


def _open_split(folder: Path, split: str) -> Split:
    def load(name: str) -> np.ndarray:
        return np.asarray(np.load(folder / f"{split}.{name}.npy", mmap_mode="r"))

    answers = Ragged(load("answers"), load("answers.offsets"))
    tokens, scores = Ragged(load("words"), load("words.offsets")), Ragged(load("scores"), answers.offsets)
    return Split(tokens, answers, scores, load("image"), folder / f"{split}.questions.jsonl")
