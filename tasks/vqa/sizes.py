"""The properties of the encoded data that determine a model's shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


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


class Sizes(Protocol):
    """Attributes of `tasks.vqa.encode.Encoded` that a model needs.

    word_count, answer_count: sizes of the vocabularies, special symbols included. vectors [word_count, embed_dim]:
    initial word vectors, or None for random ones.
    """

    image_spec: ImageSpec
    vectors: np.ndarray | None

    @property
    def word_count(self) -> int: ...
    @property
    def answer_count(self) -> int: ...
