"""DUC 2003 and 2004, task 1: test sets for models trained on Gigaword, in the layout of Rush et al. 2015.

The data require an agreement with NIST.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.data.dataset import DataSet, Limits, Manifest, limits, make
from tasks.data.files import sha256_of
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.lines import LinePairs, find_file, folder_of
from tasks.data.read.pairs import ENGLISH

KIND = "pairs"


@dataclass
class Options:
    """Documents with four references each; there is no training data."""

    path: str | None = local("folder with input.txt and task1_ref0.txt to task1_ref3.txt, or one that holds it")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the text as published, with ordinary digits.

    Gigaword has # for each digit, which about["digits"] records (Rush et al.'s NAMAS).
    """
    name, year, step = manifest["name"], manifest["name"][-4:], manifest["get"]
    folder = folder_of(options.path, step)
    source = find_file((folder / name.upper(), folder / f"clean_{year}", folder), ("input.txt",), step)
    places = (source.parent, source.parent / "references")
    references = [find_file(places, (f"task1_ref{k}.txt",), step) for k in range(4)]
    pairs = LinePairs(source, references)
    return make(
        manifest, KIND, lambda progress: {"train": (), "dev": (), "test": pairs}, f"DUC {year} task 1, four references",
        sources={"test": [sha256_of(path) for path in (source, *references)]}, limits=options.limits, found={"test": len(pairs)},
        about=ENGLISH | {"digits": "#"},
    )  # fmt: skip
