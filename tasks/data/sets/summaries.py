"""Headlines and summaries: Gigaword and DUC, Reuters-21578.

gigaword        Annotated Gigaword: generate a headline from the first sentence. Used in Table 2 of Niculae and of Laha
duc2003, 2004   task 1, Gigaword's further test sets. They require an agreement with NIST and have no training data
reuters21578    from a mirror: the title from the first paragraph. It replaces Gigaword, at a size for two cores

Gigaword and DUC are read as released by Rush et al. 2015 in their archive sumdata.
"""

import html
import re
from pathlib import Path
from typing import Any

from tasks.data.acquire import hub
from tasks.data.dataset import SPLITS, DataSet, Loader, Manifest, Splits, fingerprint, make
from tasks.data.manifests import mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, read_text
from tasks.data.read.lines import folder_of, line_pairs
from tasks.data.read.pairs import ENGLISH, cached_parts
from tasks.data.read.splits import normalized
from tasks.data.records import Pair, clean

KIND = "pairs"
# published layouts: Gigaword in folders train/ and Giga/ of the archive, or all files in one folder
GIGAWORD = {
    "train": (("train.article.filter.txt", "train.article.txt"), ("train.title.filter.txt", "train.title.txt")),
    "dev": (("valid.article.filter.txt", "valid.article.txt"), ("valid.title.filter.txt", "valid.title.txt")),
    "test": (("input.txt",), ("task1_ref0.txt",)),
}
DUC = {"test": (("input.txt",), *((f"task1_ref{k}.txt",) for k in range(4)))}


def load_sumdata(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load the authors' archive, or the hub's copy of Gigaword; lines are read on demand.

    DUC's text has ordinary digits, as published. Gigaword has # for each digit, which DUC's about["digits"] records
    (Rush et al.'s NAMAS).
    """
    name, about = manifest["name"], ENGLISH
    if name == "gigaword" and options.path is None:
        made = lambda row: Pair(clean(row["document"]), (clean(row["summary"]),))  # noqa: E731
        splits, stamps = hub.load(manifest, root, progress, made)
        title = "Gigaword (Rush et al. 2015), Hugging Face release"
    elif name == "gigaword":
        folder = folder_of(options.path, manifest["get"])
        places = (folder, folder / "train", folder / "Giga")
        splits, stamps = line_pairs(places, GIGAWORD, manifest["get"], progress)
        title = "Gigaword (Rush et al. 2015), released pairs"
    else:
        folder, year = folder_of(options.path, manifest["get"]), name[-4:]
        tops = (folder / name.upper(), folder / f"clean_{year}", folder)
        places = [place for top in tops for place in (top, top / "references")]
        splits, stamps = line_pairs(places, DUC, manifest["get"], progress)
        title, about = f"DUC {year} task 1, four references", ENGLISH | {"digits": "#"}
    found = {split: len(pairs) for split, pairs in splits.items()}
    more = {"sources": stamps, "limits": options.limits, "counts": found, "about": about}
    return make(manifest, KIND, lambda progress: splits, title, **more)


RECIPE = 2  # increased when the same files would give other pairs or splits


def load_reuters(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load pairs split by content, since recurring reports are similar, and not by LEWISSPLIT, made for categories."""
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)
    rows = dict.fromkeys(row for name in sorted(files) for row in reuters_pairs(_articles(files[name])))
    pairs = [Pair(body, (title,)) for body, title in rows]
    bodies = [body for body, _ in rows]
    keys = ([("body", normalized(body)), ("title", normalized(title))] for body, title in rows)
    names, path = [f"{body}\t{title}" for body, title in rows], root / "reuters21578" / "split.json"
    parts = cached_parts(path, fingerprint(RECIPE, hashes), progress, keys, names, [bodies])

    def read(progress: Progress) -> Splits:
        return {split: options.within(some) for split, some in parts.of(pairs).items()}

    sources = dict.fromkeys(SPLITS, fingerprint(RECIPE, hashes, options.bounds()))
    more = {"limits": options.limits, "notes": [parts.note("articles")], "about": ENGLISH}
    return make(manifest, KIND, read, "Reuters-21578, first paragraph to title", sources=sources, **more)


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


SETS = {
    **{name: Loader(KIND, load_sumdata) for name in ("gigaword", "duc2003", "duc2004")},
    "reuters21578": Loader(KIND, load_reuters),
}
