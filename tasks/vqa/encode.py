"""Questions as numbers: words, soft answer targets, image numbers. Made in seconds, kept in memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data import vectors
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.progress import NullProgress
from tasks.vqa.answers import soft_scores, vocabulary
from tasks.vqa.corpus import SPLITS, Corpus, Images
from tasks.vqa.questions import Counts, Question

PAD, UNKNOWN = "<pad>", "<unk>"
RECIPE = 1


def words_of(question: str) -> list[str]:
    """Lower-case words; punctuation dropped, "/" and "-" separate (the MCAN authors' rule)."""
    text = re.sub(r"[.,'!?\"()*#:;]", "", question.lower())
    return re.sub(r"[-/]", " ", text).split()


@dataclass
class Part:
    """A split. tokens int32 [N, T] padded with 0; lengths [N]; image [N] numbers; answers and scores: soft targets of each."""

    questions: list[Question]
    tokens: np.ndarray
    lengths: np.ndarray
    image: np.ndarray
    answers: list[np.ndarray]
    scores: list[np.ndarray]


@dataclass
class Encoded:
    """A corpus ready for training. words[0] is padding, words[1] unknown; counts: what was handled on the way."""

    corpus: Corpus
    images: Images
    words: list[str]
    answers: list[str]
    parts: dict[str, Part]
    counts: Counts = field(default_factory=Counter)
    vectors: np.ndarray | None = None
    sha256: str = ""


def encode(corpus: Corpus, images: Images, options: Mapping[str, Any]) -> Encoded:
    """Encode a corpus.

    Args:
        options: max_tokens, min_answer_count, vectors (a text file of word vectors, or None).
    Counts:
        questions whose image cannot be read (left out of training, asked with an empty image in dev and test); training
        questions without any answer in the vocabulary (all-zero targets, as the authors do); test answers outside the
        vocabulary (nobody can give them); questions cut at max_tokens.
    Raises:
        DataError: no answer is frequent enough, or no training question is left.
    """
    counts = Counter(corpus.counts)
    unreadable = {k for k in corpus.image_keys() if k in images.bad or k not in images.index}
    kept = {split: list(corpus.splits[split]) for split in SPLITS}
    kept["train"] = [q for q in kept["train"] if q.image not in unreadable]
    for split in SPLITS:
        if n := sum(q.image in unreadable for q in corpus.splits[split]):
            counts[f"{split} questions with an unreadable image"] = n
    seen = Counter(w for q in kept["train"] for w in words_of(q.text))
    words = [PAD, UNKNOWN, *sorted(seen, key=lambda w: (-seen[w], w))]
    answers = vocabulary((q.answer for q in kept["train"]), options["min_answer_count"])
    if not answers or not kept["train"]:
        raise DataError(
            "nothing is left to train on", f"{len(kept['train'])} questions, {len(answers)} answers given at least {options['min_answer_count']} times",
            "lower encode.min_answer_count or raise data.limits.train",
        )  # fmt: skip
    word_number, answer_number = ({w: i for i, w in enumerate(v)} for v in (words, answers))
    parts = {
        s: _part(kept[s], word_number, answer_number, images, unreadable, options["max_tokens"], s, counts)
        for s in SPLITS
    }
    table, vectors_hash = None, ""
    if options.get("vectors"):
        table, vectors_hash = read_vectors(Path(options["vectors"]), words, counts)
    text = json.dumps(
        [RECIPE, corpus.sha256, images.sha256, sorted(unreadable), {**options, "vectors": None}, vectors_hash],
        default=str,
    )
    return Encoded(corpus, images, words, answers, parts, counts, table, hashlib.sha256(text.encode()).hexdigest())


def _part(
    questions: Sequence[Question], words: dict[str, int], answers: dict[str, int], images: Images, unreadable: set[str],
    longest: int, split: str, counts: Counts,
) -> Part:  # fmt: skip
    rows = [[words.get(w, 1) for w in words_of(q.text)] or [1] for q in questions]
    counts[f"{split} questions cut at {longest} words"] += sum(len(r) > longest for r in rows)
    lengths = np.array([min(len(r), longest) for r in rows], np.int64)
    tokens = np.zeros((len(rows), int(lengths.max())), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : lengths[i]] = row[:longest]
    image = np.array([-1 if q.image in unreadable else images.index[q.image] for q in questions], np.int64)
    numbers, scores = [], []
    outside = 0
    for q in questions:
        soft = {answers[a]: s for a, s in soft_scores(q.answers).items() if a in answers and s > 0} if q.answers else {}
        outside += not soft
        numbers.append(np.fromiter(soft, np.int64, len(soft)))
        scores.append(np.fromiter(soft.values(), np.float32, len(soft)))
    counts[f"{split} questions without an answer in the vocabulary"] += outside
    return Part(list(questions), tokens, lengths, image, numbers, scores)


def read_vectors(path: Path, words: Sequence[str], counts: Counts) -> tuple[np.ndarray, str]:
    """A file of word vectors (`tasks.data.vectors`) -> float32 [words, dim], small random rows for words that are not there.

    Raises DataUnavailable when the file is missing, DataError when it is damaged or has none of the words.
    """
    if not path.is_file():
        raise DataUnavailable(
            "the word vectors are missing", str(path), "set encode.vectors=FILE, or null for random vectors"
        )
    found, rows = vectors.read_vectors(path, set(words), NullProgress())
    table = np.random.default_rng(0).normal(0, 0.1, (len(words), rows.shape[1])).astype(np.float32)
    table[0] = 0
    place = {word: i for i, word in enumerate(words)}
    table[[place[word] for word in found]] = rows
    counts["words without a vector"] = len(words) - len(found)
    return table, sha256_of(path)
