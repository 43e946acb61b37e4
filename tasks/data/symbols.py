"""Special symbols of every vocabulary, in fairseq's order. Words start at number 4 in an encoded folder's dict.txt."""

from collections.abc import Iterable, Mapping
from pathlib import Path

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FIRST = len(SPECIAL)  # number of the first word
DICT = "dict.txt"  # in fairseq's format: a word and its count on each line


def frequent(counts: Mapping[str, int], least: int = 1, size: int | None = None) -> list[str]:
    """The words counted at least `least` times, at most `size`, most frequent first; ties are broken alphabetically."""
    return sorted((w for w, n in counts.items() if n >= least), key=lambda w: (-counts[w], w))[:size]


def write_dictionary(path: Path, words: Iterable[tuple[str, int]]) -> None:
    path.write_text("".join(f"{word} {count}\n" for word, count in words), encoding="utf-8", newline="\n")


def read_dictionary(path: Path) -> list[str]:
    """The words, in the order of their numbers."""
    return [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
