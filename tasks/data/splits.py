"""Train, dev and test by content: reproducible without a list of names, and no near duplicate on both sides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Sequence

SHARES = {"dev": 0.05, "test": 0.05}


def normalized(text: str) -> str:
    """Key under which texts count as the same: lower case, letters only, digit runs as one 0."""
    return " ".join(re.sub(r"\d+", "0", re.sub(r"[^\w\s]|_", " ", text.lower())).split())


def split_by_content(keys: Sequence[Iterable[Hashable]], names: Sequence[str]) -> dict[str, list[int]]:
    """Split items so that items sharing a key, directly or through others, land in the same split.

    Groups are the connected components of "shares a key". A group's split is decided by the sha256 of its smallest
    name, and items are ordered by the sha256 of theirs. Both depend on the item alone, so a corpus that grows by some
    items keeps the others where they were, unless a new item joins two groups.

    Args:
        keys: the keys of each item.
        names: a text of each item, unique or nearly so.

    Returns:
        "train", "dev", "test" -> item numbers; about 5 % each for dev and test.
    """
    leader = list(range(len(keys)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    first: dict[Hashable, int] = {}
    for i, own in enumerate(keys):
        for key in own:
            leader[find(i)] = find(first.setdefault(key, i))
    smallest: dict[int, str] = {}
    for i, name in enumerate(names):
        root = find(i)
        smallest[root] = min(name, smallest.get(root, name))
    parts: dict[str, list[int]] = {"train": [], "dev": [], "test": []}
    for i in sorted(range(len(names)), key=lambda i: (_digest(names[i]), names[i])):
        place = int(_digest("group " + smallest[find(i)])[:12], 16) / 16**12
        if place < SHARES["test"]:
            parts["test"].append(i)
        elif place < SHARES["test"] + SHARES["dev"]:
            parts["dev"].append(i)
        else:
            parts["train"].append(i)
    return parts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
