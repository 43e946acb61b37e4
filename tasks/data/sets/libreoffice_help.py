"""LibreOffice help (MPL-2.0): paragraphs in two of 11 languages, aligned by id; replaces baseline-1M in the demo."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tasks.config.options import defaults
from tasks.data.acquire.apt import PrivateApt
from tasks.data.dataset import SPLITS, DataSet, Manifest, Splits, fingerprint, make
from tasks.data.progress import Progress
from tasks.data.read.formats import read_text
from tasks.data.read.pairs import Bounded, Translated, cached_parts, cached_rows, fallback, language
from tasks.data.read.splits import normalized
from tasks.data.records import Pair, clean

KIND = "pairs"
RECIPE = 2  # increased when the same pages would give other pairs or splits
# language -> (suffix of the package name, folder of its pages)
HELP_LANGUAGES = {"en": ("en-us", "en-US")} | {
    code: (code, code) for code in ["ca", "da", "de", "es", "fr", "it", "nl", "pl", "pt", "ru"]
}
# paragraphs and headings never nest, and their ids are the same in every language
_HELP_BLOCK = re.compile(r'<(p|h[1-6])\b([^>]*?)\bid="((?:par_|hd_|bm_|tit)[^"]*)"([^>]*)>(.*?)</\1>', re.S)


@defaults("data/libreoffice_help")
class Options(Translated, Bounded):
    """About 28,000 pairs FR-EN of 4 to 60 words; both directions have the same splits."""

    source_lang: str = language(*HELP_LANGUAGES)
    target_lang: str = language(*HELP_LANGUAGES)
    fallback: str | None = fallback()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
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
            progress.say(f"reading the help pages in {lang}")
            texts.append(dict(help_paragraphs(folder / "usr/share/libreoffice/help" / pages / "text")))
        return aligned_rows(*texts), {"packages": versions}

    path = root / "libreoffice_help" / f"pairs-{first}-{second}-1.jsonl"
    rows, known = cached_rows(path, make_rows, progress)
    ones, twos = zip(*rows, strict=True)
    keys = ([("first", normalized(one)), ("second", normalized(two))] for one, two in rows)
    kept, names = path.with_suffix(".split.json"), [f"{one}\t{two}" for one, two in rows]
    parts = cached_parts(kept, f"{RECIPE} {known['sha256']}", progress, keys, names, [ones, twos])

    def read(progress: Progress) -> Splits:
        order = 1 if options.source_lang == first else -1
        every = parts.of([Pair(row[::order][0], (row[::order][1],)) for row in rows])
        return {split: options.within(pairs) for split, pairs in every.items()}

    version = unquote(known["packages"][0].split("_")[1])
    title = f"LibreOffice help {version}, {'-'.join(about.values())}, aligned by paragraph id"
    sources = dict.fromkeys(SPLITS, fingerprint(RECIPE, known["sha256"], about, options.bounds()))
    notes = [parts.note("paragraphs")]
    return make(manifest, KIND, read, title, sources=sources, limits=options.limits, notes=notes, about=about)


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
    # a stack of open spans, each with its kind and its text; the bottom entry is the whole paragraph
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
    """Different [first, second] texts of the paragraphs that both languages have, without untranslated paragraphs."""
    both = ((one, second.get(key)) for key, one in first.items())
    return [list(row) for row in sorted({(one, two) for one, two in both if two is not None and one != two})]
