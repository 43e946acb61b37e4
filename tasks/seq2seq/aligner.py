"""Word alignment by the model of fast_align (Dyer, Chahuneau & Smith 2013), vectorised: IBM model 2 that prefers the diagonal.

    p(f_i, a_i = j | e) = t(f_i | e_j) d(j | i, m, n)        i of m target words, j of n source words; t by type
    d(0) = p0,  d(j) = (1 - p0) exp(-lam |i/m - j/n|) / Z     0: linked to nothing

EM with the settings of `fast_align -d -o -v`, which Malaviya et al. 2018 used: p0 = .08, five iterations, lam from 4 on by
gradient steps, a Dirichlet prior of .01 on t (variational Bayes). One model a direction; the two best alignments are made
symmetric by grow-diag-final-and (Koehn et al. 2003). Deterministic; memory: 4 bytes a pair of words of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import digamma

from tasks.data.errors import DataError

P0, LAM, LEAST, MOST, ALPHA, RATE, STEPS = 0.08, 4.0, 0.1, 14.0, 0.01, 20.0, 8  # of fast_align
UNSEEN, SMALLEST = 1e-9, 1e-7  # t of a pair never seen; t below which a pair is forgotten
CHUNK = 2_000_000  # pairs of words looked at together
Links = set[tuple[int, int]]
Rows = Sequence[np.ndarray]


@dataclass
class _Chunk:
    """Sentences laid flat: for every target word the source words it may come from, nothing (id `null`) first.

    key: [pairs] source id * width + target id. begins: [target words] where each one's pairs begin. feature: [pairs]
    -|i/m - j/n|. none: [pairs] whether it is the pair with nothing. place: [pairs] j - 1, -1 for nothing.
    """

    key: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    feature: np.ndarray
    none: np.ndarray
    place: np.ndarray

    def prior(self, lam: float) -> np.ndarray:
        """d of every pair."""
        p = np.where(self.none, 0.0, np.exp(lam * self.feature))
        p *= np.repeat((1 - P0) / np.add.reduceat(p, self.begins), self.counts)
        return np.where(self.none, P0, p)


def _chunks(source: Rows, target: Rows, null: int, width: int) -> Iterator[tuple[list[int], _Chunk]]:
    """Sentences by number, and laid flat; those with an empty side are passed over."""
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
    starts = np.concatenate(([0], np.cumsum(n + 1)[:-1]))  # of the sentences in `words`
    of = np.repeat(np.arange(len(held)), m)  # target word -> sentence
    i = np.arange(len(of)) - np.repeat(np.cumsum(m) - m, m) + 1
    counts = n[of] + 1
    begins = np.cumsum(counts) - counts
    token = np.repeat(np.arange(len(of)), counts)
    j = np.arange(len(token)) - begins[token]
    f = np.concatenate([target[k] for k in held]).astype(np.int64)
    key = words[starts[of[token]] + j] * width + f[token]
    feature = -np.abs((i / m[of])[token] - j / n[of[token]])
    return _Chunk(key, begins, counts, feature, j == 0, j - 1)


@dataclass
class Direction:
    """t as sorted keys [K] and their probabilities [K], and lam; `null`, `width`: see `_Chunk`."""

    keys: np.ndarray
    t: np.ndarray
    lam: float
    null: int
    width: int

    def best(self, source: Rows, target: Rows) -> list[np.ndarray]:
        """For each sentence [m] the source word of each target word, -1: none."""
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
    """The model of one direction; rows of ids below `sizes`."""
    null, width = sizes
    chunks = [chunk for _, chunk in _chunks(source, target, null, width)]
    if not chunks:
        raise DataError("nothing can be aligned", "no training pair has words on both sides", "check the training data")
    keys = np.unique(np.concatenate([np.unique(chunk.key) for chunk in chunks]))
    for chunk in chunks:
        chunk.key = np.searchsorted(keys, chunk.key).astype(np.int32)
    shapes = np.unique(
        [(len(t), len(s)) for s, t in zip(source, target) if len(s) and len(t)], axis=0, return_counts=True
    )
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
            moment += float((weight * chunk.feature)[~chunk.none].sum())
            linked += len(chunk.begins)
        if iteration:
            lam = _tension(lam, moment / linked, *shapes)
        total = np.add.reduceat(counts + ALPHA, begins)
        t = np.exp(digamma(counts + ALPHA) - np.repeat(digamma(total), spread))
    keep = t > SMALLEST
    return Direction(keys[keep], t[keep].astype(np.float32), lam, null, width)


def _tension(lam: float, observed: float, shapes: np.ndarray, counts: np.ndarray) -> float:
    """fast_align's gradient steps: lam for which the model expects the observed mean of -|i/m - j/n|."""
    m, n = shapes.T
    of = np.repeat(np.arange(len(m)), m)
    i = np.arange(len(of)) - np.repeat(np.cumsum(m) - m, m) + 1
    begins = np.cumsum(n[of]) - n[of]
    j = np.arange(n[of].sum()) - np.repeat(begins, n[of]) + 1
    feature = -np.abs(np.repeat(i / m[of], n[of]) - j / np.repeat(n[of], n[of]))
    weight, words = counts[of], float((counts * m).sum())
    for _ in range(STEPS):
        e = np.exp(lam * feature)
        expected = np.add.reduceat(e * feature, begins) / np.add.reduceat(e, begins)
        lam += RATE * (observed - float((expected * weight).sum()) / words)
        lam = min(max(lam, LEAST), MOST)
    return lam


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """Links (source, target) of both directions: their intersection, grown by neighbours in the union, then by links whose words
    both have none yet (Koehn et al. 2003)."""
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
    """Both directions: source to target, and back."""

    there: Direction
    back: Direction

    def align(self, source: Rows, target: Rows) -> list[Links]:
        """Links (source word, target word) of each sentence, symmetrised; also of pairs that were not trained on."""
        there, back = self.there.best(source, target), self.back.best(target, source)
        return [
            grow_diag_final_and(
                {(int(s), t) for t, s in enumerate(one) if s >= 0}, {(s, int(t)) for s, t in enumerate(other) if t >= 0}
            )
            for one, other in zip(there, back)
        ]

    def save(self, path: Path) -> None:
        both = {"there": self.there, "back": self.back}
        np.savez(path, **{f"{name}_{k}": v for name, one in both.items() for k, v in vars(one).items()})


def train(source: Rows, target: Rows, sizes: tuple[int, int]) -> Aligner:
    """Learn from pairs of rows of ids below `sizes`. Raises DataError where there is nothing to align."""
    return Aligner(fit(source, target, sizes), fit(target, source, (sizes[1], sizes[0])))


def load(path: Path) -> Aligner:
    """What `Aligner.save` wrote."""
    with np.load(path) as held:
        made = [
            Direction(
                held[f"{name}_keys"], held[f"{name}_t"], float(held[f"{name}_lam"]), int(held[f"{name}_null"]),
                int(held[f"{name}_width"]),
            )
            for name in ("there", "back")
        ]  # fmt: skip
    return Aligner(*made)
