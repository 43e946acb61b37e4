"""Generated texts with a known answer: seconds, offline, for tests and for trying things out."""

from __future__ import annotations

import random
from collections.abc import Callable

from tasks.classification.corpus import SPLITS, Example, Request, Source
from tasks.data.progress import Progress

SIZES = {"train": 600, "dev": 100, "test": 100}
FILLERS = [f"word{i}" for i in range(40)]
GOOD, BAD = ("lovely", "superb", "brilliant"), ("dreadful", "boring", "awful")
THINGS, COLOURS = [f"thing{i}" for i in range(8)], ("red", "green", "blue")


def open_reviews(request: Request, progress: Progress) -> Source:
    """Documents of 5 to 30 filler words with one run of two opinion words at a random place; two classes."""

    def draw(rng: random.Random) -> Example:
        label = rng.randrange(2)
        words = rng.choices(FILLERS, k=rng.randint(5, 30))
        at = rng.randrange(len(words) + 1)
        opinion = rng.choices((BAD, GOOD)[label], k=2)
        return Example((" ".join(words[:at] + opinion + words[at:]),), label, frozenset(opinion))

    return _generated(request, draw, ("negative", "positive"), ("text",))


def open_entailment(request: Request, progress: Progress) -> Source:
    """A premise gives several things a colour; the hypothesis is about one: the same colour, another, or a new thing."""
    classes = ("entailment", "neutral", "contradiction")

    def draw(rng: random.Random) -> Example:
        things = rng.sample(THINGS, 4)
        colours = {thing: rng.choice(COLOURS) for thing in things}
        label = rng.randrange(3)
        about = things[3] if label == 1 else rng.choice(things[:3])
        colour = colours[about] if label != 2 else rng.choice([c for c in COLOURS if c != colours[about]])
        premise = " and ".join(f"the {thing} is {colours[thing]}" for thing in things[:3])
        return Example((premise, f"the {about} is {colour}"), label, frozenset({about}))

    return _generated(request, draw, classes, ("premise", "hypothesis"))


def _generated(
    request: Request, draw: Callable[[random.Random], Example], classes: tuple[str, ...], fields: tuple[str, ...]
) -> Source:
    sizes = {split: request.limits.get(split) or SIZES[split] for split in SPLITS}

    def read(progress: Progress) -> dict[str, list[Example]]:
        return {s: [draw(random.Random(f"{request.seed}/{s}/{i}")) for i in range(sizes[s])] for s in SPLITS}

    return Source(
        request.name, request.fingerprint("generated", request.seed), read, classes, fields,
        f"generated texts, seed {request.seed}", demo=True, notes=("GENERATED TEXT",),
    )  # fmt: skip
