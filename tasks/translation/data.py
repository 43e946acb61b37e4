"""Corpora for machine translation."""

from __future__ import annotations

import gzip
import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tasks.data.apt import PrivateApt
from tasks.data.errors import DataError
from tasks.data.manifests import load_manifest, mirror_files
from tasks.data.pairs import cached_parts, cached_rows
from tasks.data.progress import Progress
from tasks.data.splits import normalized, split_by_content
from tasks.seq2seq import hub
from tasks.seq2seq.corpus import Corpus, Pair, Request, clean, make_corpus, within_bounds
from tasks.seq2seq.lines import LinePairs, find_file, hash_files

ANY_LENGTH = {"source": (1, 1_000_000), "target": (1, 1_000_000)}


def languages(request: Request, allowed: set[str], default: tuple[str, str]) -> tuple[str, str]:
    """The pair (source, target) of a request, checked against the languages that a data set has."""
    pair = (request.source_lang or default[0], request.target_lang or default[1])
    if pair[0] == pair[1] or not set(pair) <= allowed:
        raise DataError(
            f"{request.name} has no pair {pair[0]}-{pair[1]}",
            f"languages: {', '.join(sorted(allowed))}",
            "set data.source_lang and data.target_lang to two different ones of these",
        )
    return pair


def parallel(source: list[str], target: list[str], where: str) -> list[Pair]:
    """Pair two lists of lines; `DataError` naming `where` they come from when their lengths differ."""
    if len(source) != len(target):
        raise DataError(
            "the two sides have different numbers of lines",
            f"{where}: {len(source):,} and {len(target):,}",
            "fetch both files again, from the same release",
        )
    return [Pair(clean(s), (clean(t),)) for s, t in zip(source, target, strict=True)]


def load_multi30k(request: Request, progress: Progress) -> Corpus:
    """Multi30k task 1 (29,000 / 1,014 / 1,000 pairs), read from a mirror.

    `test_set`: test_2016_flickr (default), test_2017_flickr, test_2017_mscoco or test_2018_flickr.
    """
    manifest = load_manifest("multi30k")
    source, target = languages(request, {"en", "fr", "de"}, ("fr", "en"))
    test_sets = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
    test_set = request.test_set or test_sets[0]
    if test_set not in test_sets:
        raise DataError(f"multi30k has no test set {test_set!r}", f"allowed: {', '.join(test_sets)}", "choose one")
    stems = {"train": "train", "dev": "val", "test": test_set}
    wanted = tuple(f"{stem}.{lang}.gz" for stem in stems.values() for lang in (source, target))
    files = mirror_files(manifest, None if request.mirror is None else Path(request.mirror), wanted)
    splits = {}
    for split, stem in stems.items():
        sides = [_gzip_lines(files[f"{stem}.{lang}.gz"]) for lang in (source, target)]
        pairs = parallel(*sides, where=f"{stem}.{{{source},{target}}}.gz")
        splits[split] = [pair for pair in pairs if within_bounds(pair, request, ANY_LENGTH)]
    return make_corpus(request, splits, manifest, f"Multi30k {source}-{target}, test set {test_set}")


def _gzip_lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        return stream.readlines()


# language -> (suffix of the package's name, folder of its pages)
HELP_LANGUAGES = {
    "en": ("en-us", "en-US"),
    **{code: (code, code) for code in ("ca", "da", "de", "es", "fr", "it", "nl", "pl", "pt", "ru")},
}
HELP_BOUNDS = {"source": (4, 60), "target": (4, 60)}
# paragraphs and headings never nest, and their ids are the same in every language
_HELP_BLOCK = re.compile(r'<(p|h[1-6])\b([^>]*?)\bid="((?:par_|hd_|bm_|tit)[^"]*)"([^>]*)>(.*?)</\1>', re.S)


def load_libreoffice_help(request: Request, progress: Progress) -> Corpus:
    """Paragraphs of the LibreOffice help, aligned by the id that a paragraph has in every language (MPL-2.0).

    Fetched by a private apt from the packages libreoffice-help-*. Both directions of a language pair have the same
    splits; no source and no target (up to case, digits and punctuation) is in two of them.
    """
    manifest = load_manifest("libreoffice_help")
    source, target = languages(request, set(HELP_LANGUAGES), ("fr", "en"))
    first, second = sorted((source, target))
    root = Path(request.root)

    def make() -> tuple[list[list[str]], dict]:
        apt = PrivateApt(root, progress)
        texts, versions = [], []
        for language in (first, second):
            suffix, pages = HELP_LANGUAGES[language]
            folder = apt.unpack(f"libreoffice-help-{suffix}")
            versions.append((folder / "PACKAGE_VERSION.txt").read_text().strip())
            progress.say(f"reading the help pages in {language}")
            texts.append(dict(help_paragraphs(folder / "usr/share/libreoffice/help" / pages / "text")))
        return aligned_rows(*texts), {"packages": versions}

    path = root / "libreoffice_help" / f"pairs-{first}-{second}-1.jsonl"
    rows, about = cached_rows(path, make, progress)

    def split() -> dict[str, list[int]]:
        keys = [[("first", normalized(one)), ("second", normalized(two))] for one, two in rows]
        return split_by_content(keys, [f"{one}\t{two}" for one, two in rows])

    parts = cached_parts(path.with_suffix(".split.json"), about["sha256"], split)
    splits = {}
    for split, numbers in parts.items():
        ordered = (rows[i] if source == first else rows[i][::-1] for i in numbers)
        pairs = (Pair(one, (two,)) for one, two in ordered)
        splits[split] = [pair for pair in pairs if within_bounds(pair, request, HELP_BOUNDS)]
    version = unquote(about["packages"][0].split("_")[1])
    return make_corpus(
        request, splits, manifest, f"LibreOffice help {version}, {source}-{target}, aligned by paragraph id"
    )


def help_paragraphs(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """((page, paragraph id), text) of all pages under `folder`; program code is left out."""
    for path in sorted(folder.rglob("*.html")):
        page = path.relative_to(folder).as_posix()
        for match in _HELP_BLOCK.finditer(path.read_text(encoding="utf-8", errors="replace")):
            attributes, content = match[2] + match[4], match[5]
            if re.search(r'class="[^"]*code', attributes):
                continue
            if "switch" in content:
                content = _one_variant(content)
            text = clean(html.unescape(re.sub(r"<[^>]*>", " " if "<br" in content else "", content)))
            if text:
                yield (page, match[3]), text


def _one_variant(content: str) -> str:
    """The text with one variant of every switch: pages hold the wordings for all systems and modules side by side.

    A switch is a span of class switch or switchinline; each of its child spans is a variant, the one without a class
    being the default. Without a default the first variant is taken.
    """
    # a stack of open spans, each with its kind and the text inside; the bottom one is the whole paragraph
    stack: list[tuple[str, list]] = [("plain", [])]
    for piece in re.split(r"(<span\b[^>]*>|</span>)", content):
        if piece.startswith("<span"):
            inside_switch = stack[-1][0] == "switch"
            if re.search(r'class="switch(inline)?"', piece):
                stack.append(("switch", []))
            elif inside_switch:
                stack.append(("variant" if "class=" in piece else "default", []))
            else:
                stack.append(("plain", []))
        elif piece == "</span>" and len(stack) > 1:
            kind, parts = stack.pop()
            if kind == "switch":
                variants = [part for part in parts if isinstance(part, tuple)]
                chosen = [text for default, text in variants if default] or [text for _, text in variants]
                stack[-1][1].append(chosen[0] if chosen else "")
            elif kind == "plain":
                stack[-1][1].append("".join(parts))
            else:
                stack[-1][1].append((kind == "default", "".join(parts)))
        elif stack[-1][0] != "switch":
            stack[-1][1].append(piece)
    return "".join(part if isinstance(part, str) else part[1] for _, parts in stack for part in parts)


def aligned_rows(first: dict[tuple[str, str], str], second: dict[tuple[str, str], str]) -> list[list[str]]:
    """Different [first, second] texts of paragraphs that both languages have; untranslated ones are left out."""
    rows = {}
    for key, one in first.items():
        two = second.get(key)
        if two is not None and one != two:
            rows[(one, two)] = None
    return [list(row) for row in sorted(rows)]


IWSLT_TESTS = ("tst2010", "tst2011", "tst2012", "tst2013", "tst2014", "tst2015")


def load_iwslt2017(request: Request, progress: Progress) -> Corpus:
    """IWSLT 2017 TED talks, default DE-EN: 206,112 / 888 (dev2010) / 8,079 pairs (tst2010 to tst2015).

    `path` is the folder of a language pair as in the archive (train.tags.de-en.de, IWSLT17.TED.*.de-en.de.xml), or one
    that holds it; without `path`, the Hugging Face `datasets` package is asked when it is installed.
    """
    manifest = load_manifest("iwslt2017")
    source, target = languages(request, {"en", "de", "fr", "ar", "ja", "ko", "zh"}, ("de", "en"))
    stem = f"{source}-{target}"
    title = f"IWSLT 2017 {stem}, dev2010, tst2010-2015"
    if request.path is None and hub.available():
        row = hub.translation_pair(source, target)
        splits = hub.load("IWSLT/iwslt2017", f"iwslt2017-{stem}", row, request, progress)
        return make_corpus(request, splits, manifest, title + ", Hugging Face release")
    folder = request.folder(manifest["get"])
    places = (folder, folder / stem)
    splits = {}
    sides = [
        tagged_lines(find_file(places, (f"train.tags.{stem}.{lang}",), manifest["get"])) for lang in (source, target)
    ]
    splits["train"] = parallel(*sides, where=f"train.tags.{stem}")
    for split, sets in {"dev": ("dev2010",), "test": IWSLT_TESTS}.items():
        splits[split] = []
        for name in sets:
            files = [
                find_file(places, (f"IWSLT17.TED.{name}.{stem}.{lang}.xml",), manifest["get"])
                for lang in (source, target)
            ]
            splits[split] += parallel(*map(segments, files), where=f"IWSLT17.TED.{name}.{stem}")
    splits = {s: [pair for pair in pairs if within_bounds(pair, request, ANY_LENGTH)] for s, pairs in splits.items()}
    return make_corpus(request, splits, manifest, title)


def tagged_lines(path: Path) -> list[str]:
    """Sentences of an IWSLT training file: its lines without those that are a tag with its text (<title>..</title>)."""
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line for line in lines if not re.match(r"\s*</?[a-z]+\b[^>]*>", line)]


def segments(path: Path) -> list[str]:
    """Texts of the <seg> elements of an IWSLT evaluation file, in order."""
    return [
        html.unescape(text) for text in re.findall(r"<seg\b[^>]*>(.*?)</seg>", path.read_text(encoding="utf-8"), re.S)
    ]


def load_baseline_1m(request: Request, progress: Progress) -> Corpus:
    """The NMT-Benchmark set baseline-1M-enfr (1M pairs of Europarl and News Commentary), either direction.

    Read from `path`, or from where `scripts/data.py fetch baseline_1m_enfr` puts it under `root`: files
    baseline-1M_train.en, baseline-1M_valid.fr and so on.
    """
    manifest = load_manifest("baseline_1m_enfr")
    source, target = languages(request, {"en", "fr"}, ("fr", "en"))
    if request.path is not None:
        folder = request.folder(manifest["get"])
    else:
        folder = Path(request.root) / manifest["name"]
    places = (folder, folder / "baseline-1M-enfr")
    splits, used = {}, []
    for split, part in {"train": "train", "dev": "valid", "test": "test"}.items():
        files = [find_file(places, (f"baseline-1M_{part}.{lang}",), manifest["get"]) for lang in (source, target)]
        splits[split] = LinePairs(files[0], files[1:])
        used += files
    provenance = f"baseline-1M-enfr (NMT-Benchmark), {source}-{target}, generic test set"
    return make_corpus(request, splits, manifest, provenance, sha256=hash_files(used, progress))
