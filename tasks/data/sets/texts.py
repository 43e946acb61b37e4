"""Texts with a class: IMDB's film reviews, and SNLI.

imdb       negative or positive reviews (Maas et al. 2011), used in Table 1 of Martins et al. 2020
snli       SNLI 1.0 (Bowman et al. 2015), used in Table 1 of Niculae & Blondel 2017: the published files
snli_20k   20,000 training pairs with SNLI's own dev and test sets, from a mirror
"""

import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from repro.options import integer
from tasks.data.acquire import sources
from tasks.data.acquire.sources import tar_files
from tasks.data.dataset import SPLITS, DataSet, Loader, Manifest, Splits, make
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.manifests import mirror_files
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, decode, json_lines, numbered, read_lines, table
from tasks.data.read.lines import find_file
from tasks.data.records import Example

KIND = "texts"
CLASSES = ("entailment", "neutral", "contradiction")
FIELDS = ("premise", "hypothesis")
ABOUT = {"classes": list(CLASSES), "fields": list(FIELDS)}
_LEAF = re.compile(r"\([^()\s]+ ([^()\s]+)\)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_STARRED = re.compile(r"\*([^*]+)\*")


def load_snli(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load pairs whose tokens are the leaves of sentence1_parse and sentence2_parse, as in the paper.

    If e-SNLI's csv files are in the same folder, the premise words that its annotators highlighted are marked.
    """
    places = sources.folders_in(sources.located(manifest, options.path, root))
    files = {s: find_file(places, [f"snli_1.0_{s}.jsonl"], manifest["get"]) for s in SPLITS}
    there = ((split, place / f"esnli_{split}.csv") for split in SPLITS for place in places)
    highlights = {split: path for split, path in there if os.path.lexists(path)}

    def read(progress: Progress) -> Splits:
        splits = {}
        for split, path in files.items():
            progress.step(f"reading {path.name}")
            marked = read_highlights(highlights[split]) if split in highlights else {}
            splits[split] = list(read_published(path, marked))
        return splits

    lines = {s: sum(1 for _ in numbered(path)) for s, path in files.items()}
    hashes = {s: [sha256_of(found[s]) for found in (files, highlights) if s in found] for s in SPLITS}
    title, whole = f"SNLI 1.0, {', '.join(p.name for p in files.values())}", manifest["lines"].items()
    notes = ["marked words: premise words that e-SNLI's annotators highlighted"] if highlights else []
    short = [f"{lines[s]:,} of {n:,} lines of {files[s].name}" for s, n in whole if lines[s] < n]
    more = {"limits": options.limits, "notes": notes, "shortfalls": short, "about": ABOUT}
    return make(manifest, KIND, read, title, sources=hashes, **more)


def leaves(parse: str) -> str:
    """Tokens of a bracketed parse `(ROOT (S (NP (DT A) ...`, joined by spaces; case is kept, brackets are unescaped."""
    return " ".join(_BRACKETS.get(word, word) for word in _LEAF.findall(parse))


def read_published(path: Path, marked: Mapping[str, frozenset[str]] | None = None) -> Iterator[Example]:
    """Pairs from a file in SNLI's jsonl format; pairs without a gold label ("-") are left out.

    Args:
        marked: pairID -> highlighted words of the premise.
    Raises:
        DataError: a line does not have this format; the message names the file and the line.
    """
    fields = ("gold_label", "sentence1_parse", "sentence2_parse", "pairID")
    for number, row in json_lines(path, dict.fromkeys(fields, str)):
        label, parses = row["gold_label"], (row["sentence1_parse"], row["sentence2_parse"])
        if label == "-":
            continue
        if label not in CLASSES:
            raise damaged(path, f"gold_label is {label[:40]!r}", f"{', '.join(CLASSES)} or -", line=number)
        texts = (leaves(parses[0]), leaves(parses[1]))
        yield Example(texts, CLASSES.index(label), (marked or {}).get(row["pairID"], frozenset()))


def read_highlights(path: Path) -> dict[str, frozenset[str]]:
    """Map each pairID of an e-SNLI csv file to the highlighted premise words, in lower case.

    Highlighted words are between stars in any annotator's `Sentence1_marked_*` column. Raises DataError if the file
    does not have those columns.
    """
    highlights = {}
    for _, row in table(path, ("pairID", "Sentence1_marked_1")):
        texts = [text for name, text in row.items() if name.startswith("Sentence1_marked") and text]
        words = (word for text in texts for run in _STARRED.findall(text) for word in re.findall(r"\w+", run.lower()))
        highlights[row["pairID"]] = frozenset(words)
    if not any(highlights.values()):
        expected = "columns pairID and Sentence1_marked_1 with words in stars"
        raise damaged(path, "no word of a premise is in stars", expected)
    return highlights


TRAIN = ("train.csv", "test.csv")
COLUMNS = ("s1", "s2", "labels", "preproc1_expl_1", "preproc1_expl_2", "preproc1_expl_3")


def load_subset(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load pairs; the marked words are premise words mentioned in the e-SNLI explanations of dev and test pairs.

    They replace the highlights, which the mirror does not have.
    """
    files, hashes = mirror_files(manifest, options.mirror)
    function = manifest["function_words"].split()
    names = {"train": TRAIN} | {split: tuple(f"{column}.{split}" for column in COLUMNS) for split in ("dev", "test")}

    def read(progress: Progress) -> Splits:
        train = dict.fromkeys(row for name in TRAIN for row in _subset_rows(files[name]))
        splits = {"train": list(train), "dev": [], "test": []}
        for split in ("dev", "test"):
            for s1, s2, label, *why in zip(*(read_lines(files[name]) for name in names[split]), strict=True):
                splits[split].append(Example((s1, s2), CLASSES.index(label), explained_words(why, function)))
        return splits

    title = "20,000 SNLI training pairs; SNLI dev and test"
    origin = {s: [hashes[n] for n in ns] for s, ns in names.items()}
    notes = ["marked words: premise words that an e-SNLI explanation mentions (no highlights in this copy)"]
    return make(manifest, KIND, read, title, sources=origin, limits=options.limits, notes=notes, about=ABOUT)


def explained_words(explanations: Iterable[str], function: Iterable[str]) -> frozenset[str]:
    """Words of the explanations, in lower case, without `function` words: those that a person's reason mentions."""
    words = {word for text in explanations for word in re.findall(r"\w+", text.lower())}
    return frozenset(words.difference(function))


def _subset_rows(path: Path) -> Iterator[Example]:
    classes = {"1": "neutral", "2": "contradiction", "3": "entailment"}
    for _, label, *texts in (line.split("\t") for line in read_lines(path)):
        yield Example((*texts,), CLASSES.index(classes[label]))


_MEMBER = re.compile(r"(?:^|/)(train|test)/(neg|pos)/([^/]+)\.txt$")
_LABELS = {"neg": 0, "pos": 1}
REVIEWS = {"classes": ["negative", "positive"], "fields": ["text"]}


def load_imdb(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Read the archive from `path`, else from `mirror`, else from the fetched copy."""
    counts: dict[str, int] = {}  # empty for a mirror or download: the manifest's hash shows that it is complete
    if options.path is not None:
        archive = Path(options.path)
        counts = Counter(found[1] for found, _ in tar_files(archive, _MEMBER))
    elif options.mirror is not None:
        (archive,) = mirror_files(manifest, options.mirror)[0].values()
    elif sources.found(manifest, root) is not None:
        archive = sources.fetched(manifest, root, progress) / "aclImdb_v1.tar.gz"
    else:
        raise DataUnavailable("imdb was not fetched", str(root / "imdb"), manifest["get"])

    def read(progress: Progress) -> Splits:
        reviews: dict[str, list[tuple[str, Example]]] = {"train": [], "test": []}
        with progress.bar(50_000, f"reading {archive.name}") as bar:
            for found, raw in tar_files(archive, _MEMBER):
                text = decode(raw, archive / found.string)
                if not text.strip():
                    raise DataError(f"imdb: the review {found.string} is blank", str(archive), manifest["get"])
                split, label, name = found.groups()
                reviews[split].append((f"{label}/{name}", Example((text,), _LABELS[label])))
                bar.advance()
        if not reviews["train"] or not reviews["test"]:
            raise DataError("imdb has no reviews in train or test", str(archive), manifest["get"])
        ordered = (sorted(found, key=lambda item: item[0]) for found in reviews.values())
        train, test = ([example for _, example in found] for found in ordered)
        random.Random(options.split_seed).shuffle(train)
        random.Random(options.split_seed).shuffle(test)  # so that a limit keeps reviews of both classes
        cut = round(len(train) * options.dev_share)
        return {"train": train[cut:], "dev": train[:cut], "test": test}

    stamp, seed = sha256_of(archive), options.split_seed
    held_out = [stamp, options.dev_share, seed]
    origin = {"train": held_out, "dev": held_out, "test": [stamp, seed]}
    notes = [f"dev: {options.dev_share:.0%} of the training reviews, seed {seed}"]
    more = {"limits": options.limits, "counts": counts, "notes": notes, "about": REVIEWS}
    return make(manifest, KIND, read, f"IMDB, archive {archive.name}", sources=origin, **more)


SPLIT_SEED = integer(low=0, help="seed of the choice of dev, among the reviews ordered by name")
SETS = {
    "imdb": Loader(KIND, load_imdb, {"split_seed": SPLIT_SEED}),
    "snli": Loader(KIND, load_snli),
    "snli_20k": Loader(KIND, load_subset),
}
