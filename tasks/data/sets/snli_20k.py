"""20,000 SNLI training pairs with SNLI's own dev and test sets, from a mirror."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.dataset import DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, numbered, read_lines
from tasks.data.read.lines import same_length
from tasks.data.records import Example

KIND = "texts"
CLASSES = ("entailment", "neutral", "contradiction")
FIELDS = ("premise", "hypothesis")
TRAIN = ("train.csv", "test.csv")
COLUMNS = ("s1", "s2", "labels", "preproc1_expl_1", "preproc1_expl_2", "preproc1_expl_3")
# Words without information about the picture; explanations contain them for grammatical reasons only.
_FUNCTION_WORDS = frozenset(
    """
    a an the is are was were be been being am do does did has have had having of in on at to from by with for into
    onto up down out off over under and or but nor not no if then than that this these those there it its he she
    they them his her their him who which what as so can could would should will may might must just same also
    about because
    """.split()  # noqa: SIM905
)


@dataclass
@stated("data/snli_20k")
class Options:
    """About 20,000 train, 9,842 dev and 9,824 test pairs."""

    mirror: str | None = mirror()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load pairs; the marked words are premise words mentioned in the e-SNLI explanations of dev and test pairs.

    They replace the highlights, which the mirror does not have.
    """
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)
    names = {"train": TRAIN} | {split: tuple(f"{column}.{split}" for column in COLUMNS) for split in ("dev", "test")}

    def read(progress: Progress) -> Splits:
        train = dict.fromkeys(row for name in TRAIN for row in _subset_rows(files[name]))
        dev, test = (_explained([files[name] for name in names[split]]) for split in ("dev", "test"))
        return {"train": list(train), "dev": dev, "test": test}

    return make(
        manifest, KIND, read, "20,000 SNLI training pairs; SNLI dev and test", sources={s: [hashes[n] for n in ns] for s, ns in names.items()},
        limits=options.limits, notes=["marked words: premise words that an e-SNLI explanation mentions (no highlights in this copy)"],
        about={"classes": list(CLASSES), "fields": list(FIELDS)},
    )  # fmt: skip


def _explained(paths: Sequence[Path]) -> list[Example]:
    columns = [read_lines(path) for path in paths]
    same_length(paths, columns)
    found = []
    for number, (s1, s2, label, *why) in enumerate(zip(*columns), 1):
        if label not in CLASSES:
            raise damaged(paths[2], f"label {label[:40]!r}", f"one of {', '.join(CLASSES)}", line=number)
        found.append(Example((s1, s2), CLASSES.index(label), explained_words(why)))
    return found


def explained_words(explanations: Iterable[str]) -> frozenset[str]:
    """Content words of the explanations, in lower case: a premise word among them is mentioned in a person's reason."""
    words = {word for text in explanations for word in re.findall(r"\w+", text.lower())}
    return frozenset(words - _FUNCTION_WORDS)


def _subset_rows(path: Path) -> Iterator[Example]:
    classes = {"1": "neutral", "2": "contradiction", "3": "entailment"}
    for number, line in numbered(path):
        cells = line.split("\t")
        if len(cells) != 4 or cells[1] not in classes:
            expected = "4 cells: number, label 1 to 3, two texts"
            raise damaged(path, f"{len(cells)} cells, label {cells[1:2]}", expected, line=number)
        yield Example((cells[2], cells[3]), CLASSES.index(classes[cells[1]]))
