"""Reuters-21578, from a mirror: generate the title from the first paragraph.

It replaces Gigaword, at a size that can be trained on two cores.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.dataset import SPLITS, DataSet, Limits, Manifest, Splits, fingerprint, limits, make
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, read_text
from tasks.data.read.pairs import ENGLISH, Bounded, cached_parts, word_bounds
from tasks.data.read.splits import normalized, split_by_content
from tasks.data.records import Pair, clean

KIND = "pairs"
RECIPE = 2  # increased when the same files would give other pairs or splits


@dataclass
@stated("data/reuters21578")
class Options(Bounded):
    """About 15,500 articles."""

    min_words: dict = word_bounds("fewest")
    max_words: dict = word_bounds("most")
    mirror: str | None = mirror()
    limits: Limits = limits()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load pairs split by content, since recurring reports are similar, and not by LEWISSPLIT, made for categories."""
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)
    rows = dict.fromkeys(row for name in sorted(files) for row in reuters_pairs(_articles(files[name])))
    pairs = [Pair(body, (title,)) for body, title in rows]
    bodies = [body for body, _ in rows]

    def split():
        keys = [[("body", normalized(body)), ("title", normalized(title))] for body, title in rows]
        return split_by_content(keys, [f"{body}\t{title}" for body, title in rows], [bodies])

    parts = cached_parts(root / "reuters21578" / "split.json", fingerprint(RECIPE, hashes), split, progress)

    def read(progress: Progress) -> Splits:
        return {s: options.within(pairs[i] for i in getattr(parts, s)) for s in SPLITS}

    return make(
        manifest, KIND, read, "Reuters-21578, first paragraph to title",
        sources=dict.fromkeys(SPLITS, fingerprint(RECIPE, hashes, options.bounds())), limits=options.limits, notes=[parts.note("articles")],
        about=ENGLISH,
    )  # fmt: skip


def _articles(path: Path) -> str:
    """The text of a file. Raises DataError unless all its articles are complete."""
    sgml = read_text(path, encoding="latin-1")
    opened, closed = (len(re.findall(tag, sgml)) for tag in (r"<REUTERS\b", r"</REUTERS>"))
    if not opened or opened != closed:
        raise damaged(path, f"{opened:,} articles begin, {closed:,} end", "<REUTERS ..> ... </REUTERS> articles")
    return sgml


def reuters_pairs(sgml: str) -> list[tuple[str, str]]:
    """(first paragraph of the body, title) of every article in an SGML file that has both."""
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
