"""Texts of Debian packages, fetched with a private apt from one release; three sets of the demo.

libreoffice_help      LibreOffice help (MPL-2.0): paragraphs in two of 11 languages, aligned by id; replaces baseline-1M.
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

import html
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from repro.options import integer
from tasks.data.acquire.apt import RELEASE, PrivateApt
from tasks.data.cache import cached_rows
from tasks.data.dataset import ENGLISH, SPLITS, DataSet, Loader, Manifest, Splits, cached_parts, make, split_pairs
from tasks.data.options import languages
from tasks.data.progress import Progress
from tasks.data.read.formats import read_text
from tasks.data.read.splits import Parts, normalized
from tasks.data.records import Example, Pair, clean

RECIPE = 2  # increased when the same lists would give other rows or splits
LEAST_WORDS = 10  # fewest words of a paragraph
# packages whose description has no content of its own
_EMPTY_SYNOPSIS = re.compile(r"\b(transitional|dummy) (dummy |transitional )?package\b|^dummy\b", re.I)
_EMPTY = r"^This package (is a transitional|contains the source for the Rust)|\bdummy package\b"
_EMPTY_PARAGRAPH = re.compile(_EMPTY, re.I)


def load_summaries(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Fetch the descriptions with a private apt."""
    rows, parts, sha256, title = load_descriptions(root, progress)
    pairs = [Pair(row.paragraph, (row.synopsis,)) for row in rows]
    title = f"{title}, first paragraph to synopsis"
    return split_pairs(manifest, options, title, pairs, parts, "paragraphs", ENGLISH, sha256)


@dataclass(frozen=True)
class Description:
    """Package metadata from the package lists: source package, section, first paragraph and synopsis."""

    source: str
    package: str
    section: str
    paragraph: str
    synopsis: str


def load_descriptions(root: Path, progress: Progress) -> tuple[list[Description], Parts, str, str]:
    """All descriptions, their split, the hash of the data they are made from, and where they are from.

    No source package, synopsis or near-duplicate paragraph occurs in two splits. Raises DataUnavailable if apt is not
    installed, or it cannot reach its sources.
    """

    def make() -> tuple[list[list[str]], dict[str, Any]]:
        apt = PrivateApt(root, progress)
        day = apt.update()
        rows = description_rows(apt.stanzas("Translation-en"), apt.stanzas("Packages"))
        return rows, {"release": f"Debian {RELEASE}", "day": day}

    cached, about = cached_rows(root, "debian_descriptions", RECIPE, make, progress)
    rows = [Description(*row) for row in cached]
    keys = (
        [("package", r.source), ("paragraph", normalized(r.paragraph)), ("synopsis", normalized(r.synopsis))]
        for r in rows
    )
    texts = [row.paragraph for row in rows]
    names, kept = [f"{row.source} {row.paragraph}" for row in rows], root / "debian_descriptions" / "split.json"
    parts = cached_parts(kept, f"{RECIPE} {about['sha256']}", progress, keys, names, [texts])
    return rows, parts, about["sha256"], f"package descriptions of {about['release']} ({about['day']})"


def description_rows(translations: Iterable[str], packages: Iterable[str]) -> list[list[str]]:
    """Rows with the fields of `Description`, one per different paragraph, sorted by package.

    Args:
        translations: stanzas of the Translation-en lists.
        packages: stanzas of the Packages lists, for the names and sections of source packages.
    """
    origin: dict[str, tuple[str, str]] = {}  # package -> source package, section
    described: dict[str, tuple[str, str]] = {}
    for fields in map(_fields, packages):
        name = fields.get("Package", "")
        section = fields.get("Section", "").rpartition("/")[2]  # "contrib/net" -> "net"
        origin[name] = ((fields.get("Source") or name).split(" ")[0], section)
    for fields in map(_fields, translations):
        # the synopsis, then paragraphs between lines with a full stop
        synopsis, _, body = fields.get("Description-en", "").partition("\n")
        paragraph = clean(re.split(r"\n\s*\.\s*(?:\n|$)", f"\n{body}\n")[0])
        if synopsis.strip() and len(paragraph.split()) >= LEAST_WORDS:
            described[fields["Package"]] = (paragraph, clean(synopsis))
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
    return {key: value.strip() for key, value in re.findall(r"^([^\s:]+):(.*(?:\n\s.*)*)", stanza, re.M)}


CLASSES = ("perl", "python", "program")
FIELDS = ("synopses", "which")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
SIZES = {"train": 12_000, "dev": 1_000, "test": 1_000}
WORDS = 8  # words of a synopsis that are kept
PROGRAMS = "admin comm database editors electronics games gnome graphics hamradio kde mail math net".split()
PROGRAMS += "otherosfs science sound tex text utils video web x11".split()


def load_look_up(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """All packages of an example are in the same split of `debian_descriptions`, so no synopsis is in two splits."""
    rows, parts, sha256, title = load_descriptions(root, progress)
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}

    def read(progress: Progress) -> Splits:
        every = parts.of(rows)
        return {s: list(examples(every[s], n, options.packages, s)) for s, n in sizes.items()}

    title, notes = f"{title}, {options.packages} synopses at a time", [parts.note("paragraphs")]
    sources = {s: [sha256, options.packages, n] for s, n in sizes.items()}
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


PAGES_RECIPE = 2  # increased when the same pages would give other pairs or splits
# language -> (suffix of the package name, folder of its pages)
HELP_LANGUAGES = {"en": ("en-us", "en-US")}
HELP_LANGUAGES |= {code: (code, code) for code in "ca da de es fr it nl pl pt ru".split()}
# paragraphs and headings never nest, and their ids are the same in every language
_HELP_BLOCK = re.compile(r'<(p|h[1-6])\b([^>]*?)\bid="((?:par_|hd_|bm_|tit)[^"]*)"([^>]*)>(.*?)</\1>', re.S)
_SPAN = re.compile(r"<span\b([^>]*)>((?:(?!</?span\b).)*)</span>", re.S)
_ENDS = re.compile("\1.|\2")


def load_help(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Fetch the packages libreoffice-help-* with a private apt and split their paragraphs by content.

    No near-duplicates of a source or a target are in two splits.
    """
    about = options.about()
    first, second = sorted(about.values())

    def make_rows() -> tuple[list[list[str]], dict]:
        apt = PrivateApt(root, progress)
        texts, versions = [], []
        for lang in (first, second):
            suffix, pages = HELP_LANGUAGES[lang]
            folder = apt.unpack(f"libreoffice-help-{suffix}")
            versions.append((folder / "PACKAGE_VERSION.txt").read_text().strip())
            progress.step(f"reading the help pages in {lang}")
            texts.append(dict(help_paragraphs(folder / "usr/share/libreoffice/help" / pages / "text")))
        return aligned_rows(*texts), {"packages": versions}

    rows, known = cached_rows(root, f"libreoffice_help-{first}-{second}", 1, make_rows, progress)
    ones, twos = zip(*rows, strict=True)
    keys = ([("first", normalized(one)), ("second", normalized(two))] for one, two in rows)
    kept, names = root / "libreoffice_help" / f"split-{first}-{second}.json", [f"{one}\t{two}" for one, two in rows]
    parts = cached_parts(kept, f"{PAGES_RECIPE} {known['sha256']}", progress, keys, names, [ones, twos])

    order = 1 if options.source_lang == first else -1
    pairs = [Pair(row[::order][0], (row[::order][1],)) for row in rows]
    version = unquote(known["packages"][0].split("_")[1])
    title = f"LibreOffice help {version}, {'-'.join(about.values())}, aligned by paragraph id"
    read = PAGES_RECIPE, known["sha256"], about
    return split_pairs(manifest, options, title, pairs, parts, "paragraphs", about, *read)


def help_paragraphs(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """((page, paragraph id), text) from all pages under `folder`; program code is left out."""
    for path in sorted(folder.rglob("*.html")):
        page = path.relative_to(folder).as_posix()
        for match in _HELP_BLOCK.finditer(read_text(path)):
            attributes, content = match[2] + match[4], match[5]
            if re.search(r'class="[^"]*code', attributes):
                continue
            if "switch" in content:
                content = _one_variant(content)
            text = clean(html.unescape(re.sub(r"<[^>]*>", " " if "<br" in content else "", content)))
            if text:
                yield (page, match[3]), text


def _one_variant(content: str) -> str:
    """The text with one variant of every switch, since pages contain the wordings for all systems and modules.

    A switch is a span of class switch or switchinline. Each of its child spans is a variant; the child without a class
    is the default. If there is no default, the first variant is used.
    """

    def read(span: re.Match) -> str:  # an innermost span; of one that may be a variant, the ends are kept as \1 and \2
        if re.search(r'class="switch(inline)?"', span[1]):
            variants = re.findall("\1(.)(.*?)\2", span[2], re.S)
            return min(variants, key=itemgetter(0), default=("", ""))[1]
        return f"\1{'v' if 'class=' in span[1] else 'd'}{_ENDS.sub('', span[2])}\2"

    while _SPAN.search(content):
        content = _SPAN.sub(read, content)
    return _ENDS.sub("", content)


def aligned_rows(first: dict[tuple[str, str], str], second: dict[tuple[str, str], str]) -> list[list[str]]:
    """Different [first, second] texts of the paragraphs that both languages have, without untranslated paragraphs."""
    both = ((one, second.get(key)) for key, one in first.items())
    return [list(row) for row in sorted({(one, two) for one, two in both if two is not None and one != two})]


SETS = {
    "libreoffice_help": Loader("pairs", load_help, languages(*HELP_LANGUAGES)),
    "debian_descriptions": Loader("pairs", load_summaries),
    "debian_pairs": Loader("texts", load_look_up, {"packages": integer(low=2, high=len(ORDINALS))}),
}
