"""Answers to the questions of a split or to your own, with the model's attention to the images; plain torch."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tasks.data.errors import DataError
from tasks.data.examples import Examples, padded
from tasks.data.images import Blank, ImageInput
from tasks.data.progress import Done, untold
from tasks.data.records import Prediction, Question, ranked
from tasks.data.symbols import FIRST, PAD, UNK
from tasks.vqa.encode import Encoded, Split, words_of
from tasks.vqa.models._layers import Reduced, cell_weights


def inputs_of(encoded: Encoded, split: Split, numbers: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
    """Inputs of `Model.forward` for the questions with these indices: tokens [B, T], images [U, ...], image_of [B].

    Unreadable images are all zeros.
    """
    tokens, _ = padded([split.tokens[int(i)] for i in numbers])
    images, owner = np.unique(split.image[np.asarray(numbers)], return_inverse=True)
    cells = np.array(encoded.images.rows(np.maximum(images, 0)))
    cells[images < 0] = 0
    return {"tokens": tokens, "images": torch.from_numpy(cells), "image_of": torch.from_numpy(owner)}


def targets_of(encoded: Encoded, split: Split, numbers: Sequence[int] | np.ndarray) -> Tensor:
    """Soft scores, float32 [B, A]: the accuracy that each answer of the vocabulary would have."""
    target = np.zeros((len(numbers), len(encoded.answers)), np.float32)
    for place, i in enumerate(numbers):
        target[place, split.answers[int(i)]] = split.scores[int(i)]
    return torch.from_numpy(target)


def order(image: np.ndarray, seed: int, epoch: int, by_image: bool) -> np.ndarray:
    """The indices of all questions in the order of an epoch, int64 [N]; a resumed epoch has the same order.

    With `by_image`, images are shuffled and the questions of an image stay together, so that a batch holds few images
    and a CNN processes each image once. Otherwise the questions are shuffled individually, as in the authors' code.

    Args:
        image: int64 [N], the image of each question.
    """
    rng = np.random.default_rng([seed, epoch])
    if not by_image:
        return rng.permutation(len(image))
    numbers, owner = np.unique(image, return_inverse=True)
    return np.argsort(rng.permutation(len(numbers))[owner], kind="stable")


class Questions(Examples):
    """The questions of a split.

    Batches consist of places and are made once. (seed, epoch) determines which question takes a place, so every
    epoch has new batches, and a resumed epoch has the same batches as in an uninterrupted run. The epoch is stored in
    shared memory, because the data workers of fairseq-train outlive an epoch.
    """

    def __init__(self, split: Split, training: bool, encoded: Encoded, seed: int) -> None:
        super().__init__(split, training)
        self.encoded, self.seed = encoded, seed
        self._epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._order: tuple[int, np.ndarray] | None = None

    def measured(self) -> tuple[np.ndarray]:
        return (np.full(len(self), int(self.split.tokens.lengths.max(initial=1))),)  # any question may take a place

    def __getitem__(self, place: int) -> int:
        """Index of the question at a place in the current epoch."""
        if not self.training:
            return place
        epoch = int(self._epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, order(self.split.image, self.seed, epoch, self.encoded.options.by_image)
        return int(self._order[1][place])

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def ordered_indices(self, random: Any = None) -> np.ndarray:
        return np.arange(len(self))

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """net_input: the inputs of `Model.forward`; target [B, A]: the soft scores."""
        inputs, target = (of(self.encoded, self.split, samples) for of in (inputs_of, targets_of))
        return {"net_input": inputs, "target": target, "ntokens": int(self.split.tokens.lengths[samples].sum())}


class Batch(NamedTuple):
    """Question indices [B], logits float32 [B, A], attention per region [B, L] and its `Reduced`; all on the CPU."""

    numbers: np.ndarray
    logits: Tensor
    weights: Tensor
    reduced: Reduced


@torch.no_grad()
def predict(model: nn.Module, encoded: Encoded, split: Split, batch_size: int, done: Done = untold) -> Iterator[Batch]:
    """Predict every question of a split, in order, on the model's device; `done` is called with the share completed."""
    model.eval()
    device = next(model.parameters()).device
    for start in range(0, len(split), batch_size):
        numbers = np.arange(start, min(start + batch_size, len(split)))
        logits, reduced = model(**{k: v.to(device) for k, v in inputs_of(encoded, split, numbers).items()})
        on_cpu = Reduced(*(None if t is None else t.cpu() for t in reduced))
        yield Batch(numbers, logits.float().cpu(), cell_weights(on_cpu, model.reduce_image.alpha, model.grid), on_cpu)
        done((numbers[-1] + 1) / len(split))


def answers(
    used: Any, asked: Sequence[tuple[str | Path, str]], *, nbest: int = 1, images: str | Path | None = None
) -> list[Prediction]:
    """Answers of a model (a `tasks.use.model.Loaded`) to pairs (image, question).

    Args:
        images: folder to which the image paths are relative (default: the working directory). For a model that reads
            features, this must be the feature store (`scripts/data.py features`) that holds the images' features
            under these names.

    Raises:
        ValueError: the model reads features and `images` is None.
        DataError: an image is missing or cannot be read.
    """
    spec = used.encoding.image_spec
    blank = (spec.kind, spec.grid, spec.channels) == (Blank.kind, Blank.grid, Blank.channels)
    kind = "none" if blank else spec.kind
    if kind == "features" and images is None:
        raise ValueError("this model reads features of images; name their store by images=FOLDER (--images FOLDER)")
    store = Path(images) if images is not None and kind == "features" else None
    source = Pictures(Path(images or ".")) if kind == "pixels" else None
    questions = [Question(i, str(image), text, (), "", "other") for i, (image, text) in enumerate(asked)]
    found = []
    with used.as_test_set(questions, {"images": ImageInput(kind, spec.grid, source, store)}) as test:
        split, rows = test.splits["test"], used.config["decode"]["batch_size"]
        if bad := [q.image for q, row in zip(questions, split.image) if row < 0]:
            why = test.images.bad.get(bad[0], f"{images} has no image of this name")
            step = "correct its name or the file, or pass --images FOLDER"
            raise DataError(f"image {bad[0]!r} cannot be read", why, step)
        for numbers, logits, weights, _ in predict(used.model, test, split, rows):
            for row, i in enumerate(numbers.tolist()):
                best = ranked(logits[row].sigmoid(), test.answers, nbest)
                regions = weights[row].unflatten(0, used.model.grid).float()
                down, across = regions.shape
                names = [str(c + 1) for c in range(across)], [f"row {r + 1}" for r in range(down)]
                unknown = [w for w, n in zip(words_of(questions[i].text), split.tokens[i]) if n == UNK]
                found.append(Prediction(*best[0], best, regions, *names, unknown))
    return found


@dataclass
class Pictures:
    """Image files in `folder`; a key is an absolute path or a path relative to `folder`."""

    folder: Path

    def fingerprint(self) -> str:
        return str(self.folder)

    def read(self, key: str) -> bytes:
        """The bytes of the image file. Raises DataError if it cannot be read."""
        try:
            return (self.folder / key).read_bytes()
        except OSError as error:
            raise DataError(f"{self.folder / key}: {error.strerror}") from error


def graph(used: Any) -> tuple[nn.Module, Any, dict[str, Tensor], list[str]]:
    """The network, the function to write as ONNX, an example of each input by its name, and the names of the outputs."""
    network, spec = copy.deepcopy(used.model).cpu().eval(), used.encoding.image_spec
    tokens = torch.full((2, 5), FIRST)
    tokens[1, -1] = PAD
    regions = (spec.grid[0] * spec.grid[1], spec.channels)
    images = torch.zeros(2, *spec.grid, 3, dtype=torch.uint8) if spec.kind == "pixels" else torch.zeros(2, *regions)

    def probabilities(tokens: Tensor, images: Tensor) -> Tensor:
        return network(tokens, images, torch.arange(tokens.shape[0]))[0].float().sigmoid()

    return network, probabilities, {"tokens": tokens, "images": images}, ["probabilities"]
