"""Split data into train, dev and test by content: reproducible without lists of names, no near-duplicates in two parts.

Two texts are near-duplicates if they share half of their different words,

    J(a, b) = |a & b| / |a | b| >= 1/2        over the words of `normalized` texts,

which includes nearly all pairs with a difflib similarity of at least .8. Near-duplicates form groups, and all texts of
a group go into the same split. However, near-duplication is not transitive: chains of near-duplicates would join a
third of a manual into one group. Groups are therefore built from the nearest pairs first and never exceed .5 % of the
texts. If a near-duplicate pair still ends up in two splits, the training text (or the dev text, if the other is a test
text) is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

SHARES = {"dev": 0.05, "test": 0.05}
NEAR = 0.5
LARGEST_SHARE = 0.005  # of all texts, in a group joined by near-duplicates
ENOUGH = 500  # items; with fewer, a split without items is due to their number, not to their likeness


@dataclass(frozen=True)
class Parts:
    """Item numbers of each split, items left out (near an item in another split), and the size of the largest group.

    `alike` is 0, or the number of items that were near an item in another split, too many to be left out.
    """

    train: list[int]
    dev: list[int]
    test: list[int]
    left_out: list[int]
    largest: int
    alike: int = 0

    def note(self, what: str) -> str:
        """A sentence about the split for the footer; `what` names the items."""
        n = sum(map(len, (self.train, self.dev, self.test, self.left_out)))
        return (
            f"split by content: {what} that share half of their words are in one split (largest group {self.largest / n:.2%} of them; "
            f"{len(self.left_out):,} left out that were near another split)"
        )


def normalized(text: str) -> str:
    """Key by which texts are compared: lower case, letters only, runs of digits replaced by one 0."""
    return " ".join(re.sub(r"\d+", "0", re.sub(r"[^\w\s]|_", " ", text.lower())).split())


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
    found = [near_pairs(side) for side in texts]
    near = np.concatenate([pairs for pairs, _ in found], axis=1) if found else np.empty((2, 0), dtype=np.int64)
    nearness = np.concatenate([j for _, j in found]) if found else np.empty(0)
    largest = max(LARGEST_SHARE * len(keys), 2)
    for i, k in near[:, np.argsort(-nearness, kind="stable")].T.tolist():
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
    order = sorted(range(len(names)), key=lambda i: (_digest(names[i]), names[i]))
    test, dev, train = ([i for i in order if part[i] == p and not left_out[i]] for p in range(3))
    if len(keys) >= ENOUGH and left_out.any() and not (test and dev and train):
        return replace(split_by_content(keys, names), alike=int(left_out.sum()))
    return Parts(train, dev, test, [i for i in order if left_out[i]], max(map(len, groups.subsets()), default=0))


def near_pairs(texts: Sequence[str], least: float = NEAR) -> tuple[np.ndarray, np.ndarray]:
    """All pairs i < k with J >= `least`, int64 [2, pairs], and their J [pairs]. Texts without words are in no pair.

    Two texts with J >= `least` share a word among the first n - ceil(least n) + 1 of their n words, ordered rarest
    first (prefix filter: Chaudhuri et al. 2006, Bayardo et al. 2007); only pairs that share such a word are compared.
    """
    from scipy import sparse

    words, rarest = _word_matrix(texts)
    size = np.diff(words.indptr)
    head = np.minimum(size - np.ceil(least * size - 1e-9).astype(np.int64) + 1, size)
    within = np.arange(words.nnz) - np.repeat(words.indptr[:-1], size) < np.repeat(head, size)
    ends = np.concatenate([[0], np.cumsum(head)])
    heads = sparse.csr_matrix((np.ones(within.sum(), np.int32), rarest[within], ends), shape=words.shape)
    columns, pairs, nearness = heads.T.tocsc(), [np.empty((2, 0), dtype=np.int64)], [np.empty(0)]
    for start in range(0, len(texts), 2048):
        found = (heads[start : start + 2048] @ columns[:, start:]).tocoo()  # only i < k is wanted
        i, k = found.row.astype(np.int64) + start, found.col.astype(np.int64) + start
        rest = np.maximum(size - head, 0)[np.stack([i, k])].max(0)
        most = found.data + rest  # upper bound of shared words: those seen, and the rest of a text
        fits = (i < k) & (np.minimum(size[i], size[k]) >= least * np.maximum(size[i], size[k]))
        fits &= most * (1 + least) >= least * (size[i] + size[k]) - 1e-9
        i, k = i[fits], k[fits]
        shared = np.asarray(words[i].multiply(words[k]).sum(1)).ravel()
        jaccard = shared / (size[i] + size[k] - shared)
        pairs.append(np.stack([i, k])[:, jaccard >= least])
        nearness.append(jaccard[jaccard >= least])
    return np.concatenate(pairs, axis=1), np.concatenate(nearness)


def _word_matrix(texts: Sequence[str]) -> tuple[Any, np.ndarray]:
    """The words of each text as a 0/1 matrix [texts, words], and its column numbers row by row, rarest word first.

    Ties are broken alphabetically.
    """
    from scipy import sparse

    rows = [sorted(set(normalized(text).split())) for text in texts]
    known = sorted({word for row in rows for word in row})
    number = {word: i for i, word in enumerate(known)}
    ids = np.array([number[word] for row in rows for word in row], dtype=np.int64)
    ends = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    owner = np.repeat(np.arange(len(rows)), np.diff(ends))
    rank = np.empty(len(known), dtype=np.int64)
    rank[np.argsort(np.bincount(ids, minlength=len(known)), kind="stable")] = np.arange(len(known))
    ids = rank[ids]
    ids = ids[np.lexsort((ids, owner))]
    return sparse.csr_matrix((np.ones(len(ids), np.int32), ids, ends), shape=(len(rows), len(known))), ids


def place(key: str) -> float:
    """A number in [0, 1) by which a key is assigned to a split; it depends on the key alone."""
    return int(_digest(key)[:12], 16) / 16**12


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
