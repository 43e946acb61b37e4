"""Descriptions of Debian packages, fetched with a private apt from one release; two sets of the demo.

debian_descriptions   Summarize the first paragraph into the synopsis, one row per paragraph; replaces Gigaword and DUC.
                      Packages built from the same source share a paragraph; the row is taken from the package that is
                      named like the source package, if there is one.
debian_pairs          Look-up: given the synopses of four packages, and which of them is meant, classify that one.

    synopses   "first : module to read ID3 tags second : penguin-themed solitaire games third : .. fourth : .."
    which      "third"
    classes    perl, python, program: a Perl module, a Python module, a program (by the sections of Debian's archive)

This is not entailment, but like entailment it has two texts, neither of which is sufficient on its own: the second text
says where to look in the first. After five epochs the demo's model classifies 84 % of the test examples correctly with
softmax, 85 % with sparsemax, and 61 % with uniform attention (measured, one seed each; without the l2 term, which under
Adam prevents the attention from starting to learn).
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.options import defaults, integer
from tasks.data.acquire.apt import RELEASE, PrivateApt
from tasks.data.dataset import SPLITS, DataSet, Limited, Loader, Manifest, Splits, fingerprint, make
from tasks.data.errors import DataUnavailable
from tasks.data.progress import Progress
from tasks.data.read.pairs import ENGLISH, Bounded, cached_parts, cached_rows, fallback
from tasks.data.read.splits import Parts, normalized
from tasks.data.records import Example, Pair, clean

RECIPE = 2  # increased when the same lists would give other rows or splits
LEAST_WORDS = 10  # fewest words of a paragraph
# packages whose description has no content of its own
_EMPTY_SYNOPSIS = re.compile(r"\b(transitional|dummy) (dummy |transitional )?package\b|^dummy\b", re.I)
_EMPTY_PARAGRAPH = re.compile(
    r"^This package (is a transitional|contains the source for the Rust)|\bdummy package\b", re.I
)


@defaults("data/debian_descriptions")
class Summaries(Bounded):
    """About 36,000 pairs; paragraphs have at least ten words."""

    fallback: str | None = fallback()


def load_summaries(manifest: Manifest, options: Summaries, root: Path, progress: Progress) -> DataSet:
    """Fetch the descriptions with a private apt."""
    found = load_descriptions(root, progress)

    def read(progress: Progress) -> Splits:
        every = found.parts.of([Pair(row.paragraph, (row.synopsis,)) for row in found.rows])
        return {split: options.within(pairs) for split, pairs in every.items()}

    title, notes = f"{found.provenance}, first paragraph to synopsis", [found.parts.note("paragraphs")]
    sources = dict.fromkeys(SPLITS, fingerprint(found.sha256, options.bounds()))
    return make(manifest, "pairs", read, title, sources=sources, limits=options.limits, notes=notes, about=ENGLISH)


@dataclass(frozen=True)
class Description:
    """Package metadata from the package lists: source package, section, first paragraph and synopsis."""

    source: str
    package: str
    section: str
    paragraph: str
    synopsis: str


@dataclass(frozen=True)
class Descriptions:
    """All descriptions, their split, and the hash of the data they are made from (`sha256`)."""

    rows: list[Description]
    parts: Parts
    sha256: str
    provenance: str


def load_descriptions(root: Path, progress: Progress) -> Descriptions:
    """All descriptions with their split: no source package, synopsis or near-duplicate paragraph occurs in two splits.

    Raises DataUnavailable if apt is not installed, or it cannot reach its sources.
    """

    def make() -> tuple[list[list[str]], dict[str, Any]]:
        apt = PrivateApt(root, progress)
        day = apt.update()
        rows = description_rows([*apt.stanzas("Translation-en")], [*apt.stanzas("Packages")])
        if not rows:
            where = f"{apt.folder / 'lists'}: no *_Translation-en"
            step = f"delete {apt.folder} and try again; if it fails again, this machine's sources carry no translations"
            raise DataUnavailable("the package lists hold no descriptions", where, step)
        return rows, {"release": f"Debian {RELEASE}", "day": day}

    path = root / "debian_descriptions" / f"rows-{RECIPE}.jsonl"
    cached, about = cached_rows(path, make, progress)
    rows = [Description(*row) for row in cached]
    keys = (
        [("package", r.source), ("paragraph", normalized(r.paragraph)), ("synopsis", normalized(r.synopsis))]
        for r in rows
    )
    texts = [row.paragraph for row in rows]
    names, kept = [f"{row.source} {row.paragraph}" for row in rows], path.with_suffix(".split.json")
    parts = cached_parts(kept, f"{RECIPE} {about['sha256']}", progress, keys, names, [texts])
    return Descriptions(rows, parts, about["sha256"], f"package descriptions of {about['release']} ({about['day']})")


def description_rows(translations: Iterable[str], packages: Iterable[str]) -> list[list[str]]:
    """Rows with the fields of `Description`, one per different paragraph, sorted by package.

    Args:
        translations: stanzas of the Translation-en lists.
        packages: stanzas of the Packages lists, for the names of source packages, and for full descriptions (from
            sources without translation lists).
    """
    origin: dict[str, tuple[str, str]] = {}  # package -> source package, section
    described: dict[str, tuple[str, str]] = {}
    for stanza in packages:
        fields = _fields(stanza)
        name = fields.get("Package", "")
        section = fields.get("Section", "").rpartition("/")[2]  # "contrib/net" -> "net"
        origin[name] = ((fields.get("Source") or name).split(" ")[0], section)
        _describe(described, name, fields.get("Description", ""))
    for stanza in translations:
        fields = _fields(stanza)
        _describe(described, fields.get("Package", ""), fields.get("Description-en", ""))
    best: dict[str, list[str]] = {}
    for name, (paragraph, synopsis) in sorted(described.items()):
        source, section = origin.get(name, (name, ""))
        if _EMPTY_SYNOPSIS.search(synopsis) or _EMPTY_PARAGRAPH.search(paragraph):
            continue
        if paragraph not in best or (name == source and best[paragraph][1] != best[paragraph][0]):
            best[paragraph] = [source, name, section, paragraph, synopsis]
    return sorted(best.values(), key=lambda row: row[1])


def _fields(stanza: str) -> dict[str, str]:
    """Field -> value of a stanza. Continuation lines keep their line ends."""
    fields: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", stanza.strip("\n")):
        key, colon, value = block.partition(":")
        if colon:
            fields[key] = value.strip()
    return fields


def _describe(described: dict[str, tuple[str, str]], name: str, description: str) -> None:
    """Store a package's (first paragraph, synopsis) if the description has both and the paragraph is long enough."""
    synopsis, _, body = description.partition("\n")
    paragraph = clean(re.split(r"\n\s*\.\s*(?:\n|$)", "\n" + body + "\n")[0])
    if name and synopsis.strip() and len(paragraph.split()) >= LEAST_WORDS:
        described[name] = (paragraph, clean(synopsis))


CLASSES = ("perl", "python", "program")
FIELDS = ("synopses", "which")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
SIZES = {"train": 12_000, "dev": 1_000, "test": 1_000}
WORDS = 8  # words of a synopsis that are kept
PROGRAMS = "admin comm database editors electronics games gnome graphics hamradio kde mail math net".split()
PROGRAMS += "otherosfs science sound tex text utils video web x11".split()


@defaults("data/debian_pairs")
class LookUp(Limited):
    """12,000 train, 1,000 dev and 1,000 test examples, or as many as `limits` allows; classes are equally frequent."""

    packages: int = integer(low=2, high=len(ORDINALS), help="synopses in the first text")


def load_look_up(manifest: Manifest, options: LookUp, root: Path, progress: Progress) -> DataSet:
    """All packages of an example are in the same split of `debian_descriptions`, so no synopsis is in two splits."""
    found = load_descriptions(root, progress)
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}

    def read(progress: Progress) -> Splits:
        every = found.parts.of(found.rows)
        return {s: list(examples(every[s], n, options.packages, s)) for s, n in sizes.items()}

    title, notes = f"{found.provenance}, {options.packages} synopses at a time", [found.parts.note("paragraphs")]
    sources = {s: [found.sha256, options.packages, n] for s, n in sizes.items()}
    about = {"classes": list(CLASSES), "fields": list(FIELDS)}
    return make(manifest, "texts", read, title, sources=sources, notes=notes, about=about)


def examples(rows: Sequence[Description], count: int, packages: int, seed: str) -> Iterator[Example]:
    """Yield `count` examples. Position and class are assigned in rotation; packages of a class are drawn at random."""
    texts: dict[str, list[str]] = {name: [] for name in CLASSES}
    for row in rows:
        if (name := "program" if row.section in PROGRAMS else row.section) in CLASSES:
            texts[name].append(" ".join(row.synopsis.split()[:WORDS]))
    for i in range(count):
        rng = random.Random(f"{seed}/{i}")
        asked, label = i % packages, i // packages % len(CLASSES)
        classes = [label if place == asked else rng.randrange(len(CLASSES)) for place in range(packages)]
        said = [f"{ordinal} : {rng.choice(texts[CLASSES[c]])}" for ordinal, c in zip(ORDINALS, classes)]
        yield Example((" ".join(said), ORDINALS[asked]), label)


SETS = {
    "debian_descriptions": Loader("pairs", Summaries, load_summaries),
    "debian_pairs": Loader("texts", LookUp, load_look_up),
}
