"""Generated pairs: a premise gives three things a colour; the hypothesis is about one: the same colour, another, or a new thing."""

from __future__ import annotations

import random
from pathlib import Path

from tasks.data.dataset import DataSet
from tasks.data.generated import GeneratedOptions as Options
from tasks.data.generated import generated_texts
from tasks.data.progress import Progress
from tasks.data.records import Example

KIND = "texts"
CLASSES = ("entailment", "neutral", "contradiction")
FIELDS = ("premise", "hypothesis")
THINGS, COLOURS = [f"thing{i}" for i in range(8)], ("red", "green", "blue")


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """Marked is the thing that the hypothesis is about."""
    return generated_texts("toy_entailment", options, _draw, CLASSES, FIELDS)


def _draw(rng: random.Random) -> Example:
    things = rng.sample(THINGS, 4)
    colours = {thing: rng.choice(COLOURS) for thing in things}
    label = rng.randrange(3)
    about = things[3] if label == 1 else rng.choice(things[:3])
    colour = colours[about] if label != 2 else rng.choice([c for c in COLOURS if c != colours[about]])
    premise = " and ".join(f"the {thing} is {colours[thing]}" for thing in things[:3])
    return Example((premise, f"the {about} is {colour}"), label, frozenset({about}))
