"""Generated texts with a known answer: seconds, offline, for tests and for trying things out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tasks.config.options import integer
from tasks.data.dataset import SPLITS, DataSet, Limits, limits, make
from tasks.data.manifests import load_manifest
from tasks.data.progress import Progress
from tasks.data.records import Example

SIZES = {"train": 600, "dev": 100, "test": 100}


@dataclass
class GeneratedOptions:
    """600 / 100 / 100 examples, or as many as `limits` says."""

    seed: int = integer(1, low=0, help="of the texts")
    limits: Limits = limits()


def generated_texts(
    name: str,
    options: GeneratedOptions,
    draw: Callable[[random.Random], Example],
    classes: tuple[str, ...],
    fields: tuple[str, ...],
) -> DataSet:
    """A set of examples, each drawn by a generator of its own, so that a limit changes no other example."""
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}

    def read(progress: Progress) -> dict[str, list[Example]]:
        return {s: [draw(random.Random(f"{options.seed}/{s}/{i}")) for i in range(n)] for s, n in sizes.items()}

    return make(
        load_manifest(name), "texts", read, f"generated texts, seed {options.seed}", sources={s: [options.seed, n] for s, n in sizes.items()},
        notes=["GENERATED TEXT"], about={"classes": list(classes), "fields": list(fields)},
    )  # fmt: skip
