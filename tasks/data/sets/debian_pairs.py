"""Look-up in real text, for the entailment model in the demo: four Debian packages are described; what is the third one?

    descriptions   "first : Image::Size is a library based on .. second : This tool converts .. third : .. fourth : .."
    which          "third"
    classes        perl, python, program: a Perl module, a Python module, a program (sections of Debian's archive)

It is not entailment. Like entailment, it has two texts of which neither tells anything alone: the second says where to look
in the first. A model that cannot look there, since its attention is broken or uniform, falls from about 80 % to 60 %.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.data.dataset import SPLITS, DataSet, Limits, limits, make
from tasks.data.debian import Description, load_descriptions
from tasks.data.manifests import load_manifest
from tasks.data.progress import Progress
from tasks.data.records import Example
from tasks.options import integer

KIND = "texts"
CLASSES = ("perl", "python", "program")
FIELDS = ("descriptions", "which")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
SIZES = {"train": 12_000, "dev": 1_000, "test": 1_000}
PROGRAMS = (
    "admin", "comm", "database", "editors", "electronics", "games", "gnome", "graphics", "hamradio", "kde", "mail", "math", "net",
    "otherosfs", "science", "sound", "tex", "text", "utils", "video", "web", "x11",
)  # fmt: skip


@dataclass
class Options:
    """12,000 / 1,000 / 1,000 examples, the classes in equal parts, or as many as `limits` says."""

    packages: int = integer(4, low=2, high=len(ORDINALS), help="descriptions in the first text")
    words: int = integer(12, low=4, help="kept of each")
    limits: Limits = limits()


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """The packages of an example are of one split of `debian_descriptions`, so no near-duplicate is in two splits."""
    found = load_descriptions(root, progress)
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}
    manifest = load_manifest("debian_pairs")

    def read(progress: Progress) -> Mapping[str, Sequence[Example]]:
        return {s: list(examples(found.of(s), n, options.packages, options.words, s)) for s, n in sizes.items()}

    chosen = [found.sha256, options.packages, options.words]
    return make(
        manifest, KIND, read, f"{found.provenance}, four at a time", sources={s: [*chosen, n] for s, n in sizes.items()},
        notes=[found.parts.note("paragraphs")], about={"classes": list(CLASSES), "fields": list(FIELDS)},
    )  # fmt: skip


def class_of(row: Description) -> str | None:
    """Class of a package by its section; None for sections that are left out."""
    return "program" if row.section in PROGRAMS else row.section if row.section in CLASSES else None


def examples(rows: Sequence[Description], count: int, packages: int, words: int, seed: str) -> Iterator[Example]:
    """`count` examples; place and class go round, the packages are drawn by class."""
    texts: dict[str, list[str]] = {name: [] for name in CLASSES}
    for row in rows:
        if (name := class_of(row)) is not None:
            texts[name].append(" ".join(row.paragraph.split()[:words]))
    for i in range(count):
        rng = random.Random(f"{seed}/{i}")
        asked, label = i % packages, i // packages % len(CLASSES)
        classes = [label if place == asked else rng.randrange(len(CLASSES)) for place in range(packages)]
        described = [f"{rng.choice(texts[CLASSES[c]])} ({ordinal})" for ordinal, c in zip(ORDINALS, classes)]
        yield Example((" ".join(described), ORDINALS[asked]), label)
