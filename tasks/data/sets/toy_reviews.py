"""Generated documents of 5 to 30 filler words with one run of two opinion words at a random place; two classes."""

from __future__ import annotations

import random
from pathlib import Path

from tasks.data.dataset import DataSet
from tasks.data.generated import GeneratedOptions as Options
from tasks.data.generated import generated_texts
from tasks.data.progress import Progress
from tasks.data.records import Example

KIND = "texts"
CLASSES = ("negative", "positive")
FIELDS = ("text",)
FILLERS = [f"word{i}" for i in range(40)]
OPINIONS = (("dreadful", "boring", "awful"), ("lovely", "superb", "brilliant"))


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """Marked are the opinion words."""
    return generated_texts("toy_reviews", options, _draw, CLASSES, FIELDS)


def _draw(rng: random.Random) -> Example:
    label = rng.randrange(2)
    words = rng.choices(FILLERS, k=rng.randint(5, 30))
    at = rng.randrange(len(words) + 1)
    opinion = rng.choices(OPINIONS[label], k=2)
    return Example((" ".join(words[:at] + opinion + words[at:]),), label, frozenset(opinion))
