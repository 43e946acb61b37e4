"""Special symbols of every vocabulary, in fairseq's order. Words start at number 4 in an encoded folder's dict.txt."""

from collections.abc import Iterable
from pathlib import Path

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FIRST = len(SPECIAL)  # number of the first word
DICT = "dict.txt"  # in fairseq's format: a word and its count on each line


def write_dictionary(path: Path, words: Iterable[tuple[str, int]]) -> None:
    path.write_text("".join(f"{word} {count}\n" for word, count in words), encoding="utf-8", newline="\n")


def read_dictionary(path: Path) -> list[str]:
    """The words, in the order of their numbers."""
    return [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
