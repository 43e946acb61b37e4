"""Test sentences in English and French with manually linked words, from a mirror; readers of gold alignments.

hansards   447 pairs of the Canadian parliament, sure and possible links (Och & Ney 2003; NAACL 2003); the copy of
           awesome-align, tokenised and in lower case, with words numbered from 1
pud_enfr   999 pairs of news and Wikipedia, sure links of content words (Nikolaev et al. 2020). Function words have no
           links: predicted links of function words, which were never annotated, count against precision
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.dataset import DataSet, Manifest, Splits, make
from tasks.data.errors import DataError
from tasks.data.manifests import Mirrored, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read import formats
from tasks.data.read.pairs import Translated, language
from tasks.data.records import AlignedPair, Gold, clean

KIND = "pairs"
_PHARAOH = re.compile(r"(\d+)([-?p])(\d+)", re.ASCII)
CORRECT = "correct the file, or name the one that holds the alignments"


def read_pharaoh(path: Path, first: int = 0) -> list[Gold]:
    """Read one sentence per line: `i-j` is a sure link, `i?j` or `ipj` a possible one.

    Args:
        first: the number of the first word (awesome-align's Hansards count from 1).
    Raises:
        DataError: a word is not a link, or a number is below `first`.
    """
    golds = []
    for number, line in formats.numbered(path):
        links = []
        for word in line.split():
            found = _PHARAOH.fullmatch(word)
            if found is None or min(int(found[1]), int(found[3])) < first:
                expected = f"links as 3-4 (sure) or 3?4 (possible), counted from {first}"
                raise formats.damaged(path, f"{word[:40]!a} is not a link", expected, line=number, step=CORRECT)
            links.append((found[2] == "-", (int(found[1]) - first, int(found[3]) - first)))
        golds.append(gold(links))
    return golds


def gold(links: list[tuple[bool, tuple[int, int]]]) -> Gold:
    """Build a `Gold` from links, each given as (whether it is sure, link)."""
    return frozenset(link for sure, link in links if sure), frozenset(link for _, link in links)


def read_pud(links: Path, source: Path, target: Path) -> tuple[list[list[str]], list[list[str]], list[Gold]]:
    """Read the aligned PUD treebanks (Nikolaev et al. 2020): only content words are linked, and all links are sure.

    The words are those of the running text. A contraction ("du") is one word and has the links of its parts.

    Args:
        links: alignment.json.
        source, target: the two sides in CoNLL-U.

    Returns the words of the source sentences, those of the target sentences, and the links between them. Raises
    DataError if the sides have different lengths, or a link refers to a missing word.
    """
    table = formats.parse_json(formats.read_text(links), links)
    sides = [list(_conllu(source)), list(_conllu(target))]
    if not isinstance(table, list) or {len(side) for side in sides} != {len(table)}:
        counts = f"{len(sides[0]):,} source and {len(sides[1]):,} target sentences"
        raise DataError(f"{links.name}: not one object per sentence", f"{links}: {counts}", CORRECT)
    golds = []
    for number, entry in enumerate(table, 1):
        places = [side[number - 1][1] for side in sides]
        pairs = [(s, t) for s, found in entry.items() for t in found if "X" not in (s, t)]
        if lost := [pair for pair in pairs if not (pair[0] in places[0] and pair[1] in places[1])]:
            problem = f"sentence {number:,}: link {lost[0]}"
            raise formats.damaged(links, problem, "numbers of words of the treebanks", step=CORRECT)
        golds.append(gold([(True, (places[0][s], places[1][t])) for s, t in pairs]))
    return [words for words, _ in sides[0]], [words for words, _ in sides[1]], golds


def _conllu(path: Path) -> Iterator[tuple[list[str], dict[str, int]]]:
    """For each sentence, its words as written, and for every node of its tree the index of the corresponding word."""
    words: list[str] = []
    places: dict[str, int] = {}
    contracted = 0
    for _, line in formats.numbered(path):
        cells = line.split("\t")
        if not line.strip() and words:
            yield words, places
            words, places, contracted = [], {}, 0
        elif len(cells) == 10:
            node, form = cells[0], "".join(cells[1].split())  # some numbers have a space
            if "-" in node:  # "first-last": a contraction of these nodes
                contracted = int(node.split("-")[1])
                words.append(form)
            elif "." not in node:  # a dot marks an elided word, which is not in the text
                if int(node) > contracted:
                    words.append(form)
                places[node] = len(words) - 1
    if words:
        yield words, places


@dataclass
@stated("data/hansards")
class Options(Translated, Mirrored):
    """Only a test set, in one of two directions."""

    source_lang: str = language("en", "fr")
    target_lang: str = language("en", "fr")


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load the sentences and their links."""
    files, about = mirror_files(manifest, options.mirror), options.about()
    reader, title, notes = READERS[manifest["name"]]

    def read(progress: Progress) -> Splits:
        sources, targets, golds = reader(files)
        if options.source_lang == "fr":
            turned = [tuple(frozenset((t, s) for s, t in links) for links in pair) for pair in golds]
            sources, targets, golds = targets, sources, turned
        found = zip(sources, targets, golds, strict=True)
        return {"test": [AlignedPair(source, (target,), *links) for source, target, links in found]}

    title, sources = title.format("-".join(about.values())), {"test": [mirror_hashes(manifest), about]}
    return make(manifest, KIND, read, title, sources=sources, limits=options.limits, about=about, notes=notes)


def _hansards(files: Mapping[str, Path]) -> tuple[list[str], list[str], list[Gold]]:
    path = files["enfr.src-tgt"]
    sides = [[clean(side) for side in line.split("|||")] for line in formats.read_lines(path)]
    if wrong := next((i for i, line in enumerate(sides, 1) if len(line) != 2), None):
        raise formats.damaged(path, "not two sides", "English ||| French", line=wrong)
    english, french = map(list, zip(*sides))
    return english, french, read_pharaoh(files["enfr.gold"], first=1)


def _pud(files: Mapping[str, Path]) -> tuple[list[str], list[str], list[Gold]]:
    english, french, golds = read_pud(files["alignment.json"], files["en.conllu"], files["target.conllu"])
    return [" ".join(words) for words in english], [" ".join(words) for words in french], golds


_CONTENT = "PUD: content words alone are linked, so precision is at most about .6"
READERS = {  # name -> reader, provenance, notes
    "hansards": (_hansards, "Hansards {}, links of Och & Ney 2003", ()),
    "pud_enfr": (_pud, "PUD {}, content words linked (Nikolaev et al. 2020)", (_CONTENT,)),
}
