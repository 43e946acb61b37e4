"""baseline-1M EN-FR of the NMT-Benchmark: 1M pairs from Europarl and News Commentary, used by Laha et al. 2018."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.acquire import sources
from tasks.data.dataset import DataSet, Limits, Manifest, limits, make
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.lines import folder_of, line_pairs
from tasks.data.read.pairs import Translated, language

KIND = "pairs"


@dataclass
@stated("data/baseline_1m_enfr")
class Options(Translated):
    """Either translation direction, with the archive's generic test set."""

    source_lang: str = language("en", "fr")
    target_lang: str = language("en", "fr")
    path: str | None = local("folder of the unpacked archive; null: where scripts/data.py fetch puts it")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Read the files baseline-1M_train.en, baseline-1M_valid.fr and so on; lines are read on demand."""
    folder = root / manifest["name"] if options.path is None else folder_of(options.path, manifest["get"])
    about, parts = options.about(), {"train": "train", "dev": "valid", "test": "test"}
    names = {s: [(f"baseline-1M_{part}.{lang}",) for lang in about.values()] for s, part in parts.items()}
    splits, hashes = line_pairs(sources.folders_in(folder), names, manifest["get"], progress)
    return make(
        manifest, KIND, lambda progress: splits, f"baseline-1M-enfr (NMT-Benchmark), {'-'.join(about.values())}, generic test set",
        sources=hashes, limits=options.limits, found={s: len(pairs) for s, pairs in splits.items()}, about=about,
    )  # fmt: skip
