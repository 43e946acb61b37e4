"""Debian package descriptions: summarize the first paragraph into the synopsis; replaces Gigaword and DUC in the demo.

The descriptions are fetched with a private apt from one release of Debian, with one row per paragraph. Packages built
from the same source share a paragraph; the row is taken from the package that is named like the source package, if
there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.options import stated
from tasks.data.acquire.apt import PrivateApt
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, fingerprint, limits, make
from tasks.data.errors import DataUnavailable
from tasks.data.progress import Progress
from tasks.data.read.pairs import ENGLISH, Bounded, cached_parts, cached_rows, fallback, word_bounds
from tasks.data.read.splits import Parts, normalized, split_by_content
from tasks.data.records import Pair, clean

KIND = "pairs"
RECIPE = 2  # increased when the same lists would give other rows or splits
LEAST_WORDS = 10  # fewest words of a paragraph
# packages whose description has no content of its own
_EMPTY_SYNOPSIS = re.compile(r"\b(transitional|dummy) (dummy |transitional )?package\b|^dummy\b", re.I)
_EMPTY_PARAGRAPH = re.compile(
    r"^This package (is a transitional|contains the source for the Rust)|\bdummy package\b", re.I
)


@dataclass
@stated("data/debian_descriptions")
class Options(Bounded):
    """About 36,000 pairs; paragraphs have at least ten words."""

    min_words: dict = word_bounds("fewest")
    max_words: dict = word_bounds("most")
    fallback: str | None = fallback()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Fetch the descriptions with a private apt."""
    found = load_descriptions(root, progress)

    def read(progress: Progress) -> Splits:
        return {s: options.within(Pair(row.paragraph, (row.synopsis,)) for row in found.of(s)) for s in SPLITS}

    return make(
        manifest, KIND, read, f"{found.provenance}, first paragraph to synopsis",
        sources=dict.fromkeys(SPLITS, fingerprint(found.sha256, options.bounds())), limits=options.limits, notes=[found.parts.note("paragraphs")],
        about=ENGLISH,
    )  # fmt: skip


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

    def of(self, split: str) -> list[Description]:
        return [self.rows[i] for i in getattr(self.parts, split)]


def load_descriptions(root: Path, progress: Progress) -> Descriptions:
    """All descriptions with their split: no source package, synopsis or near-duplicate paragraph occurs in two splits.

    Raises:
        DataUnavailable: apt is not installed, or it cannot reach its sources.
    """

    def make() -> tuple[list[list[str]], dict[str, Any]]:
        apt = PrivateApt(root, progress)
        day = apt.update()
        rows = description_rows([*apt.stanzas("Translation-en")], [*apt.stanzas("Packages")])
        if not rows:
            where = f"{apt.folder / 'lists'}: no *_Translation-en"
            step = f"delete {apt.folder} and try again; if it fails again, this machine's sources carry no translations"
            raise DataUnavailable("the package lists hold no descriptions", where, step)
        return rows, {"release": apt.release(), "day": day}

    path = root / "debian_descriptions" / f"rows-{RECIPE}.jsonl"
    cached, about = cached_rows(path, make, progress)
    rows = [Description(*row) for row in cached]

    def split() -> Parts:
        keys = [
            [("package", row.source), ("paragraph", normalized(row.paragraph)), ("synopsis", normalized(row.synopsis))]
            for row in rows
        ]
        return split_by_content(
            keys, [f"{row.source} {row.paragraph}" for row in rows], [[row.paragraph for row in rows]]
        )

    parts = cached_parts(path.with_suffix(".split.json"), f"{RECIPE} {about['sha256']}", split, progress)
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
