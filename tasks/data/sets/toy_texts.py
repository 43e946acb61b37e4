"""Generated texts with a known answer, for tests and first trials: they take seconds and work offline.

toy_reviews      5 to 30 filler words, and two consecutive opinion words at a random position.
                 The opinion words are marked.
toy_entailment   The premise gives three things a colour. The hypothesis gives one of them the same colour or another
                 colour, or is about a new thing. The thing in the hypothesis is marked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import integer, stated
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.progress import Progress
from tasks.data.records import Example

KIND = "texts"
SIZES = {"train": 600, "dev": 100, "test": 100}
FILLERS = [f"word{i}" for i in range(40)]
OPINIONS = (("dreadful", "boring", "awful"), ("lovely", "superb", "brilliant"))
THINGS, COLOURS = [f"thing{i}" for i in range(8)], ("red", "green", "blue")


@dataclass
@stated("data/toy_reviews")
class Options:
    """600 train, 100 dev and 100 test examples, or as many as `limits` allows."""

    seed: int = integer(low=0, help="of the texts")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Generate examples, each with its own random generator, so that a limit does not change other examples."""
    draw, classes, fields = SETS[manifest["name"]]
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}

    def read(progress: Progress) -> Splits:
        return {s: [draw(random.Random(f"{options.seed}/{s}/{i}")) for i in range(n)] for s, n in sizes.items()}

    return make(
        manifest, KIND, read, f"generated texts, seed {options.seed}", sources={s: [options.seed, n] for s, n in sizes.items()},
        notes=["GENERATED TEXT"], about={"classes": list(classes), "fields": list(fields)},
    )  # fmt: skip


def _review(rng: random.Random) -> Example:
    label = rng.randrange(2)
    words = rng.choices(FILLERS, k=rng.randint(5, 30))
    at = rng.randrange(len(words) + 1)
    opinion = rng.choices(OPINIONS[label], k=2)
    return Example((" ".join(words[:at] + opinion + words[at:]),), label, frozenset(opinion))


def _entailment(rng: random.Random) -> Example:
    things = rng.sample(THINGS, 4)
    colours = {thing: rng.choice(COLOURS) for thing in things}
    label = rng.randrange(3)
    about = things[3] if label == 1 else rng.choice(things[:3])
    colour = colours[about] if label != 2 else rng.choice([c for c in COLOURS if c != colours[about]])
    premise = " and ".join(f"the {thing} is {colours[thing]}" for thing in things[:3])
    return Example((premise, f"the {about} is {colour}"), label, frozenset({about}))


SETS = {  # name -> function that draws an example, classes, fields
    "toy_reviews": (_review, ("negative", "positive"), ("text",)),
    "toy_entailment": (_entailment, ("entailment", "neutral", "contradiction"), ("premise", "hypothesis")),
}
