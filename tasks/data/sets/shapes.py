"""Generated pictures of three shapes, with a question about each: "what colour is the ring?".

The forms of a picture differ, and so do its colours. Every form is equally often present and has each colour equally
often. So the question alone says nothing about the answer, and whoever sees the colours but not which shape has which
is right once in three times.
"""

import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.dataset import SPLITS, DataSet, Loader, Manifest, Splits, make
from tasks.data.images import ImageInput
from tasks.data.progress import Progress
from tasks.data.records import Question

KIND = "questions"
SIDE, SHAPES = 24, 3  # pixels of a side; shapes of a picture
IMAGES = {"train": 3000, "dev": 500, "test": 1000}
RECIPE = 1  # raise when other pictures or questions are drawn
COLOURS = {
    "red": (230, 30, 30),
    "green": (30, 180, 30),
    "blue": (40, 60, 240),
    "yellow": (240, 230, 30),
    "purple": (150, 30, 200),
    "cyan": (30, 220, 220),
    "white": (250, 250, 250),
    "orange": (250, 140, 20),
}
# Whether a form covers the point (x, y), relative to its centre and radius; y grows downwards.
FORMS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": lambda x, y: x * x + y * y <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.85,
    "triangle": lambda x, y: (y <= 0.9) & (abs(x) <= (y + 1) / 1.8),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.35) & (np.maximum(abs(x), abs(y)) <= 1),
    "ring": lambda x, y: (x * x + y * y >= 0.3) & (x * x + y * y <= 1),
}


@dataclass(frozen=True)
class Shape:
    """One shape of a picture; the centre (x, y) and the radius are in pixels."""

    form: str
    colour: str
    x: float
    y: float
    radius: float


def scene(seed: int, key: str) -> list[Shape]:
    """The shapes of the picture `key`, the same at every call. The squares around them do not overlap."""
    rng = random.Random(f"{seed}/{key}")
    forms, colours = rng.sample(list(FORMS), SHAPES), rng.sample(list(COLOURS), SHAPES)
    shapes: list[Shape] = []
    while len(shapes) < SHAPES:
        radius = rng.uniform(4.0, 4.75)
        x, y = (rng.uniform(radius, SIDE - radius) for _ in range(2))
        if all(max(abs(x - s.x), abs(y - s.y)) > radius + s.radius for s in shapes):
            shapes.append(Shape(forms[len(shapes)], colours[len(shapes)], x, y, radius))
        elif rng.random() < 0.02:
            shapes = []  # no place may be left
    return shapes


def draw(shapes: list[Shape]) -> np.ndarray:
    """The picture on black, uint8 [SIDE, SIDE, 3]."""
    picture, pixels = np.zeros((SIDE, SIDE, 3), np.uint8), np.arange(SIDE) + 0.5
    for s in shapes:
        across, down = (pixels[None, :] - s.x) / s.radius, (pixels[:, None] - s.y) / s.radius
        picture[FORMS[s.form](across, down)] = COLOURS[s.colour]
    return picture


@dataclass(frozen=True)
class Drawn:
    """The pictures as image files that are drawn when they are read; a key is "<split>/<number>"."""

    seed: int

    def fingerprint(self) -> str:
        return f"shapes {RECIPE}, seed {self.seed}"

    def read(self, key: str) -> bytes:
        """The picture as PNG."""
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(draw(scene(self.seed, key))).save(file, "PNG")
        return file.getvalue()


def load(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Generate the questions; every picture depends only on the seed, its split and its number."""

    def read(progress: Progress) -> Splits:
        return {s: [q for i in range(IMAGES[s]) for q in _questions(options.seed, f"{s}/{i}")] for s in SPLITS}

    title = f"generated pictures of {SHAPES} shapes, seed {options.seed}"
    about = {"images": ImageInput(options.input, tuple(options.image_size), Drawn(options.seed))}
    sources = {split: [RECIPE, options.seed, IMAGES[split]] for split in SPLITS}
    return make(manifest, KIND, read, title, sources=sources, limits=options.limits, about=about)


def _questions(seed: int, key: str) -> list[Question]:
    asked = ((s, f"{key}/{s.form}") for s in scene(seed, key))
    return [Question(id, key, f"what colour is the {s.form}?", (s.colour,), s.colour, "other") for s, id in asked]


SETS = {"shapes": Loader(KIND, load)}
