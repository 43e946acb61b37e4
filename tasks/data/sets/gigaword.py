"""Annotated Gigaword as released by Rush et al. 2015: generate a headline from the first sentence.

Used in Table 2 of Niculae and of Laha.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.data.acquire import hub
from tasks.data.dataset import DataSet, Limits, Manifest, limits, make
from tasks.data.files import sha256_of
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.lines import LinePairs, find_file, folder_of
from tasks.data.read.pairs import ENGLISH
from tasks.data.records import Mapped, Pair, clean

KIND = "pairs"
# published layouts: the archive with folders train/ and Giga/, or all files in one folder
NAMES = {
    "train": (("train.article.filter.txt", "train.article.txt"), ("train.title.filter.txt", "train.title.txt")),
    "dev": (("valid.article.filter.txt", "valid.article.txt"), ("valid.title.filter.txt", "valid.title.txt")),
    "test": (("input.txt",), ("task1_ref0.txt",)),
}


@dataclass
class Options:
    """3,803,957 train, 189,651 dev and 1,951 test pairs, as released: tokenised, lower-cased, and with # for digits."""

    path: str | None = local("folder of the authors' archive; null: the hub")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the authors' archive or the hub's copy; lines are read on demand."""
    title = "Gigaword (Rush et al. 2015), "
    if options.path is None:
        rows = hub.load(manifest, root, progress)
        splits, stamps = {s: Mapped(r, _pair) for s, r in rows.items()}, hub.stamps(rows)
        title += "Hugging Face release"
    else:
        folder, splits, stamps = folder_of(options.path, manifest["get"]), {}, {}
        for split, sides in NAMES.items():
            files = [find_file((folder, folder / "train", folder / "Giga"), names, manifest["get"]) for names in sides]
            splits[split] = LinePairs(files[0], files[1:])
            progress.say(f"verifying {files[0].name} and {files[1].name}")
            stamps[split] = [sha256_of(path) for path in files]
        title += "released pairs"
    found = {split: len(pairs) for split, pairs in splits.items()}
    return make(
        manifest, KIND, lambda progress: splits, title, sources=stamps, limits=options.limits, found=found, about=ENGLISH
    )  # fmt: skip


def _pair(row: dict[str, str]) -> Pair:
    return Pair(clean(row["document"]), (clean(row["summary"]),))
