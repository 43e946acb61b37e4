"""DUC task 1: a test set for models trained on Gigaword, by agreement with NIST; layout of Rush et al. 2015."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.config.options import text
from tasks.data.dataset import DataSet, Limits, limits, make
from tasks.data.files import sha256_of
from tasks.data.manifests import load_manifest
from tasks.data.read.lines import LinePairs, find_file, folder_of
from tasks.data.read.pairs import ENGLISH


@dataclass
class DucOptions:
    """Documents with four references; nothing to train on."""

    path: str | None = text(
        None, optional=True, help="folder with input.txt and task1_ref0.txt to task1_ref3.txt, or one that holds it"
    )
    limits: Limits = limits()


def load_duc(name: str, options: DucOptions) -> DataSet:
    """Text as published: its digits are digits, while Gigaword's are #, which about["digits"] says (Rush et al.'s NAMAS)."""
    manifest = load_manifest(name)
    folder = folder_of(options.path, manifest["get"])
    inner = (folder / name.upper(), folder / f"clean_{name[-4:]}", folder)
    source = find_file(inner, ("input.txt",), manifest["get"])
    places = (source.parent, source.parent / "references")
    references = [find_file(places, (f"task1_ref{k}.txt",), manifest["get"]) for k in range(4)]
    pairs = LinePairs(source, references)
    return make(
        manifest, "pairs", lambda progress: {"train": (), "dev": (), "test": pairs}, f"DUC {name[-4:]} task 1, four references",
        sources={"test": [sha256_of(path) for path in (source, *references)]}, limits=options.limits, found={"test": len(pairs)},
        about=ENGLISH | {"digits": "#"},
    )  # fmt: skip
