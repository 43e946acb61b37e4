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
from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any
from unicodedata import category, normalize
from zlib import crc32

import numpy as np

SHARES = {"dev": 0.05, "test": 0.05}
NEAR = 0.5
LARGEST_SHARE = 0.005  # largest share of all texts in one group of near-duplicates
# Scripts without spaces between words: Chinese and Japanese; Thai, Lao, Burmese, Khmer, Javanese. Their n-grams, n = 2 or 3, are words.
HAN = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
SOUTHEAST = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua980-\ua9df"
UNSPACED = re.compile(f"([{HAN}]+)|[{SOUTHEAST}]+")
_ASCII = {i: "0" if chr(i).isdigit() else chr(i).lower() if chr(i).isalpha() else " " for i in range(128)}
_SIGNS = re.compile(r"(?<=[^\W_])([^\w\s]+)|[^\w\s]|_")
MOST_PAIRS = 100_000_000  # that are compared one by one; the time and memory of more are not spent
MOST_WORDS = 1_000_000  # different words that are kept apart
MINIMA, BANDS, ROWS, LIKELY, MOST_LIKELY = 32, 64, 4, 10, 10  # of `_likely_pairs`
BLOCK = 200_000  # pairs
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
        said = (
            f"split by content: {what} that share half of their words are in one split (largest group {self.largest / n:.2%} of them; "
            f"{len(self.left_out):,} left out that were near another split)"
        )
        if self.crowded:
            said += "; approximate (MinHash), since too many texts have the same words to compare all pairs: "
            said += f"about {self.missed:.1%} of train may still be near dev or test"
        return said


def normalized(text: str) -> str:
    """Key by which texts are compared: Unicode NFC, without case; letters and their marks only, a 0 for a run of digits."""
    if text.isascii():  # no combining marks, so this is 2.5 times as fast
        bare = text.translate(_ASCII)
        return " ".join((re.sub("00+", "0", bare) if "00" in bare else bare).split())
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
    groups = _Groups(len(keys))
    first: dict[Hashable, int] = {}
    for i, own in enumerate(keys):
        for key in own:
            groups.merge(i, first.setdefault(key, i))
    sides = [word_matrix(side) for side in texts]
    work = max((_work(_heads(side)).sum() for side in sides), default=0)
    if work > MOST_PAIRS / 5 and any(map(_near_too_many, sides)):
        return replace(split_by_content(keys, names), alike=len(keys), crowded=True)
    crowded = bool(work > 2 * MOST_PAIRS) or any(side.shape[1] >= MOST_WORDS for side in sides)
    found = [_likely_pairs(side) if crowded else near_pairs(side) for side in sides]
    near = np.concatenate([pairs for pairs, _ in found], axis=1) if found else np.empty((2, 0), dtype=np.int64)
    order = np.argsort(-np.concatenate([j for _, j in found]), kind="stable") if found else near[0]
    largest = max(LARGEST_SHARE * len(keys), 2)
    for start in range(0, len(order), BLOCK):
        for i, k in near[:, order[start : start + BLOCK]].T.tolist():
            groups.merge(i, k, largest)
    roots = [groups.root(i) for i in range(len(keys))]
    smallest: dict[int, str] = {}
    for i, name in zip(roots, names):
        smallest[i] = min(name, smallest.get(i, name))
    places = {i: place(f"group {name}") for i, name in smallest.items()}
    ends = np.cumsum([SHARES["test"], SHARES["dev"]])
    part = np.searchsorted(ends, [places[i] for i in roots], side="right")  # 0 test, 1 dev, 2 train
    left_out = np.zeros(len(keys), dtype=bool)
    for one, other in ((near[0], near[1]), (near[1], near[0])):
        left_out[one[part[one] > part[other]]] = True
    missed = max((_near_share(side, part, left_out) for side in sides), default=0.0) if crowded else 0.0
    if missed > NEARLY_ALL:
        return replace(split_by_content(keys, names), alike=round(missed * len(keys)), crowded=True)
    del sides, found, near, order, places, smallest  # the lists that follow take as much memory
    ordered = sorted(range(len(names)), key=lambda i: (_digest(names[i]), names[i]))
    test, dev, train = ([i for i in ordered if part[i] == p and not left_out[i]] for p in range(3))
    if len(keys) >= ENOUGH and left_out.any() and not (test and dev and train):
        return replace(split_by_content(keys, names), alike=int(left_out.sum()))
    out = [i for i in ordered if left_out[i]]
    return Parts(train, dev, test, out, max(groups.sizes, default=0), 0, crowded, round(missed, 3))


class _Groups:
    """Disjoint sets of the numbers below n, by their roots (Tarjan 1975)."""

    def __init__(self, n: int) -> None:
        self.parents, self.sizes = list(range(n)), [1] * n

    def root(self, i: int) -> int:
        while (above := self.parents[i]) != i:
            self.parents[i] = i = self.parents[above]
        return i

    def merge(self, i: int, k: int, largest: float = float("inf")) -> None:
        """Join two sets, unless they have more than `largest` numbers together."""
        i, k = self.root(i), self.root(k)
        if i != k and self.sizes[i] + self.sizes[k] <= largest:
            few, many = sorted((i, k), key=self.sizes.__getitem__)
            self.parents[few] = many
            self.sizes[many] += self.sizes[few]


def near_pairs(matrix: Any, least: float = NEAR) -> tuple[np.ndarray, np.ndarray]:
    """All pairs i < k with J >= `least`, int64 [2, pairs], and their J [pairs]. Texts without words are in no pair.

    Two texts with J >= `least` share a word among the first n - ceil(least n) + 1 of their n words, ordered rarest
    first (prefix filter: Chaudhuri et al. 2006, Bayardo et al. 2007); only pairs that share such a word are compared.

    Args:
        matrix: of `word_matrix`.
    """
    heads = _heads(matrix, least)
    size, head, columns = np.diff(matrix.indptr), np.diff(heads.indptr), heads.T.tocsr()
    work, pairs, nearness, stop = np.concatenate([[0], np.cumsum(_work(heads))]), [], [], 0
    while (start := stop) < matrix.shape[0]:
        stop = max(start + 1, min(start + 2048, int(np.searchsorted(work, work[start] + BLOCK * 20, side="right")) - 1))
        found = (heads[start:stop] @ columns[:, start:]).tocoo()  # only i < k is wanted
        i, k = found.row.astype(np.int64) + start, found.col.astype(np.int64) + start
        rest = np.maximum(size - head, 0)[np.stack([i, k])].max(0)
        most = found.data + rest  # upper bound of the shared words: those that the prefixes share, plus the longer rest
        fits = (i < k) & (np.minimum(size[i], size[k]) >= least * np.maximum(size[i], size[k]))
        fits &= most * (1 + least) >= least * (size[i] + size[k]) - 1e-9
        near, j = _nearer(matrix, i[fits], k[fits], least)
        pairs.append(near)
        nearness.append(j)
    return np.concatenate([np.empty((2, 0), dtype=np.int64), *pairs], axis=1), np.concatenate([np.empty(0), *nearness])


def _heads(matrix: Any, least: float = NEAR) -> Any:
    """The words of each text that are compared, its rarest: int32 0/1 [texts, words]."""
    from scipy import sparse

    size = np.diff(matrix.indptr)
    head = np.minimum(size - np.ceil(least * size - 1e-9).astype(np.int64) + 1, size)
    within = np.repeat(np.tile([True, False], len(size)), np.stack([head, size - head], 1).ravel())
    ends, indices = np.concatenate([[0], np.cumsum(head)]), matrix.indices[within]
    return sparse.csr_matrix((np.ones(len(indices), np.int32), indices, ends), shape=matrix.shape)


def _work(heads: Any) -> np.ndarray:
    """For each text, how many texts it is compared with, counted again for each rare word that both have."""
    return heads @ np.bincount(heads.indices, minlength=heads.shape[1])


def _likely_pairs(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pairs as of `near_pairs`, in bounded time and memory: most of the groups, not all of the pairs.

    MinHash (Broder 1997): the smallest hash of two texts' words is the same with probability J. There are MINIMA hashes. In
    each of BANDS bands, texts with the same smallest value of ROWS hashes are compared with the next such text; of these
    pairs, those that share LIKELY minima are kept, and J is computed. It ends early once there are MOST_LIKELY pairs a text.
    """
    rng, filled, minima = np.random.default_rng(0), np.flatnonzero(np.diff(matrix.indptr)), []
    for _ in range(MINIMA):
        value = rng.permutation(matrix.shape[1]).astype(np.uint32)
        minima.append(np.minimum.reduceat(value[matrix.indices], matrix.indptr[filled]))
    bytes_, found = np.stack([one.astype(np.uint8) for one in minima], 1), [np.empty(0, np.int64)]
    number, bits = np.arange(len(filled), dtype=np.uint64), np.uint64(len(filled).bit_length())
    for _ in range(BANDS):
        odd = rng.integers(1 << 63, size=ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        mixed = sum(minima[m].astype(np.uint64) * one for m, one in zip(rng.permutation(MINIMA), odd))
        ordered = np.sort(
            mixed >> bits << bits | number
        )  # the number in the lowest bits, so that no order is left open
        same = np.flatnonzero(ordered[1:] >> bits == ordered[:-1] >> bits)
        own = (ordered & (np.uint64(1) << bits) - np.uint64(1)).astype(np.int64)
        i, k = own[same], own[same + 1]
        likely = (bytes_[i] == bytes_[k]).sum(1) >= LIKELY
        found.append(filled[i[likely]] * matrix.shape[0] + filled[k[likely]])  # i < k
        if sum(map(len, found)) > MOST_LIKELY * matrix.shape[0]:
            break
    return _nearer(matrix, *np.divmod(np.unique(np.concatenate(found)), matrix.shape[0]))


def _nearer(matrix: Any, i: np.ndarray, k: np.ndarray, least: float = NEAR) -> tuple[np.ndarray, np.ndarray]:
    """Those of the pairs i, k with J >= `least`, int64 [2, pairs], and their J."""
    size, jaccard = np.diff(matrix.indptr), np.empty(len(i))
    for start in range(0, len(i), BLOCK):
        one, other = i[start : start + BLOCK], k[start : start + BLOCK]
        shared = np.asarray(matrix[one].multiply(matrix[other]).sum(1)).ravel()
        jaccard[start : start + BLOCK] = shared / (size[one] + size[other] - shared)
    return np.stack([i, k])[:, jaccard >= least], jaccard[jaccard >= least]


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
    size, columns = np.diff(matrix.indptr), matrix[others].T.tocsr().astype(np.int32)
    counts = np.zeros(len(texts), dtype=np.int64)
    for n, i in enumerate(texts):
        shared = (matrix[i] @ columns).toarray().ravel()
        counts[n] = np.sum((shared > 0) & (shared >= NEAR * (size[i] + size[others] - shared) - 1e-9))
    return counts


def word_matrix(texts: Sequence[str]) -> Any:
    """The words of each text as an int8 0/1 matrix [texts, words]; its columns are in order, rarest word first.

    Ties are broken alphabetically. Words after the first MOST_WORDS share columns: the memory of more is not spent.
    """
    from scipy import sparse

    known: dict[str, int] = {}
    ids, ends = array("i"), array("q", [0])
    for text in texts:
        new = {*words(text)}
        if len(known) < MOST_WORDS:
            ids.extend([known.setdefault(word, len(known)) for word in new])
        else:
            ids.extend({known.get(word, crc32(word.encode("utf-8", "surrogatepass")) % MOST_WORDS) for word in new})
        ends.append(len(ids))
    numbers = np.frombuffer(ids, dtype=np.int32) if ids else np.empty(0, np.int32)
    alphabet = np.empty(len(known), np.int32)
    alphabet[[known[word] for word in sorted(known)]] = np.arange(len(known))
    rank = np.empty_like(alphabet)
    rank[np.lexsort((alphabet, np.bincount(numbers, minlength=len(known))))] = np.arange(len(known))
    shape = len(texts), max(len(known), 1)
    del known, alphabet
    matrix = sparse.csr_matrix((np.ones(len(ids), np.int8), rank[numbers], np.frombuffer(ends, np.int64)), shape=shape)
    matrix.sort_indices()
    return matrix


def place(key: str) -> float:
    """A number in [0, 1) by which a key is assigned to a split; it depends only on the key."""
    return int(_digest(key)[:12], 16) / 16**12


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
