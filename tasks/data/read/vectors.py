"""Initial word vectors, read from a file in GloVe's text format or computed from word counts in the training texts."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from tasks.data.errors import DataError
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, numbered

COUNTED = "ppmi"  # used instead of a file name
_DECIMAL = re.compile(
    r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?"
)  # so far left in a line, a number too many; not a word of a phrase
_STEP = "delete the line or give it all its numbers; or name another file: encode.vectors=FILE"
_WINDOW = 5
_SMOOTHING = 0.75
_DEVIATION = 0.35  # standard deviation of one component, about that of GloVe's 300-d vectors


def read_vectors(path: Path, wanted: Collection[str], progress: Progress) -> tuple[list[str], np.ndarray, int]:
    """The wanted words that occur in the file, in file order; their vectors [found, dim] float32; its number of lines.

    The number of dimensions is that of a header line of two numbers (word2vec's format), or that of the first line. Words of
    GloVe 840B may contain spaces, so the numbers are taken from the end of the line. The number of words found is
    printed. Raises DataError if a line does not have the expected numbers, or the file contains no wanted word.
    """
    words: list[str] = []
    rows: list[np.ndarray] = []
    seen: set[str] = set()
    number, dim, expected = 0, 0, "a word and its numbers"
    for number, line in progress.over(numbered(path), f"reading {path.name}"):
        parts = line.rstrip(" ").split(" ")
        if number == 1:
            header = re.fullmatch(r"\d+ (\d+) *", line)
            dim = int(header[1]) if header else len(parts) - 1
            expected = f"a word and {dim} numbers, by the first line"
            if header:
                continue
        extra = len(parts) > dim + 1 and _DECIMAL.fullmatch(parts[-dim - 1])
        if len(parts) <= dim or not dim or extra:
            raise damaged(path, f"it holds {len(parts) - 1} numbers", expected, line=number, step=_STEP)
        word = " ".join(parts[:-dim])
        if word not in wanted or word in seen:
            continue
        try:
            with np.errstate(over="ignore"):
                rows.append(np.array(parts[-dim:], dtype=np.float32))
            whole = np.isfinite(rows[-1]).all()
        except ValueError:
            whole = False
        if not whole:
            raise damaged(path, f"not a vector of {dim} numbers", f"a word and {dim} numbers", line=number)
        words.append(word)
        seen.add(word)
    if not words:
        raise DataError(f"{path.name} has no word of the texts", str(path), "check encode.vectors and encode.lowercase")
    progress.say(f"{path.name} has vectors for {len(words):,} of {len(wanted):,} words of the training texts")
    return words, np.stack(rows), number


def counted_vectors(texts: Iterable[Sequence[str]], words: Sequence[str], dim: int) -> np.ndarray:
    """Vectors [words, dim] float32 of the words, from their co-occurrence counts: positive PMI and truncated SVD.

    Neighbours within five words count 1 / distance. Unwanted words are removed first, and equal texts count once (a
    premise occurs in several pairs). Contexts are smoothed with the power .75, singular values are raised to the power
    1/2, and rows are scaled to the same length: options of Levy, Goldberg & Dagan 2015, which we did not tune. The
    result is deterministic up to rounding, and up to the sign of a component whose largest entries tie. Raises
    DataError if there are fewer than dim + 1 words, or no two of them occur near each other.
    """
    from scipy import sparse
    from scipy.sparse.linalg import svds

    if len(words) <= dim:
        raise DataError(f"{len(words)} words are too few for {dim} dimensions", "", "lower encode.vector_dim")
    index = {word: i for i, word in enumerate(words)}
    rows = [[index[token] for token in text if token in index] for text in dict.fromkeys(map(tuple, texts))]
    ids = np.array([i for row in rows for i in row], dtype=np.int64)
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    size = len(words)
    counts = sparse.csr_matrix((size, size))
    for distance in range(1, _WINDOW + 1):
        near = owner[distance:] == owner[:-distance]
        first, second = ids[:-distance][near], ids[distance:][near]
        pairs = sparse.coo_matrix((np.full(len(first), 1.0 / distance), (first, second)), shape=(size, size)).tocsr()
        counts = counts + pairs + pairs.T
    pairs = counts.tocoo()
    total = np.asarray(counts.sum(1)).ravel()
    context = total**_SMOOTHING
    pmi = np.log(pairs.data * context.sum() / (total[pairs.row] * context[pairs.col]))
    positive = pmi > 0
    matrix = sparse.csr_matrix((pmi[positive], (pairs.row[positive], pairs.col[positive])), shape=(size, size))
    if not matrix.nnz:
        raise DataError("no two words stand near each other", f"{len(rows)} texts", "use random vectors, or more text")
    left, values, _ = svds(matrix, k=dim, v0=np.ones(size))
    vectors = left * np.sqrt(values)
    vectors *= np.sign(vectors[np.abs(vectors).argmax(0), np.arange(dim)])  # a singular vector's sign is arbitrary
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    known = lengths > 1e-8 * lengths.max()  # other words have no neighbours, or only components that were truncated
    return np.where(known, vectors * (_DEVIATION * dim**0.5 / np.where(known, lengths, 1.0)), 0.0).astype(np.float32)
