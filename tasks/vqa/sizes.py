"""What of the encoded data shapes a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class ImageSpec:
    """What a model sees of an image.

    kind: "pixels" (uint8 [height, width, 3], read by the model's own CNN) or "features" (cells x channels).
    grid: (height, width) of the pixels, or (rows, columns) of the feature map. channels: 3, or those of the features.
    """

    kind: str
    grid: tuple[int, int]
    channels: int


class Sizes(Protocol):
    """`tasks.vqa.encode.Encoded` has these.

    word_count, answer_count: sizes of the vocabularies, special symbols included. vectors [word_count, embed_dim]: word
    vectors to start from, None for random ones.
    """

    image_spec: ImageSpec
    vectors: np.ndarray | None

    @property
    def word_count(self) -> int: ...
    @property
    def answer_count(self) -> int: ...
