"""A trained model used on your own input: texts, questions about images, feature vectors.

The input is treated like a test set: encoded as the training's was (`encode_test` of the family), decoded as the cell says.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro import cell as cells
from tasks.cells import _training
from tasks.config import compose
from tasks.data import DataError, DataSet, NullProgress, content_sha256
from tasks.data.cache import read_meta
from tasks.data.images import Blank, ImageError, ImageInput
from tasks.data.records import Example, Pair, Question
from tasks.data.symbols import EOS, SPECIAL, UNK
from tasks.load.finding import find_cell, outputs_folder
from tasks.load.scoring import opened

WAYS = {
    "seq2seq": "translate or summarize", "classification": "classify", "vqa": "answer", "multilabel": "label",
    "fertility": "translations trained with model.fertility=predicted",
}  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What a model says of one input.

    Attributes:
        output: a text, a class, an answer, or labels joined by "; ".
        score: of the output: as `decode.length` says for a text (log-probability), else its probability; of labels the
            probability mass on them.
        nbest: (output, score), best first; as many as were asked for.
        attention: [T, S] float32: over the source tokens, for each output token (texts) or each attention of the model
            (classes); over an image its cells [rows, columns]. None where the model has no attention.
        source_tokens, output_tokens: the S and T names; of an image its columns and rows.
        unknown: tokens of the input that the model has no vector for, in order.
    """

    output: str
    score: float
    nbest: tuple[tuple[str, float], ...] = ()
    attention: Tensor | None = None
    source_tokens: Sequence[str] = ()
    output_tokens: Sequence[str] = ()
    unknown: Sequence[str] = field(default=())

    def __str__(self) -> str:
        return self.output


@dataclass(frozen=True)
class Loaded:
    """A finished cell: its model in evaluation mode, configuration, opened encoding, the module of its family's cells, its folder."""

    model: Any
    config: Mapping[str, Any]
    encoding: Any
    family: ModuleType
    folder: Path

    @property
    def name(self) -> str:
        """Of the family: seq2seq, classification, vqa or multilabel."""
        return self.family.__name__.rpartition(".")[2]

    def translate(self, texts: Sequence[str], *, nbest: int = 1, digits: str | None = None) -> list[Prediction]:
        """Outputs of an encoder-decoder for raw source texts.

        Args:
            nbest: at most `decode.beam`.
            digits: the sign by which the training text has every digit, as `#` in Gigaword; numbers are put back.

        Raises:
            ValueError: a model of another task, or a larger `nbest` than the beam.
        """
        self._must_be("seq2seq")
        from tasks.seq2seq.decode import nbest_rows
        from tasks.seq2seq.tokenize import output_text

        decoding = _training.options_of(importlib.import_module("tasks.seq2seq.options"), self.config, "decode")
        if nbest > decoding.beam:
            raise ValueError(
                f"nbest={nbest} is more than the beam holds; set decode.beam={nbest} (it is {decoding.beam})"
            )
        if not (pairs := [Pair(text, ("",)) for text in texts]):
            return []
        with self.as_test_set(pairs, "pairs", {"digits": digits}) as test:
            split = test.splits["test"]
            sources = [split.source_tokens(i) for i in range(len(split))]
            found = nbest_rows(self.model, split.source, sources, test.target_vocab, decoding, nbest)
            told = []
            for i, (pair, results) in enumerate(zip(pairs, found)):
                language = test.languages["target"]
                said = [
                    (output_text(h.tokens, test.options, language, source=pair.source, digits=digits), h.score)
                    for h in results
                ]
                best = results[0]
                told.append(
                    Prediction(
                        *said[0], tuple(said), best.attention, sources[i], [*best.tokens, SPECIAL[EOS]],
                        [t for t, number in zip(sources[i], split.source[i]) if number == UNK and t != SPECIAL[UNK]],
                    )
                )  # fmt: skip
        return told

    summarize = translate

    def classify(self, texts: Sequence[str | Sequence[str]], *, nbest: int = 1) -> list[Prediction]:
        """Classes of raw texts; of a model that reads two texts, of pairs of them. Raises ValueError as `translate`."""
        self._must_be("classification")
        from tasks.classification.predict import predict

        meta = read_meta(self.encoding.folder)
        examples = []
        for number, given in enumerate(texts, 1):
            parts = (given,) if isinstance(given, str) else tuple(given)
            if len(parts) != len(meta["fields"]):
                raise ValueError(
                    f"input {number} has {len(parts)} text(s); this model reads {len(meta['fields'])}: {', '.join(meta['fields'])}"
                )
            examples.append(Example(parts, 0))
        if not examples:
            return []
        told: list[Prediction] = [None] * len(examples)  # type: ignore[list-item]
        with self.as_test_set(examples, "texts", {"classes": meta["classes"], "fields": meta["fields"]}) as test:
            split = test.splits["test"]
            for batch in predict(self.model, split, self.config["train"]["batch_size_valid"]):
                for row, i in enumerate(batch.index.tolist()):
                    tokens = split.tokens[0][i]
                    weights = torch.stack([p[row, : len(tokens)] for p in batch.attention.values()])
                    unknown = [
                        t
                        for lines, ids in zip(split.tokens, split.fields)
                        for t, n in zip(lines[i], ids[i])
                        if n == UNK
                    ]
                    said = _ranked(batch.log_probs[row].exp(), test.classes, nbest)
                    told[i] = Prediction(*said[0], said, weights, tokens, list(batch.attention), unknown)
        return told

    def answer(
        self, asked: Sequence[tuple[str | Path, str]], *, nbest: int = 1, images: str | Path | None = None
    ) -> list[Prediction]:
        """Answers to (image, question).

        Args:
            images: folder that the images' paths are relative to (default: the working directory); of a model that reads
                features, the feature store (`scripts/extract_features.py`) that has them under these names.

        Raises:
            ValueError: a model of another task. DataError: an image that is missing or cannot be read.
        """
        self._must_be("vqa")
        from tasks.vqa.encode import words_of
        from tasks.vqa.predict import predict

        spec = self.encoding.image_spec
        blank = (spec.kind, spec.grid, spec.channels) == (Blank.kind, Blank.grid, Blank.channels)
        kind = "none" if blank else spec.kind
        if kind == "features" and images is None:
            raise ValueError("this model reads features of images; name their store by images=FOLDER (--images FOLDER)")
        store = Path(images) if images is not None and kind == "features" else None
        source = Pictures(Path(images or ".")) if kind == "pixels" else None
        questions = [Question(i, str(image), text, (), "", "other") for i, (image, text) in enumerate(asked)]
        told: list[Prediction] = []
        if not questions:
            return told
        with self.as_test_set(questions, "questions", {"images": ImageInput(kind, spec.grid, source, store)}) as test:
            if bad := [q.image for q, row in zip(questions, test.splits["test"].image) if row < 0]:
                why = test.images.bad.get(bad[0], f"{images} has no image of this name")
                raise DataError(f"image {bad[0]!r} cannot be read", why, "correct its name, or --images FOLDER")
            split, rows = test.splits["test"], self.config["decode"]["batch_size"]
            for numbers, logits, weights, _ in predict(self.model, test, split, rows):
                for row, i in enumerate(numbers.tolist()):
                    said = _ranked(logits[row].sigmoid(), test.answers, nbest)
                    cells_of = weights[row].unflatten(0, self.model.grid).float()
                    down, across = cells_of.shape
                    names = [str(c + 1) for c in range(across)], [f"row {r + 1}" for r in range(down)]
                    words = words_of(questions[i].text)
                    unknown = [w for w, n in zip(words, split.tokens[i]) if n == UNK]
                    told.append(Prediction(*said[0], said, cells_of, *names, unknown))
        return told

    def label(self, features: Any, *, nbest: int = 1) -> list[Prediction]:
        """Labels of feature vectors [n, features], scaled as the training's. `nbest` ranks single labels. Raises ValueError."""
        self._must_be("multilabel")
        from tasks.multilabel.selection import predict

        x = np.asarray(features, dtype=np.float64)
        if not len(x):
            return []
        if x.ndim != 2 or x.shape[1] != self.encoding.features or not np.isfinite(x).all():
            raise ValueError(
                f"features of shape {x.shape}; this model reads finite ones of [n, {self.encoding.features}]"
            )
        scores = self.model.model.scores(x)
        p = self.model.output.distribution(scores)
        names = np.array(self.encoding.labels)
        told = []
        for on, row in zip(predict(self.model.output, scores, self.model.threshold), p):
            ranked = _ranked(torch.from_numpy(np.array(row)), self.encoding.labels, nbest)
            told.append(Prediction("; ".join(names[on]), float(row[on].sum()), ranked))
        return told

    def predict(self, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """`translate`, `classify`, `answer` or `label`, whichever is the model's."""
        way = {"seq2seq": self.translate, "classification": self.classify, "vqa": self.answer, "multilabel": self.label}
        if self.name not in way:
            self._must_be("seq2seq")
        return way[self.name](inputs, **options)

    def _must_be(self, family: str) -> None:
        if self.name != family:
            task = self.config["task"]["name"]
            raise ValueError(f"this is a model of {task}, which is used by {WAYS[self.name]}, not by {WAYS[family]}")

    @contextmanager
    def as_test_set(self, records: Sequence[Any], kind: str, about: Mapping[str, Any]) -> Iterator[Any]:
        """Records encoded as a test set of the model is, while the block runs."""
        encode = importlib.import_module(f"tasks.{self.name}.encode")
        print_of = {"test": content_sha256(records)}
        data = DataSet("input", kind, print_of, lambda progress: {"test": records}, "given", about=about)
        with tempfile.TemporaryDirectory() as work:
            yield encode.encode_test(data, self.folder / _training.ENCODING, work, NullProgress())


class Pictures:
    """Image files below `folder`; a key is a path relative to it, or an absolute one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keys(self) -> list[str]:
        return []  # nobody asks: there may be millions

    def fingerprint(self) -> str:
        return str(self.folder)

    def read(self, key: str) -> bytes:
        """The file's bytes. Raises ImageError when there is none."""
        try:
            return (self.folder / key).read_bytes()
        except OSError as error:
            raise ImageError(f"{self.folder / key}: {error.strerror}") from error


def _ranked(p: Tensor, names: Sequence[str], most: int) -> tuple[tuple[str, float], ...]:
    """p [n] -> the `most` names with the largest values."""
    values, at = p.topk(min(most, len(names)))
    return tuple((names[i], value) for i, value in zip(at.tolist(), values.tolist()))


def load_cell(
    what: str | Path, outputs: str | Path | None = None, overrides: Sequence[str] = (), *, trust_plugins: bool = False
) -> Loaded:
    """The model of a finished cell or of an exported folder, on a GPU where there is one.

    Args:
        what: see `find_cell`.
        overrides: of what the training does not depend on, as `decode.beam=10`.
        trust_plugins: run the Python files that the cell names even if you never named them yourself.

    Raises:
        NoCell: no cell matches, or several. ConfigError: invalid overrides.
        StoreError: not finished, damaged or invalid; plugins that you do not trust (`repro.plugins.Untrusted`).
    """
    folder = find_cell(outputs or outputs_folder(), str(what))
    cell = cells.finished(folder)
    if data := [o for o in overrides if compose.names_data([o])]:
        raise compose.ConfigError(f"{data[0]!r}: the input is what you give; scripts/evaluate.py scores on a data set")
    cells.admit(folder, cell, trust_plugins)
    config, model, encoding = opened(folder, cell, overrides)
    return Loaded(model, config, encoding, cell.family, folder)
