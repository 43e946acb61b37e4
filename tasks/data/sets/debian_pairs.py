"""Look-up in real text for the demo's entailment model: given the synopses of four Debian packages, classify the third.

    synopses   "first : module to read ID3 tags second : penguin-themed solitaire games third : .. fourth : .."
    which      "third"
    classes    perl, python, program: a Perl module, a Python module, a program (by the sections of Debian's archive)

This is not entailment, but like entailment it has two texts, neither of which is sufficient on its own: the second text
says where to look in the first. After five epochs the demo's model classifies 84 % of the test examples correctly with
softmax, 85 % with sparsemax, and 61 % with uniform attention (measured, one seed each; without the l2 term, which under
Adam prevents the attention from starting to learn).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import integer, stated
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.progress import Progress
from tasks.data.records import Example
from tasks.data.sets.debian_descriptions import Description, load_descriptions

KIND = "texts"
CLASSES = ("perl", "python", "program")
FIELDS = ("synopses", "which")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
SIZES = {"train": 12_000, "dev": 1_000, "test": 1_000}
WORDS = 8  # words of a synopsis that are kept
PROGRAMS = (
    "admin", "comm", "database", "editors", "electronics", "games", "gnome", "graphics", "hamradio", "kde", "mail", "math", "net",
    "otherosfs", "science", "sound", "tex", "text", "utils", "video", "web", "x11",
)  # fmt: skip


@dataclass
@stated("data/debian_pairs")
class Options:
    """12,000 train, 1,000 dev and 1,000 test examples, or as many as `limits` allows; classes are equally frequent."""

    packages: int = integer(low=2, high=len(ORDINALS), help="synopses in the first text")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """All packages of an example are in the same split of `debian_descriptions`, so no synopsis is in two splits."""
    found = load_descriptions(root, progress)
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}

    def read(progress: Progress) -> Splits:
        return {s: list(examples(found.of(s), n, options.packages, s)) for s, n in sizes.items()}

    return make(
        manifest, KIND, read, f"{found.provenance}, {options.packages} synopses at a time",
        sources={s: [found.sha256, options.packages, n] for s, n in sizes.items()}, notes=[found.parts.note("paragraphs")],
        about={"classes": list(CLASSES), "fields": list(FIELDS)},
    )  # fmt: skip


def class_of(row: Description) -> str | None:
    """Class of a package according to its section; None if the section is not used."""
    return "program" if row.section in PROGRAMS else row.section if row.section in CLASSES else None


def examples(rows: Sequence[Description], count: int, packages: int, seed: str) -> Iterator[Example]:
    """Yield `count` examples. Position and class are assigned in rotation; packages of a class are drawn at random."""
    texts: dict[str, list[str]] = {name: [] for name in CLASSES}
    for row in rows:
        if (name := class_of(row)) is not None:
            texts[name].append(" ".join(row.synopsis.split()[:WORDS]))
    for i in range(count):
        rng = random.Random(f"{seed}/{i}")
        asked, label = i % packages, i // packages % len(CLASSES)
        classes = [label if place == asked else rng.randrange(len(CLASSES)) for place in range(packages)]
        said = [f"{ordinal} : {rng.choice(texts[CLASSES[c]])}" for ordinal, c in zip(ORDINALS, classes)]
        yield Example((" ".join(said), ORDINALS[asked]), label)
