"""SNLI 1.0 (Bowman et al. 2015), used in Table 1 of Niculae & Blondel 2017."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.acquire import hub, sources
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, limits, make
from tasks.data.files import sha256_of
from tasks.data.manifests import local
from tasks.data.progress import Progress
from tasks.data.read.formats import TOO_LONG, count, damaged, json_lines, numbered, table, too_long
from tasks.data.read.lines import find_file
from tasks.data.read.own import ending
from tasks.data.records import Example, Mapped, subset

KIND = "texts"
CLASSES = ("entailment", "neutral", "contradiction")
FIELDS = ("premise", "hypothesis")
ABOUT = {"classes": list(CLASSES), "fields": list(FIELDS)}
_LEAF = re.compile(r"\(\S+ ([^()\s]+)\)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_STARRED = re.compile(r"\*([^*]+)\*")


@dataclass
@stated("data/snli")
class Options:
    """549,367 train, 9,842 dev and 9,824 test pairs with a gold label."""

    path: str | None = local("folder of snli_1.0_*.jsonl or .txt; null: what was fetched, or the hub (without parses)")
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load pairs whose tokens are the leaves of sentence1_parse and sentence2_parse, as in the paper.

    If e-SNLI's csv files are in the same folder, the premise words that its annotators highlighted are marked.
    """
    if options.path is None and sources.found(manifest, root) is None:
        return _from_hub(manifest, options, root, progress)
    folder = root / manifest["name"] / "snli_1.0" if options.path is None else Path(options.path)
    names = {split: [f"snli_1.0_{split}.jsonl", f"snli_1.0_{split}.txt"] for split in SPLITS}
    files = {s: find_file((folder, folder / "snli_1.0"), names[s], manifest["get"]) for s in SPLITS}
    highlights = {split: path for split in SPLITS if os.path.lexists(path := folder / f"esnli_{split}.csv")}

    def read(progress: Progress) -> Splits:
        splits = {}
        for split, path in files.items():
            progress.say(f"reading {path.name}")
            marked = read_highlights(highlights[split]) if split in highlights else {}
            splits[split] = list(read_published(path, marked))
        return splits

    lines = {split: _pairs_in(path) for split, path in files.items()}
    hashes = {s: [sha256_of(found[s]) for found in (files, highlights) if s in found] for s in SPLITS}
    return make(
        manifest, KIND, read, f"SNLI 1.0, {', '.join(p.name for p in files.values())}", sources=hashes, limits=options.limits,
        notes=["marked words: premise words that e-SNLI's annotators highlighted"] if highlights else [],
        shortfalls=[f"{lines[s]:,} of {n:,} lines of {files[s].name}" for s, n in manifest["lines"].items() if lines[s] < n], about=ABOUT,
    )  # fmt: skip


def _from_hub(manifest: Mapping, options: Options, root: Path, progress: Progress) -> DataSet:
    rows, stamps = hub.load(manifest, root, progress, check=_wrong_label)

    def read(progress: Progress) -> Splits:
        labelled = {s: subset(r, [i for i, row in enumerate(r) if row["label"] >= 0]) for s, r in rows.items()}
        return {s: Mapped(r, _example) for s, r in labelled.items()}

    return make(
        manifest, KIND, read, "SNLI 1.0, the hub", sources=stamps,
        limits=options.limits, shortfalls=["sentences as typed instead of the leaves of their parses (the hub has none)"],
        about=ABOUT,
    )  # fmt: skip


def _example(row: Mapping) -> Example:
    return Example((row["premise"], row["hypothesis"]), row["label"])


def _wrong_label(row: Mapping) -> str | None:
    return None if -1 <= row["label"] < len(CLASSES) else f"the label {row['label']}, expected 0, 1, 2 or -1"


def _pairs_in(path: Path) -> int:
    return sum(1 for _ in numbered(path)) - (ending(path) == ".txt")  # a .txt file has a header line


def leaves(parse: str) -> str:
    """Tokens of a bracketed parse `(ROOT (S (NP (DT A) ...`, joined by spaces; case is kept, brackets are unescaped."""
    return " ".join(_BRACKETS.get(word, word) for word in _LEAF.findall(parse))


def read_published(path: Path, marked: Mapping[str, frozenset[str]] | None = None) -> Iterator[Example]:
    """Pairs from a file in SNLI's jsonl or tab-separated format; pairs without a gold label ("-") are left out.

    Args:
        marked: pairID -> highlighted words of the premise.
    Raises:
        DataError: a line does not have this format; the message names the file and the line.
    """
    fields = ("gold_label", "sentence1_parse", "sentence2_parse", "pairID")
    if ending(path) == ".jsonl":
        rows: Iterator[tuple[int, dict]] = json_lines(path, dict.fromkeys(fields, str))
    else:
        rows = table(path, fields, delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in rows:
        label, parses = row["gold_label"], (row["sentence1_parse"], row["sentence2_parse"])
        if label == "-":
            continue
        if label not in CLASSES:
            raise damaged(path, f"gold_label is {label[:40]!r}", f"{', '.join(CLASSES)} or -", line=number)
        if any(map(too_long, parses)):
            count(f"lines of {path.name} left out: {TOO_LONG}")
            continue
        texts = (leaves(parses[0]), leaves(parses[1]))
        yield Example(texts, CLASSES.index(label), (marked or {}).get(row["pairID"], frozenset()))


def read_highlights(path: Path) -> dict[str, frozenset[str]]:
    """Map each pairID of an e-SNLI csv file to the highlighted premise words, in lower case.

    Highlighted words stand between stars in any annotator's `Sentence1_marked_*` column. Raises DataError if the file
    does not have those columns.
    """
    found = {}
    for _, row in table(path, ("pairID", "Sentence1_marked_1")):
        texts = [text for name, text in row.items() if name.startswith("Sentence1_marked") and text]
        words = (word for text in texts for run in _STARRED.findall(text) for word in re.findall(r"\w+", run.lower()))
        found[row["pairID"]] = frozenset(words)
    if not any(found.values()):
        expected = "columns pairID and Sentence1_marked_1 with words in stars"
        raise damaged(path, "no word of a premise is in stars", expected)
    return found
