"""Annotated Gigaword (generate a headline from the first sentence), and DUC 2003 and 2004, task 1, its further test sets.

As released by Rush et al. 2015 in their archive sumdata. Gigaword is used in Table 2 of Niculae and of Laha. DUC requires
an agreement with NIST; it has no training data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.acquire import hub
from tasks.data.dataset import DataSet, Limits, Manifest, limits, make
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.lines import folder_of, line_pairs
from tasks.data.read.pairs import ENGLISH
from tasks.data.records import Pair, clean

KIND = "pairs"
# published layouts: Gigaword in folders train/ and Giga/ of the archive, or all files in one folder
GIGAWORD = {
    "train": (("train.article.filter.txt", "train.article.txt"), ("train.title.filter.txt", "train.title.txt")),
    "dev": (("valid.article.filter.txt", "valid.article.txt"), ("valid.title.filter.txt", "valid.title.txt")),
    "test": (("input.txt",), ("task1_ref0.txt",)),
}
DUC = {"test": (("input.txt",), *((f"task1_ref{k}.txt",) for k in range(4)))}


@dataclass
@stated("data/gigaword")
class Options:
    """Gigaword: 3,803,957 train, 189,651 dev and 1,951 test pairs, tokenised, lower-cased, and with # for digits.

    DUC: documents with four references each.
    """

    path: str | None = local("folder of the authors' archive, or one with its files; null: the hub, which has no DUC")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the authors' archive, or the hub's copy of Gigaword; lines are read on demand.

    DUC's text has ordinary digits, as published. Gigaword has # for each digit, which DUC's about["digits"] records
    (Rush et al.'s NAMAS).
    """
    name, about = manifest["name"], ENGLISH
    if name == "gigaword" and options.path is None:
        splits, stamps = hub.load(manifest, root, progress, make=_pair)
        title = "Gigaword (Rush et al. 2015), Hugging Face release"
    elif name == "gigaword":
        folder = folder_of(options.path, manifest["get"])
        places = (folder, folder / "train", folder / "Giga")
        splits, stamps = line_pairs(places, GIGAWORD, manifest["get"], progress)
        title = "Gigaword (Rush et al. 2015), released pairs"
    else:
        folder, year = folder_of(options.path, manifest["get"]), name[-4:]
        tops = (folder / name.upper(), folder / f"clean_{year}", folder)
        places = [place for top in tops for place in (top, top / "references")]
        splits, stamps = line_pairs(places, DUC, manifest["get"], progress)
        title, about = f"DUC {year} task 1, four references", ENGLISH | {"digits": "#"}
    found = {split: len(pairs) for split, pairs in splits.items()}
    return make(
        manifest, KIND, lambda progress: splits, title, sources=stamps, limits=options.limits, found=found, about=about
    )  # fmt: skip


def _pair(row: dict[str, str]) -> Pair:
    return Pair(clean(row["document"]), (clean(row["summary"]),))
