"""Fertilities of encoded pairs: how many target words each source word is aligned to.

`aligned` copies a folder of encoded pairs and adds the output of an aligner trained on its training pairs:

    aligner.npz                 the aligner (`tasks.seq2seq.aligner`), part of the encoding; also aligns further pairs
    fertility.types.npy         [source vocabulary] largest count of each word type in training, at least 1    (guided)
    <split>.fertility.npy       the counts, flat, one for each id of <split>.source      (actual: at least 1; the tagger's)
    fertility.tagger.safetensors     a trained tagger, added by `with_tagger`                              (predicted)

Links are symmetrised (grow-diag-final-and), so a word may have no link. With `forward`, they are those of the model from
source to target, and a count is at least 1, as in the code of Malaviya et al. 2018 (force_align, max(fert, 1)).

"Words" are the model's tokens; if the model uses subwords, they are subwords.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data import DataError, Progress
from tasks.data.cache import META, cached_folder, read_meta
from tasks.data.files import sha256_of
from tasks.data.ragged import Ragged
from tasks.seq2seq import aligner
from tasks.seq2seq.encode import ALIGNER, Encoded, Split, open_encoded

RECIPE = 1  # raise when a code change gives different files for the same pairs
FERTILITIES = ("constant", "guided", "actual", "predicted")
TYPES, TAGGER = "fertility.types.npy", "fertility.tagger.safetensors"


def needed(config: Mapping[str, Any]) -> bool:
    """Whether the model of a configuration needs fertilities from an aligner."""
    return config["model"].get("fertility", "constant") != "constant"


def forward_links(config: Mapping[str, Any]) -> bool:
    """Whether the model of a configuration counts the links of the forward model, see above; cells from before: no."""
    return bool(config["model"].get("forward_links")) and (config["task"]["name"] == "fertility" or needed(config))


def aligned(encoded: Encoded, root: str | Path, progress: Progress, forward: bool = False) -> Encoded:
    """The encoded pairs with their alignments and counts, opened from `root` or computed.

    Raises:
        DataError: there is nothing to align.
    """
    if (encoded.folder / ALIGNER).exists():
        return encoded
    if "train" not in encoded.splits:
        step = "score it on the test set of its own data, or leave repetition out of task.scores"
        where = f"{encoded.folder} holds no training pairs"
        raise DataError("there is no word aligner for this model", where, step)

    def build(folder: Path) -> None:
        split = encoded.splits["train"]
        progress.step(f"aligning {len(split):,} pairs")
        found = aligner.train(split.source, split.target, encoded.sizes)
        found.save(folder / ALIGNER)
        most = np.ones(encoded.sizes[0], np.float32)
        for name, part in encoded.splits.items():
            counted = counts(found, part, forward)
            np.save(folder / f"{name}.fertility.npy", counted.flat)
            if name == "train":
                np.maximum.at(most, np.asarray(part.source.flat), counted.flat)
        np.save(folder / TYPES, most)

    what = "aligned_forward" if forward else "aligned"
    return _extended(encoded, what, [RECIPE], root, build, progress)


def with_tagger(encoded: Encoded, weights: Path, root: str | Path, progress: Progress) -> Encoded:
    """A copy of `aligned` pairs with the weights of a trained tagger added."""

    def build(folder: Path) -> None:
        shutil.copyfile(weights, folder / TAGGER)

    return _extended(encoded, "tagged", [sha256_of(weights)], root, build, progress)


def _extended(
    encoded: Encoded, what: str, key: Sequence[Any], root: str | Path, build: Callable[[Path], Any], progress: Progress
) -> Encoded:
    """Copy a folder of encoded pairs in the cache, and add the files that `build` writes."""

    def copy(folder: Path) -> dict[str, Any]:
        shutil.copytree(encoded.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(META))
        build(folder)
        return {k: v for k, v in read_meta(encoded.folder).items() if k != "files"}

    name = encoded.folder.name.rpartition("-")[0]
    return open_encoded(cached_folder(root, f"{name}-{what}", [what, *key, encoded.sha256], copy, progress))


def counts(aligned_by: aligner.Aligner, split: Split, forward: bool = False) -> Ragged:
    """For every source word of a split, the number of target words aligned to it; rows of uint8 (255: 255 or more)."""
    links, starts = aligned_by.forward if forward else aligned_by.align, split.source.offsets
    linked = [start + s for start, row in zip(starts, links(split.source, split.target)) for s, _ in row]
    flat = np.bincount(np.array(linked, dtype=np.int64), minlength=int(starts[-1]))
    return Ragged(flat.clip(min=int(forward), max=255).astype(np.uint8), split.source.offsets)


def actual(counted: Ragged) -> Ragged:
    """The fertilities of a pair's words from their counts: at least 1, since a word of 0 could never be attended to."""
    return Ragged(np.maximum(counted.flat, 1), counted.offsets)


def stored(split: Split) -> Ragged | None:
    """The counts stored with a split, or None if it has not been aligned."""
    path = split.raw.with_name(split.raw.name.replace(".pairs.jsonl", ".fertility.npy"))
    return Ragged(np.load(path, mmap_mode="r"), split.source.offsets) if path.exists() else None


def aligner_of(encoded: Encoded) -> aligner.Aligner:
    """Load the aligner stored in an encoded folder."""
    return aligner.load(encoded.folder / ALIGNER)
