"""Split data into train, dev and test by content: reproducible without lists of names, no near-duplicates in two parts.

Two texts are near-duplicates if they share half of their different words,

    J(a, b) = |a & b| / |a | b| >= 1/2        over the `words` of the texts,

which includes nearly all pairs with a difflib similarity of at least .8. Near-duplicates form groups, and all texts of
a group go into the same split. However, near-duplication is not transitive: chains of near-duplicates would join a
third of a manual into one group. Groups are therefore built from the nearest pairs first and never exceed .5 % of the
texts. If a near-duplicate pair still ends up in two splits, the training text (or the dev text, if the other is a test
text) is left out.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any
from unicodedata import category, normalize

import numpy as np

SHARES = {"dev": 0.05, "test": 0.05}
NEAR = 0.5
LARGEST_SHARE = 0.005  # largest share of all texts in one group of near-duplicates
# Scripts without spaces between words: Chinese and Japanese; Thai, Lao, Burmese, Khmer, Javanese. Their n-grams, n = 2 or 3, are words.
HAN = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
SOUTHEAST = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua980-\ua9df"
UNSPACED = re.compile(f"([{HAN}]+)|[{SOUTHEAST}]+")
_SIGNS = re.compile(r"(?<=[^\W_])([^\w\s]+)|[^\w\s]|_")
MOST_PAIRS = 100_000_000  # that are compared one by one; the time and memory of more are not spent
BANDS, NEIGHBOURS = 12, 2  # of `_likely_pairs`, which finds most pairs, but not all
BLOCK = 500_000  # pairs
SAMPLE, OTHERS = 300, 20_000  # texts of a sample, and the texts that they are compared with
NEARLY_ALL = 0.5  # largest share of a sample that may be near too many others
ENOUGH = 500  # items; with fewer, a split may be empty by chance, not because texts are alike


@dataclass(frozen=True)
class Parts:
    """Numbers of the items of each split and of those left out (near an item in another split); size of the largest group.

    `alike`: number of items near an item in another split, if they are too many to leave out; otherwise 0.
    `crowded`: not all pairs were compared (`MOST_PAIRS`); `alike` is then estimated, and `missed` is an estimate of the share
    of train that is near an item in dev or test all the same.
    """

    train: list[int]
    dev: list[int]
    test: list[int]
    left_out: list[int]
    largest: int
    alike: int = 0
    crowded: bool = False
    missed: float = 0.0

    def of(self, items: Sequence[Any]) -> dict[str, list[Any]]:
        """The items of each split."""
        return {split: [items[i] for i in getattr(self, split)] for split in ("train", "dev", "test")}

    def note(self, what: str) -> str:
        """A sentence about the split for the footer; `what` names the items."""
        n = sum(map(len, (self.train, self.dev, self.test, self.left_out)))
        return (
            f"split by content: {what} that share half of their words are in one split (largest group {self.largest / n:.2%} of them; "
            f"{len(self.left_out):,} left out that were near another split)"
        ) + self._missed()

    def _missed(self) -> str:
        told = f"; too many texts have the same words to compare all pairs, so about {self.missed:.1%} of train may still be near dev or test"
        return told if self.crowded else ""


def normalized(text: str) -> str:
    """Key by which texts are compared: Unicode NFC, without case; letters and their marks only, a 0 for a run of digits."""
    if text.isascii():  # no combining marks, so this is 2.5 times as fast
        bare = re.sub(r"[\W_]+", " ", text.lower())
    else:
        bare = _SIGNS.sub(_marks, normalize("NFC", text).casefold())
    return " ".join(re.sub(r"\d+", "0", bare).split())


def _marks(signs: re.Match) -> str:
    """The combining marks and joiners after a letter, such as vowel signs; the other signs become a space."""
    found = "".join(takewhile(lambda sign: sign in "\u200c\u200d" or category(sign)[0] == "M", signs[1] or ""))
    return found if found == signs[0] else f"{found} "


def words(text: str) -> list[str]:
    """The words of a `normalized` text; where there are no spaces, its pairs or triples of neighbouring characters."""

    def grams(run: re.Match) -> str:
        n = 2 if run[1] else 3
        return f" {' '.join(run[0][i : i + n] for i in range(max(len(run[0]) - n, 0) + 1))} "

    text = normalized(text)
    return (text if text.isascii() else UNSPACED.sub(grams, text)).split()


def split_by_content(
    keys: Sequence[Iterable[Hashable]], names: Sequence[str], texts: Sequence[Sequence[str]] = ()
) -> Parts:
    """Split items so that near-duplicates, and items that share a key (directly or via others), are in the same split.

    The split of a group is determined by the sha256 of its smallest name, and items are ordered by the sha256 of their
    names. Both depend only on the items themselves: if a corpus grows, existing items stay in their splits, unless
    groups change.

    Args:
        keys: the keys of each item.
        names: a text for each item, unique or nearly so.
        texts: one list per side that is searched for near-duplicates, with the text of each item.

    Returns:
        a split with about 5 % of the items each in dev and test; by the keys alone if nearly all items are near-duplicates.
    """
    from scipy.cluster.hierarchy import DisjointSet

    groups = DisjointSet(range(len(keys)))
    first: dict[Hashable, int] = {}
    for i, own in enumerate(keys):
        for key in own:
            groups.merge(i, first.setdefault(key, i))
    sides = [_word_matrix(side) for side in texts]
    crowded = any(_candidates(*side).sum() > 2 * MOST_PAIRS for side in sides)
    if crowded and any(_near_too_many(side[0]) for side in sides):
        return replace(split_by_content(keys, names), alike=len(keys), crowded=True)
    found = [_likely_pairs(side[0]) if crowded else _near_pairs(*side) for side in sides]
    near = np.concatenate([pairs for pairs, _ in found], axis=1) if found else np.empty((2, 0), dtype=np.int64)
    nearness = np.concatenate([j for _, j in found]) if found else np.empty(0)
    largest = max(LARGEST_SHARE * len(keys), 2)
    for i, k in map(np.ndarray.tolist, near[:, np.argsort(-nearness, kind="stable")].T):
        if groups.subset_size(i) + groups.subset_size(k) <= largest:
            groups.merge(i, k)
    smallest: dict[int, str] = {}
    for i, name in enumerate(names):
        smallest[groups[i]] = min(name, smallest.get(groups[i], name))
    places = [place(f"group {smallest[groups[i]]}") for i in range(len(keys))]
    part = np.searchsorted(np.cumsum([SHARES["test"], SHARES["dev"]]), places, side="right")  # 0 test, 1 dev, 2 train
    left_out = np.zeros(len(keys), dtype=bool)
    for one, other in ((near[0], near[1]), (near[1], near[0])):
        left_out[one[part[one] > part[other]]] = True
    missed = max((_near_share(side[0], part, left_out) for side in sides), default=0.0) if crowded else 0.0
    if missed > NEARLY_ALL:
        return replace(split_by_content(keys, names), alike=round(missed * len(keys)), crowded=True)
    order = sorted(range(len(names)), key=lambda i: (_digest(names[i]), names[i]))
    test, dev, train = ([i for i in order if part[i] == p and not left_out[i]] for p in range(3))
    if len(keys) >= ENOUGH and left_out.any() and not (test and dev and train):
        return replace(split_by_content(keys, names), alike=int(left_out.sum()))
    largest_group = max(Counter(groups[i] for i in range(len(keys))).values(), default=0)
    return Parts(train, dev, test, [i for i in order if left_out[i]], largest_group, 0, crowded, round(missed, 3))


def near_pairs(texts: Sequence[str], least: float = NEAR) -> tuple[np.ndarray, np.ndarray]:
    """All pairs i < k with J >= `least`, int64 [2, pairs], and their J [pairs]. Texts without words are in no pair.

    Two texts with J >= `least` share a word among the first n - ceil(least n) + 1 of their n words, ordered rarest
    first (prefix filter: Chaudhuri et al. 2006, Bayardo et al. 2007); only pairs that share such a word are compared.
    """
    return _near_pairs(*_word_matrix(texts), least)


def _near_pairs(matrix: Any, rarest: np.ndarray, least: float = NEAR) -> tuple[np.ndarray, np.ndarray]:
    from scipy import sparse

    size, (within, head) = np.diff(matrix.indptr), _heads(matrix, least)
    ends = np.concatenate([[0], np.cumsum(head)])
    heads = sparse.csr_matrix((np.ones(within.sum(), np.int32), rarest[within], ends), shape=matrix.shape)
    columns, pairs, nearness = heads.T.tocsc(), [np.empty((2, 0), dtype=np.int64)], [np.empty(0)]
    work = np.concatenate([[0], np.cumsum(_candidates(matrix, rarest, least))])
    stop = 0
    while (start := stop) < matrix.shape[0]:
        stop = max(start + 1, min(start + 2048, int(np.searchsorted(work, work[start] + BLOCK * 8, side="right")) - 1))
        found = (heads[start:stop] @ columns[:, start:]).tocoo()  # only i < k is wanted
        i, k = found.row.astype(np.int64) + start, found.col.astype(np.int64) + start
        rest = np.maximum(size - head, 0)[np.stack([i, k])].max(0)
        most = found.data + rest  # upper bound of the shared words: those that the prefixes share, plus the longer rest
        fits = (i < k) & (np.minimum(size[i], size[k]) >= least * np.maximum(size[i], size[k]))
        fits &= most * (1 + least) >= least * (size[i] + size[k]) - 1e-9
        i, k = i[fits], k[fits]
        jaccard = _jaccard(matrix, i, k)
        pairs.append(np.stack([i, k])[:, jaccard >= least])
        nearness.append(jaccard[jaccard >= least])
    return np.concatenate(pairs, axis=1), np.concatenate(nearness)


def _candidates(matrix: Any, rarest: np.ndarray, least: float = NEAR) -> np.ndarray:
    """For each text, how many texts it is compared with, counted again for each rare word that both have."""
    within, head = _heads(matrix, least)
    times = np.bincount(rarest[within], minlength=1).astype(np.int64)
    each = np.concatenate([[0], np.cumsum(times[rarest[within]])])
    ends = np.cumsum(head)
    return each[ends] - each[ends - head]


def _heads(matrix: Any, least: float = NEAR) -> tuple[np.ndarray, np.ndarray]:
    """Which of the words, row by row and rarest first, are compared, bool [words of all texts]; their number per text."""
    size = np.diff(matrix.indptr)
    head = np.minimum(size - np.ceil(least * size - 1e-9).astype(np.int64) + 1, size)
    return np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], size) < np.repeat(head, size), head


def _likely_pairs(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pairs as of `near_pairs`, in bounded time and memory: not all of them, and each text has few partners.

    MinHash (Broder 1997): the smallest hash of two texts' words is the same with probability J. In each of BANDS bands,
    texts with two equal minima are neighbours in a list sorted by four; each is compared with its next NEIGHBOURS there.
    """
    rng, found = np.random.default_rng(0), []
    filled = np.flatnonzero(np.diff(matrix.indptr))
    for _ in range(BANDS if len(filled) else 0):
        minima = []
        for _ in range(4):
            value = rng.permutation(matrix.shape[1]).astype(np.uint32)
            minima.append(np.minimum.reduceat(value[matrix.indices], matrix.indptr[filled]).astype(np.uint64))
        key, then = (a * np.uint64(matrix.shape[1]) + b for a, b in (minima[:2], minima[2:]))
        order = np.lexsort((then, key))
        for step in range(1, NEIGHBOURS + 1):
            i, k = order[:-step], order[step:]
            same = key[i] == key[k]
            found.append(filled[np.stack([i[same], k[same]])].astype(np.int32))
    pairs = np.concatenate(found, axis=1) if found else np.empty((2, 0), dtype=np.int32)
    del found
    one = np.unique(pairs.min(0).astype(np.int64) * matrix.shape[0] + pairs.max(0))
    i, k = np.divmod(one, matrix.shape[0])
    near, nearness = [], []
    for start in range(0, len(one), BLOCK):
        block = slice(start, start + BLOCK)
        jaccard = _jaccard(matrix, i[block], k[block])
        near.append(np.stack([i[block], k[block]])[:, jaccard >= NEAR])
        nearness.append(jaccard[jaccard >= NEAR])
    empty = [np.empty((2, 0), dtype=np.int64)]
    return np.concatenate(empty + near, axis=1), np.concatenate([np.empty(0), *nearness])


def _jaccard(matrix: Any, i: np.ndarray, k: np.ndarray) -> np.ndarray:
    size = np.diff(matrix.indptr)
    shared = np.asarray(matrix[i].multiply(matrix[k]).sum(1)).ravel()
    return shared / (size[i] + size[k] - shared)


def _near_too_many(matrix: Any) -> bool:
    """Whether most texts are near more texts than a group may hold, judged by a sample."""
    order = np.random.default_rng(0).permutation(matrix.shape[0])
    counts = _near_counts(matrix, order[:SAMPLE], order[SAMPLE : SAMPLE + OTHERS])
    return bool(np.mean(counts > LARGEST_SHARE * len(order[SAMPLE : SAMPLE + OTHERS])) > NEARLY_ALL)


def _near_share(matrix: Any, part: np.ndarray, left_out: np.ndarray) -> float:
    """The share of a sample of train that is near a text of dev or test; 1 if a split is empty."""
    train, other = np.flatnonzero((part == 2) & ~left_out), np.flatnonzero(part < 2)
    if not len(train) or not len(other):
        return 1.0
    return float((_near_counts(matrix, np.random.default_rng(0).permutation(train)[:SAMPLE], other) > 0).mean())


def _near_counts(matrix: Any, texts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each of these texts, the number of others that are near it."""
    size, columns = np.diff(matrix.indptr), matrix[others].T.tocsc()
    counts = np.zeros(len(texts), dtype=np.int64)
    for n, i in enumerate(texts):
        shared = (matrix[i] @ columns).toarray().ravel()
        counts[n] = np.sum((shared > 0) & (shared >= NEAR * (size[i] + size[others] - shared) - 1e-9))
    return counts


def _word_matrix(texts: Sequence[str]) -> tuple[Any, np.ndarray]:
    """The words of each text as a 0/1 matrix [texts, words], and its column numbers row by row, rarest word first.

    Ties are broken alphabetically.
    """
    from scipy import sparse
    from sklearn.feature_extraction.text import CountVectorizer

    if not any(map(words, texts)):
        return sparse.csr_matrix((len(texts), 1), dtype=np.int32), np.empty(0, dtype=np.int64)
    matrix = CountVectorizer(analyzer=words, binary=True, dtype=np.int32).fit_transform(texts)
    rank = np.argsort(np.argsort(np.bincount(matrix.indices), kind="stable"))
    ids, owner = rank[matrix.indices], np.repeat(np.arange(len(texts)), np.diff(matrix.indptr))
    return matrix, ids[np.lexsort((ids, owner))]


def place(key: str) -> float:
    """A number in [0, 1) by which a key is assigned to a split; it depends only on the key."""
    return int(_digest(key)[:12], 16) / 16**12


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
