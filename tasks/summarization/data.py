"""Corpora for sentence summarization."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tasks.data.apt import PrivateApt
from tasks.data.errors import DataError
from tasks.data.manifests import load_manifest
from tasks.data.pairs import cached_rows
from tasks.data.progress import Progress
from tasks.data.splits import normalized, split_by_content
from tasks.seq2seq.corpus import Corpus, Pair, Request, clean, make_corpus, within_bounds

DEBIAN_BOUNDS = {"source": (10, 1000), "target": (1, 100)}
# packages whose description says nothing of their own
_EMPTY_SYNOPSIS = re.compile(r"\b(transitional|dummy) (dummy |transitional )?package\b|^dummy\b", re.I)
_EMPTY_PARAGRAPH = re.compile(r"^This package (is a transitional|contains the source for the Rust)|\bdummy package\b", re.I)


def load_debian_descriptions(request: Request, progress: Progress) -> Corpus:
    """Package descriptions: the first paragraph (10 words or more) is the source, the synopsis the target.

    Fetched by a private apt from the machine's own sources. One pair per paragraph: packages built from one source
    share theirs, and the one named like the source package speaks for all.
    """
    manifest = load_manifest("debian_descriptions")
    root = Path(request.root)

    def make() -> tuple[list[list[str]], dict]:
        apt = PrivateApt(root, progress)
        day = apt.update()
        rows = description_pairs([*apt.stanzas("Translation-en")], [*apt.stanzas("Packages")])
        if not rows:
            raise DataError(
                "the package lists hold no descriptions",
                f"{apt.folder / 'lists'}: no *_Translation-en",
                f"delete {apt.folder} and try again; if it stays so, the sources of this machine carry no translations",
            )
        return rows, {"release": apt.release(), "day": day}

    rows, about = cached_rows(root / "debian_descriptions" / "pairs-1.jsonl", make, progress)
    splits = split_descriptions(rows, request)
    provenance = f"package descriptions of {about['release']} ({about['day']}), first paragraph to synopsis"
    return make_corpus(request, splits, manifest, provenance)


def description_pairs(translations: Iterable[str], packages: Iterable[str]) -> list[list[str]]:
    """Rows [source package, package, paragraph, synopsis], one per different paragraph, sorted by package.

    Args:
        translations: stanzas of the Translation-en lists.
        packages: stanzas of the Packages lists, for the names of source packages and for descriptions that are there
            in full (sources without translation lists).
    """
    origin: dict[str, str] = {}
    described: dict[str, tuple[str, str]] = {}
    for stanza in packages:
        fields = _fields(stanza)
        name = fields.get("Package", "")
        origin[name] = (fields.get("Source") or name).split(" ")[0]
        _describe(described, name, fields.get("Description", ""))
    for stanza in translations:
        fields = _fields(stanza)
        _describe(described, fields.get("Package", ""), fields.get("Description-en", ""))
    best: dict[str, list[str]] = {}
    for name, (paragraph, synopsis) in sorted(described.items()):
        source = origin.get(name, name)
        if _EMPTY_SYNOPSIS.search(synopsis) or _EMPTY_PARAGRAPH.search(paragraph):
            continue
        if paragraph not in best or (name == source and best[paragraph][1] != best[paragraph][0]):
            best[paragraph] = [source, name, paragraph, synopsis]
    return sorted(best.values(), key=lambda row: row[1])


def _fields(stanza: str) -> dict[str, str]:
    """Field -> value of a stanza; continuation lines keep their line ends."""
    fields: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", stanza.strip("\n")):
        key, colon, value = block.partition(":")
        if colon:
            fields[key] = value.strip()
    return fields


def _describe(described: dict[str, tuple[str, str]], name: str, description: str) -> None:
    """Note a package's (first paragraph, synopsis) when its description has both and the paragraph is long enough."""
    synopsis, _, body = description.partition("\n")
    paragraph = clean(re.split(r"\n\s*\.\s*(?:\n|$)", "\n" + body + "\n")[0])
    if name and synopsis.strip() and len(paragraph.split()) >= DEBIAN_BOUNDS["source"][0]:
        described[name] = (paragraph, clean(synopsis))


def split_descriptions(rows: list[list[str]], request: Request) -> dict[str, list[Pair]]:
    """Splits in which no source package, no paragraph and no synopsis (up to case, digits, punctuation) is shared."""
    keys = [
        [("package", source), ("paragraph", normalized(paragraph)), ("synopsis", normalized(synopsis))]
        for source, _, paragraph, synopsis in rows
    ]
    parts = split_by_content(keys, [f"{source} {paragraph}" for source, _, paragraph, _ in rows])
    splits = {}
    for split, numbers in parts.items():
        pairs = (Pair(rows[i][2], (rows[i][3],)) for i in numbers)
        splits[split] = [pair for pair in pairs if within_bounds(pair, request, DEBIAN_BOUNDS)]
    return splits
