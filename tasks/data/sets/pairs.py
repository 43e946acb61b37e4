"""Pairs of texts: Multi30k and IWSLT 2017; sentences with manually linked words; headlines of Reuters-21578.

multi30k       task 1: captions of photographs in English, French and German, from a mirror or its repository
iwslt2017      TED talks, from the files of the archive
hansards       447 pairs of the Canadian parliament, sure and possible links (Och & Ney 2003; NAACL 2003), from a mirror; the
               copy of awesome-align, tokenised and in lower case, with words numbered from 1
reuters21578   from a mirror: the title from the first paragraph. It replaces Gigaword, at a size for two cores
"""

import html
import re
from itertools import chain
from pathlib import Path
from typing import Any

from repro.options import choice
from tasks.data.acquire import sources
from tasks.data.dataset import ENGLISH, DataSet, Loader, Manifest, Splits, cached_parts, fingerprint, make, split_pairs
from tasks.data.files import sha256_of
from tasks.data.manifests import mirror_files
from tasks.data.options import languages
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, read_lines, read_text
from tasks.data.read.lines import find_file, paired, same_length
from tasks.data.read.splits import normalized
from tasks.data.records import AlignedPair, Gold, Pair, clean

KIND = "pairs"


TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")


def load_multi30k(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load the raw text as published: 29,000 train, 1,014 dev and 1,000 test pairs."""
    about = options.about()
    stems = {"train": "train", "dev": "val", "test": options.test_set}
    names = {split: [f"{stem}.{lang}.gz" for lang in about.values()] for split, stem in stems.items()}
    title = f"Multi30k {'-'.join(about.values())}, test set {options.test_set}"
    mirror, wanted = options.mirror or sources.found(manifest, root), tuple(chain(*names.values()))
    files, hashes = mirror_files(manifest, mirror, wanted)

    def read(progress: Progress) -> Splits:
        return {s: options.within(paired([files[name] for name in both])) for s, both in names.items()}

    origin = {split: [[hashes[name] for name in pair], options.bounds()] for split, pair in names.items()}
    more = {"limits": options.limits, "shortfalls": options.shortfall(), "about": about}
    return make(manifest, KIND, read, title, sources=origin, **more)


LANGUAGES = ("en", "de", "fr", "ar", "ja", "ko", "zh")
FILES = {  # split -> names of its files, with the pair of languages and the language of the file
    "train": ["train.tags.{}.{}"],
    "dev": ["IWSLT17.TED.dev2010.{}.{}.xml"],
    "test": [f"IWSLT17.TED.tst{year}.{{}}.{{}}.xml" for year in range(2010, 2016)],
}


def load_iwslt(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load a language pair, of DE-EN 206,112 train, 888 dev and 8,079 test pairs. `path` is a folder with train.tags.de-en.de, IWSLT17.TED.dev2010.de-en.de.xml and so on.

    These files may also be in its subfolder de-en.
    """
    about = options.about()
    stem = "-".join(about.values())
    title = f"IWSLT 2017 {stem}, dev2010, tst2010-2015"
    folder = sources.located(manifest, options.path, root)
    splits, stamps = {split: [] for split in FILES}, {split: [] for split in FILES}
    for split, name in ((split, name) for split, names in FILES.items() for name in names):
        wanted = [(name.format(stem, lang),) for lang in about.values()]
        files = [find_file(sources.folders_in(folder), one, manifest["get"]) for one in wanted]
        sides = [segments(path) for path in files]
        same_length(files, sides)
        splits[split] += [Pair(clean(source), (clean(target),)) for source, target in zip(*sides)]
        stamps[split] += map(sha256_of, files)
    if stem != "de-en":
        manifest = manifest | {"sizes": {}}

    def read(progress: Progress) -> Splits:
        return {s: options.within(pairs) for s, pairs in splits.items()}

    origin = {split: [stamp, options.bounds()] for split, stamp in stamps.items()}
    counts = {split: len(pairs) for split, pairs in splits.items()}
    more = {"limits": options.limits, "counts": counts, "shortfalls": options.shortfall(), "about": about}
    return make(manifest, KIND, read, title, sources=origin, **more)


def segments(path: Path) -> list[str]:
    """Sentences of an IWSLT file, in order: the <seg>s, or, for training, all lines but those that are a tag."""
    if path.name.startswith("train.tags"):
        return [line for line in read_lines(path) if not re.match(r"\s*</?[a-z]+\b[^>]*>", line)]
    page = read_text(path)
    found = re.findall(r"<seg\b[^>]*>(.*?)</seg>", page, re.S)
    if not found or len(found) != page.count("<seg"):
        problem = f"{len(found):,} whole segments of {page.count('<seg'):,}"
        raise damaged(path, problem, '<seg id="..">text</seg> elements')
    return [html.unescape(text) for text in found]


_PHARAOH = re.compile(r"([1-9]\d*)([-?p])([1-9]\d*)", re.ASCII)


def read_pharaoh(path: Path) -> list[Gold]:
    """Read one sentence per line, words numbered from 1: `i-j` is a sure link, `i?j` or `ipj` a possible one."""
    golds = []
    for line in read_lines(path):
        found = [(int(one) - 1, int(other) - 1, sign) for one, sign, other in _PHARAOH.findall(line)]
        sure = frozenset((one, other) for one, other, sign in found if sign == "-")
        golds.append((sure, frozenset((one, other) for one, other, _ in found)))
    return golds


def load_aligned(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load the sentences and their links."""
    (files, hashes), about = mirror_files(manifest, options.mirror), options.about()
    turn = 1 if options.source_lang == "en" else -1

    def read(progress: Progress) -> Splits:
        lines = ([clean(side) for side in line.split("|||")][::turn] for line in read_lines(files["enfr.src-tgt"]))
        found = zip(lines, read_pharaoh(files["enfr.gold"]), strict=True)
        turned = (((one, other), [{link[::turn] for link in some} for some in links]) for (one, other), links in found)
        return {"test": [AlignedPair(one, (other,), *map(frozenset, links)) for (one, other), links in turned]}

    title = f"Hansards {'-'.join(about.values())}, links of Och & Ney 2003"
    sources = {"test": [hashes, about]}
    return make(manifest, KIND, read, title, sources=sources, limits=options.limits, about=about)


RECIPE = 2  # increased when the same files would give other pairs or splits


def load_reuters(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Load pairs split by content, since recurring reports are similar, and not by LEWISSPLIT, made for categories."""
    files, hashes = mirror_files(manifest, options.mirror)
    rows = dict.fromkeys(
        row for name in sorted(files) for row in reuters_pairs(read_text(files[name], encoding="latin-1"))
    )
    pairs = [Pair(body, (title,)) for body, title in rows]
    bodies = [body for body, _ in rows]
    keys = ([("body", normalized(body)), ("title", normalized(title))] for body, title in rows)
    names, path = [f"{body}\t{title}" for body, title in rows], root / "reuters21578" / "split.json"
    parts = cached_parts(path, fingerprint(RECIPE, hashes), progress, keys, names, [bodies])

    title = "Reuters-21578, first paragraph to title"
    return split_pairs(manifest, options, title, pairs, parts, "articles", ENGLISH, RECIPE, hashes)


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
    "multi30k": Loader(KIND, load_multi30k, languages("en", "fr", "de") | {"test_set": choice(*TEST_SETS)}),
    "iwslt2017": Loader(KIND, load_iwslt, languages(*LANGUAGES)),
    "hansards": Loader(KIND, load_aligned, languages("en", "fr")),
    "reuters21578": Loader(KIND, load_reuters),
}
