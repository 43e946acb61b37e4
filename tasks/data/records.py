"""Records: the elements of a data set's splits, by the kind of the data set.

=============  ====================================================================
"pairs"        `Pair`: a source text and its reference outputs
"texts"        `Example`: one or two texts and a class
"questions"    `Question`: a question about an image, with its answers
"features"     `Labelled`: arrays of features and labels, one object per split
=============  ====================================================================
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

KINDS = {"pairs": "pairs of texts", "texts": "texts with a class"}
KINDS |= {"questions": "questions about images", "features": "features with labels"}
# (sure, possible): each is a set of links (source word, target word), numbered from 0; sure links are also possible
# links (Och & Ney 2003)
Gold = tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Pair:
    """One source text and its reference outputs, raw and detokenised as published."""

    source: str
    references: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlignedPair(Pair):
    """A pair with manually aligned words: the words of the source and the first reference, split at white space."""

    sure: frozenset[tuple[int, int]] = frozenset()
    possible: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Example:
    """One or two texts, their class number, and the words of the first text that annotators marked (may be empty)."""

    texts: tuple[str, ...]
    label: int
    marked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Question:
    """A question about an image.

    Attributes:
        question_id: the data set's own identifier.
        image: key of the image among the data set's images.
        text: the question as written.
        answers: normalised answers of the annotators (ten in VQA v2); a single answer is a gold label; empty for a
            hidden test set.
        answer: the most frequent answer.
        answer_type: yes/no, number or other.
    """

    question_id: int | str
    image: str
    text: str
    answers: tuple[str, ...]
    answer: str
    answer_type: str


@dataclass(frozen=True, eq=False)
class Labelled:
    """A split of documents as vectors: features float64 [n, d], labels bool [n, K] with at least one per document."""

    features: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[str]:
        """Each document in words, for `scripts/data.py show`."""
        for x, y in zip(self.features, self.labels):
            shown = " ".join(f"{value:g}" for value in x[:8]) + " ..." * (len(x) > 8)
            yield f"labels {' '.join(map(str, np.flatnonzero(y)))}; {len(x)} features: {shown}"


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one input.

    Attributes:
        output: a text, a class, an answer, or labels joined by "; ".
        score: for a generated text, its log-probability normalised as `decode.length` says; for a class or an answer,
            its probability; for labels, their total probability.
        nbest: pairs (output, score), best first; as many as were requested.
        attention: float32 weights [T, S] over the source tokens, one row per output token (generated texts) or per
            attention of the model (classes); over an image, weights of its regions [rows, columns]. None if the model
            has no attention.
        source_tokens, output_tokens: names of the S columns and T rows of `attention`; for an image, its columns and
            rows.
        unknown: input tokens for which the model has no vector, in order.
    """

    output: str
    score: float
    nbest: tuple[tuple[str, float], ...] = ()
    attention: "Tensor | None" = None
    source_tokens: Sequence[str] = ()
    output_tokens: Sequence[str] = ()
    unknown: Sequence[str] = ()

    def __str__(self) -> str:
        return self.output


def ranked(p: "Tensor", names: Sequence[str], most: int) -> tuple[tuple[str, float], ...]:
    """The `most` names with the largest values in p [n], as pairs (name, value), largest first."""
    values, at = p.topk(min(most, len(names)))
    return tuple((names[i], value) for i, value in zip(at.tolist(), values.tolist()))


def texts_of(record: Any) -> tuple[str, ...]:
    """All texts of a record; none of one that is defined elsewhere."""
    if isinstance(record, Pair):
        return (record.source, *record.references)
    return (record.text, *record.answers) if isinstance(record, Question) else getattr(record, "texts", ())


class View(Sequence[Any]):
    """A sequence whose records are created on access. A subclass defines `__len__` and `record`, numbered from 0."""

    def record(self, i: int) -> Any:
        """Record i, 0 <= i < length."""
        raise NotImplementedError

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self.record(j) for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        return self.record(i % len(self))


class Mapped(View):
    """Records created from `rows` on access."""

    def __init__(self, rows: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self.rows, self.make = rows, make

    def __len__(self) -> int:
        return len(self.rows)

    def record(self, i: int) -> Any:
        return self.make(self.rows[i])


def subset(records: Sequence[Any], indices: Sequence[int]) -> Sequence[Any]:
    """A view of `records` at `indices`, without copying them."""
    return Mapped(indices, records.__getitem__)


def first(records: Sequence[Any], limit: int | None) -> Sequence[Any]:
    """The first `limit` records (None means all), without copying them."""
    return records if limit is None or limit >= len(records) else subset(records, range(limit))


def clean(text: str) -> str:
    """Replace runs of white space (line ends, no-break and other Unicode spaces) by one space."""
    return " ".join(text.split())
