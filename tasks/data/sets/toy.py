"""Generated texts with a known answer, for tests and first trials: they take seconds and work offline.

toy              Sentence pairs with known alignments, from a lexicon, a reordering and fertilities. They replace a
                 translation corpus if none can be fetched.
toy_aligned      Test sentences of the same kind, with the alignments from their generation.
toy_reviews      5 to 30 filler words, and two consecutive opinion words at a random position.
                 The opinion words are marked.
toy_entailment   The premise gives three things a colour. The hypothesis gives one of them the same colour or another
                 colour, or is about a new thing. The thing in the hypothesis is marked.

The translation is a deterministic function of the source, so the gold alignment of any source sentence can be computed
at any time (`translate`), and a model's attention can be compared with it:

* lexicon: source word i becomes target word i; both vocabularies follow Zipf's law, as in real text;
* reordering: a noun followed by an adjective is translated as adjective, noun (as from French to English);
* fertility: some words become two target words, and particles become none.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from repro.options import integer
from tasks.data.dataset import SPLITS, DataSet, Loader, Manifest, Splits, make
from tasks.data.errors import DataError
from tasks.data.progress import Progress
from tasks.data.records import AlignedPair, Example, Pair

SIZES = {"train": 12_000, "dev": 500, "test": 500}
KINDS = ("noun", "adjective", "verb", "double", "particle")
NO_LANGUAGES = {"source_lang": None, "target_lang": None}
WORDS_PER_KIND = {"noun": 60, "adjective": 30, "verb": 40, "double": 20, "particle": 8}

Links = frozenset[tuple[int, int]]


@lru_cache(maxsize=1)
def lexicon() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Source word -> (kind, target words). It is the same for all seeds, so that corpora of different seeds agree."""
    rng = np.random.default_rng(20170522)
    source_syllables = [c + v for c in "bdfglmnprst" for v in ("a", "e", "i", "o", "u")]
    target_syllables = [v + c for c in "kvwxyz" for v in ("a", "e", "i", "o", "u", "ee", "oo")]

    def names(syllables: list[str], count: int) -> list[str]:
        seen: dict[str, None] = {}
        while len(seen) < count:
            seen.setdefault("".join(rng.choice(syllables, size=rng.integers(2, 4))))
        return list(seen)

    total = sum(WORDS_PER_KIND.values())
    sources, targets = names(source_syllables, total), names(target_syllables, total + WORDS_PER_KIND["double"])
    extra = iter(targets[total:])
    kinds = [kind for kind in KINDS for _ in range(WORDS_PER_KIND[kind])]
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    for kind, source, target in zip(kinds, sources, targets):
        translation = (target, next(extra)) if kind == "double" else (target,)
        table[source] = (kind, () if kind == "particle" else translation)
    return table


def translate(source: list[str]) -> tuple[list[str], Links]:
    """Translate source words and return the planted alignment.

    Args:
        source: words of `lexicon()`.

    Returns:
        the target words, and the links (i, j), where source position i produced target position j.
    """
    table = lexicon()
    order = list(range(len(source)))
    i = 0
    while i + 1 < len(source):
        if table[source[i]][0] == "noun" and table[source[i + 1]][0] == "adjective":
            order[i], order[i + 1] = i + 1, i
            i += 1
        i += 1
    target: list[str] = []
    links = set()
    for i in order:
        for word in table[source[i]][1]:
            links.add((i, len(target)))
            target.append(word)
    return target, frozenset(links)


def generate(count: int, seed: int, longest: int = 12, shortest: int = 3) -> list[str]:
    """Generate `count` different source sentences of `shortest` to `longest` words, reproducible from `seed`."""
    rng = np.random.default_rng(seed)
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for word, (kind, _) in lexicon().items():
        by_kind[kind].append(word)
    zipf = {kind: _cumulative(1.0 / np.arange(1, len(words) + 1)) for kind, words in by_kind.items()}
    # transition weights in the order of KINDS; adjectives often follow nouns, so that reordering is frequent
    follow = {
        None: _cumulative((0.5, 0.1, 0.1, 0.1, 0.2)),
        "noun": _cumulative((0.1, 0.45, 0.25, 0.1, 0.1)),
        "adjective": _cumulative((0.25, 0.15, 0.35, 0.15, 0.1)),
        "verb": _cumulative((0.4, 0.1, 0.05, 0.15, 0.3)),
        "double": _cumulative((0.35, 0.15, 0.2, 0.1, 0.2)),
        "particle": _cumulative((0.6, 0.1, 0.15, 0.15, 0.0)),
    }
    sentences: dict[str, None] = {}
    for _ in range(50 * count + 1000):
        if len(sentences) == count:
            return list(sentences)
        words: list[str] = []
        kind = None
        for _ in range(rng.integers(shortest, longest + 1)):
            kind = KINDS[bisect_right(follow[kind], rng.random())]
            words.append(by_kind[kind][bisect_right(zipf[kind], rng.random())])
        if translate(words)[0]:
            sentences.setdefault(" ".join(words))
    what = f"there are fewer than {count:,} different toy sentences of {shortest} to {longest} words"
    step = "ask for fewer pairs (data.limits) or longer ones (data.max_words)"
    raise DataError(what, f"found {len(sentences):,}", step)


def _cumulative(weights) -> list[float]:
    """Cumulative sums that end in 1, for sampling by bisection."""
    sums = np.cumsum(weights)
    return [*(sums[:-1] / sums[-1]).tolist(), 1.0]


def load_pairs(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Generate pairs for train, then dev, then test, so that a split depends only on the sizes of the earlier ones."""
    sizes = {split: options.limits.of(split) or SIZES[split] for split in SPLITS}
    drawn = [options.seed, options.min_words, options.max_words]

    def read(progress: Progress) -> Splits:
        sources = generate(sum(sizes.values()), options.seed, options.max_words, options.min_words)
        pairs = (Pair(text, (" ".join(translate(text.split())[0]),)) for text in sources)
        return {split: list(islice(pairs, n)) for split, n in sizes.items()}

    title = f"generated pairs with a planted alignment, seed {options.seed}"
    origin = {split: [drawn, [sizes[s] for s in SPLITS[: i + 1]]] for i, split in enumerate(SPLITS)}
    return make(manifest, "pairs", read, title, sources=origin, about=NO_LANGUAGES)


ALIGNED = 300


def load_aligned(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Generate pairs in which every link is sure."""
    count = options.limits.test or ALIGNED

    def read(progress: Progress) -> Splits:
        made = ((text, *translate(text.split())) for text in generate(count, options.seed))
        return {"test": [AlignedPair(text, (" ".join(words),), links, links) for text, words, links in made]}

    title = f"generated pairs with their planted alignment, seed {options.seed}"
    return make(manifest, "pairs", read, title, sources={"test": [options.seed, count]}, about=NO_LANGUAGES)


TEXTS = {"train": 600, "dev": 100, "test": 100}
FILLERS = [f"word{i}" for i in range(40)]
OPINIONS = (("dreadful", "boring", "awful"), ("lovely", "superb", "brilliant"))
THINGS, COLOURS = [f"thing{i}" for i in range(8)], ("red", "green", "blue")


def load_texts(manifest: Manifest, options: Any, root: Path, progress: Progress) -> DataSet:
    """Generate examples, each with its own random generator, so that a limit does not change other examples."""
    draw, classes, fields = DRAWN[manifest["name"]]
    sizes = {split: options.limits.of(split) or TEXTS[split] for split in SPLITS}

    def read(progress: Progress) -> Splits:
        return {s: [draw(random.Random(f"{options.seed}/{s}/{i}")) for i in range(n)] for s, n in sizes.items()}

    title, sources = f"generated texts, seed {options.seed}", {s: [options.seed, n] for s, n in sizes.items()}
    about = {"classes": list(classes), "fields": list(fields)}
    return make(manifest, "texts", read, title, sources=sources, notes=["GENERATED TEXT"], about=about)


def _review(rng: random.Random) -> Example:
    label = rng.randrange(2)
    words = rng.choices(FILLERS, k=rng.randint(5, 30))
    at = rng.randrange(len(words) + 1)
    opinion = rng.choices(OPINIONS[label], k=2)
    return Example((" ".join(words[:at] + opinion + words[at:]),), label, frozenset(opinion))


def _entailment(rng: random.Random) -> Example:
    things = rng.sample(THINGS, 4)
    colours = {thing: rng.choice(COLOURS) for thing in things}
    label = rng.randrange(3)
    about = things[3] if label == 1 else rng.choice(things[:3])
    colour = colours[about] if label != 2 else rng.choice([c for c in COLOURS if c != colours[about]])
    premise = " and ".join(f"the {thing} is {colours[thing]}" for thing in things[:3])
    return Example((premise, f"the {about} is {colour}"), label, frozenset({about}))


DRAWN = {  # name -> function that draws an example, classes, fields
    "toy_reviews": (_review, ("negative", "positive"), ("text",)),
    "toy_entailment": (_entailment, ("entailment", "neutral", "contradiction"), ("premise", "hypothesis")),
}


def _possible(options: Any) -> list[str]:
    above = options.min_words > options.max_words
    return [f"min_words={options.min_words} is above max_words={options.max_words}"] if above else []


WORDS = integer(low=1, high=60, help="words of a source sentence")
SETS = {
    "toy": Loader("pairs", load_pairs, {"min_words": WORDS, "max_words": WORDS}, _possible),
    "toy_aligned": Loader("pairs", load_aligned),
    "toy_reviews": Loader("texts", load_texts),
    "toy_entailment": Loader("texts", load_texts),
}
