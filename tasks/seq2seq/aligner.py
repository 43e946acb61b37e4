"""Word alignment with a vectorised fast_align (Dyer, Chahuneau & Smith 2013): IBM model 2 with a diagonal prior.

    p(f_i, a_i = j | e) = t(f_i | e_j) d(j | i, m, n)        i of m target words, j of n source words; t per word type
    d(0) = p0,  d(j) = (1 - p0) exp(-lam |i/m - j/n|) / Z     j = 0: not aligned

The model is trained by EM with the settings of `fast_align -d -o -v`, which Malaviya et al. 2018 used: p0 = .08, five
iterations, lam starting at 4 and updated by gradient steps, a Dirichlet prior of .01 on t (variational Bayes). There is
one model per direction. `Aligner.forward` gives the links of one direction, and `Aligner.align` those of both,
symmetrised by grow-diag-final-and (Koehn et al. 2003). Training is deterministic and needs 4 bytes of memory for each pair of a source and a target word in a sentence pair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from tasks.data.errors import DataError

P0, LAM, LEAST, MOST, ALPHA, RATE, STEPS = 0.08, 4.0, 0.1, 14.0, 0.01, 20.0, 8  # fast_align's values
UNSEEN, SMALLEST = 1e-9, 1e-7  # t of a pair never seen; t below which a pair is forgotten
CHUNK = 2_000_000  # word pairs processed together
Links = set[tuple[int, int]]
Rows = Sequence[np.ndarray]


@dataclass
class _Chunk:
    """Flattened sentences: for every target word, its pairs with all source words of its sentence.

    The first pair of each target word is the one with the empty word (id `null`), which means "not aligned".

    key: [pairs] source id * width + target id. begins: [target words] index of each target word's first pair. feature:
    [pairs] -|i/m - j/n|. place: [pairs] j - 1, or -1 for the empty word.
    """

    key: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    feature: np.ndarray
    place: np.ndarray

    def prior(self, lam: float) -> np.ndarray:
        """The prior d of every pair, [pairs]."""
        p = np.where(self.place < 0, 0.0, np.exp(lam * self.feature))
        p *= np.repeat((1 - P0) / np.add.reduceat(p, self.begins), self.counts)
        return np.where(self.place < 0, P0, p)


def _chunks(source: Rows, target: Rows, null: int, width: int) -> Iterator[tuple[list[int], _Chunk]]:
    """Yield the indices of some sentences and these sentences flattened; pairs with an empty side are skipped."""
    held: list[int] = []
    size = 0
    for k, (s, t) in enumerate(zip(source, target, strict=True)):
        if len(s) and len(t):
            held.append(k)
            size += (len(s) + 1) * len(t)
        if size > CHUNK:
            yield held, _flat(held, source, target, null, width)
            held, size = [], 0
    if held:
        yield held, _flat(held, source, target, null, width)


def _flat(held: Sequence[int], source: Rows, target: Rows, null: int, width: int) -> _Chunk:
    n, m = (np.array([len(side[k]) for k in held]) for side in (source, target))
    words = np.concatenate([np.concatenate(([null], source[k])) for k in held]).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(n + 1)[:-1]))  # index at which each sentence begins in `words`
    of, token, begins, j, feature = _positions(m, n, 0)
    f = np.concatenate([target[k] for k in held]).astype(np.int64)
    key = words[starts[of[token]] + j] * width + f[token]
    return _Chunk(key, begins, n[of] + 1, feature, j - 1)


def _positions(m: np.ndarray, n: np.ndarray, first: int) -> tuple[np.ndarray, ...]:
    """All pairs of positions i = 1..m and j = first..n of sentences with m target and n source words.

    Returns:
        of [target words], the sentence of each target word; token [pairs], the target word of each pair; begins [target
        words], the first pair of each target word; j [pairs]; feature [pairs], -|i/m - j/n|.
    """
    of = np.repeat(np.arange(len(m)), m)
    i = np.arange(len(of)) - np.repeat(np.cumsum(m) - m, m) + 1
    counts = n[of] + 1 - first
    begins = np.cumsum(counts) - counts
    token = np.repeat(np.arange(len(of)), counts)
    j = np.arange(len(token)) - begins[token] + first
    return of, token, begins, j, -np.abs((i / m[of])[token] - j / n[of[token]])


@dataclass
class Direction:
    """A trained model of one direction: t as sorted keys [K] with their probabilities [K], and lam.

    null, width: see `_Chunk`.
    """

    keys: np.ndarray
    t: np.ndarray
    lam: float
    null: int
    width: int

    def best(self, source: Rows, target: Rows) -> list[np.ndarray]:
        """For each sentence, an array [m]: the index of the source word aligned to each target word, or -1 if none."""
        found: list[np.ndarray] = [np.full(len(row), -1) for row in target]
        for held, chunk in _chunks(source, target, self.null, self.width):
            at = np.searchsorted(self.keys, chunk.key).clip(max=len(self.keys) - 1)
            weight = np.where(self.keys[at] == chunk.key, self.t[at], UNSEEN) * chunk.prior(self.lam)
            top = np.repeat(np.maximum.reduceat(weight, chunk.begins), chunk.counts)
            hits = np.flatnonzero(weight == top)
            first = hits[np.searchsorted(hits, chunk.begins)]
            rows = np.split(chunk.place[first], np.cumsum([len(target[k]) for k in held])[:-1])
            for k, row in zip(held, rows):
                found[k] = row
        return found


def fit(source: Rows, target: Rows, sizes: tuple[int, int], iterations: int = 5) -> Direction:
    """Train the model of one direction.

    Args:
        source, target: rows of word ids, all smaller than the vocabulary sizes in `sizes`.
    """
    from scipy.special import digamma  # a translation model is loaded without

    null, width = sizes
    chunks = [chunk for _, chunk in _chunks(source, target, null, width)]
    if not chunks:
        raise DataError("nothing can be aligned", "no training pair has words on both sides", "check the training data")
    keys = np.unique(np.concatenate([np.unique(chunk.key) for chunk in chunks]))
    for chunk in chunks:
        chunk.key = np.searchsorted(keys, chunk.key).astype(np.int32)
    lengths = [(len(t), len(s)) for s, t in zip(source, target) if len(s) and len(t)]
    shapes = np.unique(lengths, axis=0, return_counts=True)
    t, lam = np.full(len(keys), 1.0), LAM
    owner = keys // width
    begins = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    spread = np.diff(np.append(begins, len(keys)))
    for iteration in range(iterations):
        counts, moment, linked = np.zeros(len(keys)), 0.0, 0.0
        for chunk in chunks:
            weight = t[chunk.key] * chunk.prior(lam)
            weight /= np.repeat(np.add.reduceat(weight, chunk.begins), chunk.counts)
            counts += np.bincount(chunk.key, weight, len(keys))
            moment += float((weight * chunk.feature)[chunk.place >= 0].sum())
            linked += len(chunk.begins)
        if iteration:
            lam = _tension(lam, moment / linked, *shapes)
        total = np.add.reduceat(counts + ALPHA, begins)
        t = np.exp(digamma(counts + ALPHA) - np.repeat(digamma(total), spread))
    keep = t > SMALLEST
    return Direction(keys[keep], t[keep].astype(np.float32), lam, null, width)


def _tension(lam: float, observed: float, shapes: np.ndarray, counts: np.ndarray) -> float:
    """Fit lam by fast_align's gradient steps, so that the model's mean of -|i/m - j/n| approaches `observed`."""
    m, n = shapes.T
    of, _, begins, _, feature = _positions(m, n, 1)
    weight, words = counts[of], float((counts * m).sum())
    for _ in range(STEPS):
        e = np.exp(lam * feature)
        expected = np.add.reduceat(e * feature, begins) / np.add.reduceat(e, begins)
        lam += RATE * (observed - float((expected * weight).sum()) / words)
        lam = min(max(lam, LEAST), MOST)
    return lam


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """Symmetrise the links (source, target) of both directions (Koehn et al. 2003).

    The result is the intersection, extended first by neighbouring links from the union and then by links whose two
    words are both still unaligned.
    """
    union, found = forward | backward, forward & backward
    sources, targets = {s for s, _ in found}, {t for _, t in found}
    near = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    queue = sorted(found)
    while queue:
        s, t = queue.pop(0)
        for a, b in near:
            new = (s + a, t + b)
            if new in union and new not in found and (new[0] not in sources or new[1] not in targets):
                found.add(new)
                sources.add(new[0])
                targets.add(new[1])
                queue.append(new)
    for direction in (forward, backward):
        for s, t in sorted(direction):
            if s not in sources and t not in targets:
                found.add((s, t))
                sources.add(s)
                targets.add(t)
    return found


@dataclass
class Aligner:
    """The trained models of both directions, source to target and target to source."""

    there: Direction
    back: Direction

    def forward(self, source: Rows, target: Rows) -> list[Links]:
        """Links (source word, target word) from source to target: each target word has at most one."""
        return [{(int(s), t) for t, s in enumerate(row) if s >= 0} for row in self.there.best(source, target)]

    def align(self, source: Rows, target: Rows) -> list[Links]:
        """Symmetrised links (source word, target word) of each sentence; works for pairs not seen in training too."""
        back = self.back.best(target, source)
        backward = ({(s, int(t)) for s, t in enumerate(row) if t >= 0} for row in back)
        return list(map(grow_diag_final_and, self.forward(source, target), backward))

    def save(self, path: Path) -> None:
        both = {"there": self.there, "back": self.back}
        np.savez(path, **{f"{name}_{k}": v for name, one in both.items() for k, v in vars(one).items()})


def train(source: Rows, target: Rows, sizes: tuple[int, int]) -> Aligner:
    """Train both directions on pairs of id rows.

    Args:
        sizes: source and target vocabulary size; all ids are smaller.
    Raises:
        DataError: there is nothing to align.
    """
    return Aligner(fit(source, target, sizes), fit(target, source, (sizes[1], sizes[0])))


def load(path: Path) -> Aligner:
    """Load an aligner written by `Aligner.save`."""
    with np.load(path) as held:
        parts = {name: value if value.ndim else value.item() for name, value in held.items()}
    names = [field.name for field in fields(Direction)]
    return Aligner(*(Direction(**{k: parts[f"{one}_{k}"] for k in names}) for one in ("there", "back")))
