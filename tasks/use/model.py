"""Use a trained model on your own input: texts, questions about images, or feature vectors.

The input is treated like a test set: it is encoded like the training data (by the family's `encode_test`) and decoded
with the cell's options.
"""

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
from tasks.use.finding import find_cell, tell_other_code
from tasks.use.scoring import opened

WAYS = {"seq2seq": "translate or summarize", "classification": "classify", "vqa": "answer", "multilabel": "label"}
WAYS["fertility"] = "translations trained with model.fertility=predicted"


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
    attention: Tensor | None = None
    source_tokens: Sequence[str] = ()
    output_tokens: Sequence[str] = ()
    unknown: Sequence[str] = field(default=())

    def __str__(self) -> str:
        return self.output


@dataclass(frozen=True)
class Loaded:
    """A finished cell, loaded for use.

    Attributes:
        model: the model, in evaluation mode.
        config: the cell's configuration.
        encoding: the opened encoding of the training data.
        family: the module with the cells of the task's family.
        folder: the cell's folder.
    """

    model: Any
    config: Mapping[str, Any]
    encoding: Any
    family: ModuleType
    folder: Path

    @property
    def name(self) -> str:
        """The name of the family: seq2seq, classification, vqa, multilabel or fertility."""
        return self.family.__name__.rpartition(".")[2]

    def translate(self, texts: Sequence[str], *, nbest: int = 1, digits: str | None = None) -> list[Prediction]:
        """Outputs of an encoder-decoder for raw source texts.

        Args:
            nbest: number of outputs per text; at most `decode.beam`.
            digits: the character that replaces every digit in the training text, such as `#` in Gigaword; the numbers
                of the source are restored in the output.

        Raises:
            ValueError: the model is of another task, or `nbest` is larger than the beam.
        """
        self._must_be("seq2seq")
        from tasks.seq2seq.search import decode
        from tasks.seq2seq.tokenize import output_text

        decoding = _training.options_of(importlib.import_module("tasks.seq2seq.options"), self.config, "decode")
        if nbest > decoding.beam:
            told = f"set decode.beam={nbest} (it is {decoding.beam})"
            raise ValueError(f"nbest={nbest} is more than the beam holds; {told}")
        if not (pairs := [Pair(text, ("",)) for text in texts]):
            return []
        with self.as_test_set(pairs, "pairs", {"digits": digits}) as test:
            split = test.splits["test"]
            sources = [split.source_tokens(i) for i in range(len(split))]
            told = []
            for i, (pair, results) in enumerate(zip(pairs, decode(self.model, test, decoding, most=nbest))):
                language = test.languages["target"]
                how = {"source": pair.source, "digits": digits}
                said = [(output_text(h.tokens, test.options, language, **how), h.score) for h in results]
                best = results[0]
                rows = [*best.tokens, SPECIAL[EOS]]
                pairs = zip(sources[i], split.source[i])
                unknown = [token for token, number in pairs if number == UNK and token != SPECIAL[UNK]]
                told.append(Prediction(*said[0], tuple(said), best.attention, sources[i], rows, unknown))
        return told

    summarize = translate

    def classify(self, texts: Sequence[str | Sequence[str]], *, nbest: int = 1) -> list[Prediction]:
        """Classes of raw texts, or of pairs of texts if the model reads two.

        Raises ValueError if the model is of another task, or if an input has the wrong number of texts.
        """
        self._must_be("classification")
        from tasks.classification.predict import predict

        meta = read_meta(self.encoding.folder)
        examples = []
        for number, given in enumerate(texts, 1):
            parts = (given,) if isinstance(given, str) else tuple(given)
            if len(parts) != len(meta["fields"]):
                reads = f"{len(meta['fields'])}: {', '.join(meta['fields'])}"
                raise ValueError(f"input {number} has {len(parts)} text(s); this model reads {reads}")
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
                    read = zip(split.tokens, split.fields)
                    unknown = [t for lines, ids in read for t, n in zip(lines[i], ids[i]) if n == UNK]
                    said = _ranked(batch.log_probs[row].exp(), test.classes, nbest)
                    told[i] = Prediction(*said[0], said, weights, tokens, list(batch.attention), unknown)
        return told

    def answer(
        self, asked: Sequence[tuple[str | Path, str]], *, nbest: int = 1, images: str | Path | None = None
    ) -> list[Prediction]:
        """Answers to pairs (image, question).

        Args:
            images: folder to which the image paths are relative (default: the working directory). For a model that
                reads features, this must be the feature store (`scripts/extract_features.py`) that holds the images'
                features under these names.

        Raises:
            ValueError: the model is of another task, or reads features and `images` is None.
            DataError: an image is missing or cannot be read.
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
                step = "correct its name or the file, or pass --images FOLDER"
                raise DataError(f"image {bad[0]!r} cannot be read", why, step)
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
        """Labels of feature vectors [n, features], which must be scaled like the training data.

        `nbest` is the number of single labels to rank. Raises ValueError if the model is of another task, or if the
        features have the wrong shape or are not finite.
        """
        self._must_be("multilabel")
        from tasks.multilabel.fitted import predict

        x = np.asarray(features, dtype=np.float64)
        if not len(x):
            return []
        if x.ndim != 2 or x.shape[1] != self.encoding.features or not np.isfinite(x).all():
            wanted = f"finite numbers [n, {self.encoding.features}]"
            raise ValueError(f"features of shape {x.shape} do not fit; this model reads {wanted}")
        scores = self.model.model.scores(x)
        p = self.model.output.distribution(scores)
        names = np.array(self.encoding.labels)
        told = []
        for on, row in zip(predict(self.model.output, scores, self.model.threshold), p):
            ranked = _ranked(torch.from_numpy(np.array(row)), self.encoding.labels, nbest)
            told.append(Prediction("; ".join(names[on]), float(row[on].sum()), ranked))
        return told

    def predict(self, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Call `translate`, `classify`, `answer` or `label`, whichever fits the model."""
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
        """Context manager: `records` encoded like a test set of the model; the encoded files are deleted at the end."""
        encode = importlib.import_module(f"tasks.{self.name}.encode")
        print_of = {"test": content_sha256(records)}
        data = DataSet("input", kind, print_of, lambda progress: {"test": records}, "given", about=about)
        with tempfile.TemporaryDirectory() as work:
            yield encode.encode_test(data, self.folder / _training.ENCODING, work, NullProgress())


class Pictures:
    """Image files in `folder`; a key is an absolute path or a path relative to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fingerprint(self) -> str:
        return str(self.folder)

    def read(self, key: str) -> bytes:
        """The bytes of the image file. Raises ImageError if it cannot be read."""
        try:
            return (self.folder / key).read_bytes()
        except OSError as error:
            raise ImageError(f"{self.folder / key}: {error.strerror}") from error


def _ranked(p: Tensor, names: Sequence[str], most: int) -> tuple[tuple[str, float], ...]:
    """The `most` names with the largest values in p [n], as pairs (name, value), largest first."""
    values, at = p.topk(min(most, len(names)))
    return tuple((names[i], value) for i, value in zip(at.tolist(), values.tolist()))


def load_cell(
    what: str | Path, outputs: str | Path | None = None, overrides: Sequence[str] = (), *, plugins: Sequence[str] = ()
) -> Loaded:
    """Load the model of a finished cell or of an exported folder, on a GPU if there is one.

    Args:
        what: see `find_cell`.
        overrides: settings that do not affect training, such as `decode.beam=10`.
        plugins: the Python files that define the cell's mapping; they run only if they are unchanged since its training.

    Raises:
        NoCell: no cell matches, or several do.
        ConfigError: the overrides are invalid.
        StoreError: the cell is unfinished, damaged or invalid, or needs plugins that are not named
            (`repro.plugins.Untrusted`).
    """
    folder = find_cell(outputs, str(what))
    cell = cells.finished(folder)
    if data := [o for o in overrides if compose.names_data([o])]:
        raise compose.ConfigError(f"{data[0]!r} is not allowed here; scripts/evaluate.py takes a data set")
    cell = cells.admit(folder, cell, plugins)
    tell_other_code(folder, cell)
    config, model, encoding = opened(folder, cell, overrides)
    return Loaded(model, config, encoding, cell.family, folder)
