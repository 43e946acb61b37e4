"""Corpora for sentence summarization."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from pathlib import Path

from tasks.data.apt import PrivateApt
from tasks.data.errors import DataUnavailable
from tasks.data.manifests import load_manifest, mirror_files
from tasks.data.pairs import cached_parts, cached_rows
from tasks.data.progress import Progress
from tasks.data.splits import normalized, split_by_content
from tasks.seq2seq import hub
from tasks.seq2seq.corpus import Corpus, Pair, Request, clean, make_corpus, within_bounds
from tasks.seq2seq.lines import LinePairs, find_file, hash_files

DEBIAN_BOUNDS = {"source": (10, 1000), "target": (1, 100)}
# packages whose description says nothing of their own
_EMPTY_SYNOPSIS = re.compile(r"\b(transitional|dummy) (dummy |transitional )?package\b|^dummy\b", re.I)
_EMPTY_PARAGRAPH = re.compile(
    r"^This package (is a transitional|contains the source for the Rust)|\bdummy package\b", re.I
)


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
            raise DataUnavailable(
                "the package lists hold no descriptions",
                f"{apt.folder / 'lists'}: no *_Translation-en",
                f"delete {apt.folder} and try again; if it stays so, the sources of this machine carry no translations",
            )
        return rows, {"release": apt.release(), "day": day}

    path = root / "debian_descriptions" / "pairs-1.jsonl"
    rows, about = cached_rows(path, make, progress)
    parts = cached_parts(path.with_suffix(".split.json"), about["sha256"], lambda: split_descriptions(rows))
    splits = {}
    for split, numbers in parts.items():
        pairs = (Pair(rows[i][2], (rows[i][3],)) for i in numbers)
        splits[split] = [pair for pair in pairs if within_bounds(pair, request, DEBIAN_BOUNDS)]
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


def split_descriptions(rows: list[list[str]]) -> dict[str, list[int]]:
    """Splits in which no source package, no paragraph and no synopsis (up to case, digits, punctuation) is shared."""
    keys = [
        [("package", source), ("paragraph", normalized(paragraph)), ("synopsis", normalized(synopsis))]
        for source, _, paragraph, synopsis in rows
    ]
    return split_by_content(keys, [f"{source} {paragraph}" for source, _, paragraph, _ in rows])


REUTERS_BOUNDS = {"source": (10, 100), "target": (2, 30)}


def load_reuters(request: Request, progress: Progress) -> Corpus:
    """Reuters-21578, read from a mirror: the first paragraph of the body is the source, the title the target.

    Split by content (recurring reports share titles), not by the categories' LEWISSPLIT.
    """
    manifest = load_manifest("reuters21578")
    files = mirror_files(manifest, _mirror(request))
    rows: dict[tuple[str, str], None] = {}
    for name in sorted(files):
        for row in reuters_pairs(files[name].read_text(encoding="latin-1")):
            rows[row] = None
    pairs = [Pair(body, (title,)) for body, title in rows]
    keys = [[("body", normalized(pair.source)), ("title", normalized(pair.references[0]))] for pair in pairs]
    parts = split_by_content(keys, [f"{pair.source}\t{pair.references[0]}" for pair in pairs])
    splits = {
        split: [pairs[i] for i in numbers if within_bounds(pairs[i], request, REUTERS_BOUNDS)]
        for split, numbers in parts.items()
    }
    return make_corpus(request, splits, manifest, "Reuters-21578, first paragraph to title")


def reuters_pairs(sgml: str) -> list[tuple[str, str]]:
    """(first paragraph of the body, title) of every article of an SGML file that has both."""
    pairs = []
    for article in re.findall(r"<REUTERS\b.*?</REUTERS>", sgml, re.S):
        title = re.search(r"<TITLE>(.*?)</TITLE>", article, re.S)
        body = re.search(r"<BODY>(.*?)</BODY>", article, re.S)
        if title and body:
            # a new paragraph is indented by four spaces; the last line holds the sign-off
            paragraph = re.split(r"\n {4,}", re.sub(r"\s*&#3;\s*$", "", body[1]).strip())[0]
            texts = (_plain(re.sub(r"(?i)\breuter\s*$", "", paragraph)), _plain(title[1]))
            if all(texts):
                pairs.append(texts)
    return pairs


def _plain(text: str) -> str:
    return clean(re.sub(r"[\x00-\x1f]", " ", html.unescape(text)))


def load_scitldr(request: Request, progress: Progress) -> Corpus:
    """SciTLDR-A, read from a mirror: abstract to one sentence; several references per paper in dev and test."""
    manifest = load_manifest("scitldr")
    files = mirror_files(manifest, _mirror(request))
    splits = {}
    for split in ("train", "dev", "test"):
        pairs = []
        for line in files[f"{split}.jsonl"].read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            references = tuple(text for text in map(clean, record["target"]) if text)
            pair = Pair(clean(" ".join(record["source"])), references)
            if references and within_bounds(pair, request, {"source": (1, 1000), "target": (1, 1000)}):
                pairs.append(pair)
        splits[split] = pairs
    return make_corpus(request, splits, manifest, "SciTLDR-A, abstract to one sentence")


def _mirror(request: Request) -> Path | None:
    return None if request.mirror is None else Path(request.mirror)


# published layouts: the archive with folders train/ and Giga/, or all files in one folder
GIGAWORD_NAMES = {
    "train": (("train.article.filter.txt", "train.article.txt"), (("train.title.filter.txt", "train.title.txt"),)),
    "dev": (("valid.article.filter.txt", "valid.article.txt"), (("valid.title.filter.txt", "valid.title.txt"),)),
    "test": (("input.txt",), (("task1_ref0.txt",),)),
}


def load_gigaword(request: Request, progress: Progress) -> Corpus:
    """The released Gigaword pairs of Rush et al. 2015 (3,803,957 / 189,651 / 1,951), tokenised as published.

    Read from `path` in the layout of the authors' archive; without `path`, from the Hugging Face `datasets` package
    when it is installed. Lines are read on demand; word bounds do not apply (limit tokens in the encoding instead).
    """
    manifest = load_manifest("gigaword")
    if request.path is None and hub.available():
        splits = hub.load("Harvard/gigaword", None, hub.text_pair("document", "summary"), request, progress)
        return make_corpus(request, splits, manifest, "Gigaword (Rush et al. 2015), Hugging Face release")
    folder = request.folder(manifest["get"])
    splits, used = {}, []
    for split, (source_names, reference_names) in GIGAWORD_NAMES.items():
        places = (folder, folder / "train", folder / "Giga")
        source = find_file(places, source_names, manifest["get"])
        references = [find_file(places, names, manifest["get"]) for names in reference_names]
        splits[split] = LinePairs(source, references)
        used += [source, *references]
    provenance = "Gigaword (Rush et al. 2015), released pairs"
    return make_corpus(request, splits, manifest, provenance, sha256=hash_files(used, progress))


def load_duc(request: Request, progress: Progress) -> Corpus:
    """DUC 2003 or 2004 task 1 (about 624 and 500 documents, four references each): a test set, nothing to train on.

    `path` is a folder with input.txt and task1_ref0.txt to task1_ref3.txt, or one that has them under DUC2003 or
    DUC2004, the layout of the authors' archive.
    """
    manifest = load_manifest(request.name)
    folder = request.folder(manifest["get"])
    places = (folder / request.name.upper(), folder)
    source = find_file(places, ("input.txt",), manifest["get"])
    references = [find_file((source.parent,), (f"task1_ref{k}.txt",), manifest["get"]) for k in range(4)]
    pairs = list(LinePairs(source, references))
    title = f"DUC {request.name[-4:]} task 1, four references"
    return make_corpus(request, {"train": (), "dev": (), "test": pairs}, manifest, title)
