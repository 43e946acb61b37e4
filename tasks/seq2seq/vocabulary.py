"""Vocabularies: words by frequency, in files that fairseq reads as its dictionaries ("word count" a line).

Ids are fairseq's: the special symbols of `tasks.data.symbols`, then the words. A text's own "<unk>" is the unknown
word, as in OpenNMT; its other special symbols are unknown words too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tasks.data.symbols import FIRST, SPECIAL

SIDES = ("source", "target")


def ranked(counts: Counter, size: int | None, min_count: int) -> list[tuple[str, int]]:
    """(word, count) of the `size` (None: all) most frequent words, `min_count` times or more; ties by spelling."""
    words = [(word, count) for word, count in counts.items() if count >= min_count and word not in SPECIAL]
    return sorted(words, key=lambda item: (-item[1], item[0]))[:size]


def write_dictionary(path: Path, words: list[tuple[str, int]]) -> None:
    """Write a dict.txt."""
    path.write_text("".join(f"{word} {count}\n" for word, count in words), encoding="utf-8", newline="\n")


def read_dictionary(path: Path) -> list[str]:
    """The words of a dict.txt; the first has id 4."""
    return [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def ids(words: list[str]) -> dict[str, int]:
    """Word -> id."""
    return {word: i for i, word in enumerate(words, FIRST)}
