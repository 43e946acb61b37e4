"""Encode labelled texts as arrays of ids: tokenise, truncate, build the vocabulary, look up pretrained vectors.

The vocabulary and the vectors come only from the training texts, so that a trained model knows nothing about its test
sets. The first ids are the special symbols of `tasks.data.symbols`; the words of dict.txt have the ids from 4 on. The
end symbol separates two texts.
"""

import dataclasses
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repro.options import plain, read
from tasks.classification.options import Encode
from tasks.data import DataError, DataSet, Progress, content_sha256
from tasks.data.cache import copy_files, keep, read_meta
from tasks.data.dataset import fingerprint
from tasks.data.pieces import fitted, learn_pieces, opened
from tasks.data.ragged import Ragged, TokenLines, open_tokens, write_tokens
from tasks.data.read import formats
from tasks.data.read.own import setting
from tasks.data.read.vectors import COUNTED, counted_vectors, read_vectors
from tasks.data.records import Example
from tasks.data.symbols import DICT, FIRST, SPECIAL, UNK, frequent, read_dictionary, write_dictionary
from tasks.encoding import Build, encoders, split_of

Texts = Sequence[Sequence[str]]  # tokens of each text
EMPTY = "<empty>"  # a text without tokens is read as this one
# NLTK's WordPunctTokenizer: tokens are runs of letters, digits and underscores, or runs of other visible characters.
_WORD_PUNCT = re.compile(r"\w+|[^\w\s]+")
JOINERS = "\u200c\u200d"
_BREAK = re.compile(r"<\s*br\s*/?\s*>", re.I)


def wordpunct(text: str) -> list[str]:
    r"""Split a text into words and runs of punctuation, like NLTK's WordPunctTokenizer, but keep marks in their words.

    Marks are vowel signs and decomposed accents, which Python's \w lacks, and the joiners of Persian and Indic words.
    """
    if text.isascii() or not (marks := {c for c in text if c in JOINERS or unicodedata.category(c)[0] == "M"}):
        return _WORD_PUNCT.findall(text)
    inside = "".join(marks)  # neither is special inside [...]
    return re.findall(rf"[\w{inside}]+|[^\w\s{inside}]+", text)


def characters(text: str) -> list[str]:
    """The visible characters of a text, each with its marks."""
    found: list[str] = []
    for c in text:
        if found and (c in JOINERS or unicodedata.category(c)[0] == "M"):
            found[-1] += c
        elif not c.isspace():
            found.append(c)
    return found


def wordpunct_br(text: str) -> list[str]:
    """`wordpunct`, but each HTML line break becomes a single token `<br>`."""
    first, *rest = (wordpunct(part) for part in _BREAK.split(text))
    return first + [token for part in rest for token in ("<br>", *part)]


TOKENIZERS = {"whitespace": str.split, "wordpunct": wordpunct, "wordpunct_br": wordpunct_br}


RECIPE = 3  # raise when a code change gives different ids or vectors for the same options
VECTORS, PIECES = "vectors.npy", "subwords.spm"
GLOVE_840B = (range(2_196_000, 2_196_100), 300)  # words (counts vary with how a file's last lines were cut), dimensions


@dataclass
class EncodedSplit:
    """One encoded split.

    Attributes:
        fields: rows of ids, one `Ragged` per text of an example.
        labels: [n] int64.
        tokens: the original tokens, one `TokenLines` per text of an example.
        marked: True for marked tokens of the first text; flat like its ids, [sum of lengths] bool.
    """

    fields: tuple[Ragged, ...]
    labels: np.ndarray
    tokens: tuple[TokenLines, ...]
    marked: Ragged

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Encoded:
    """An encoded data set, or the part of it that is stored with a finished model (`splits` is then empty).

    Attributes:
        options: the options used for encoding.
        vocabulary: words in the order of their ids, which start at `FIRST`.
        vectors: pretrained vectors [found, dim] float32 of the last words, or None.
        sha256: hash of the texts of the splits and the options.
        report: sizes, label counts, unknown words and the source of the vectors, for table footers.
    """

    folder: Path
    options: Encode
    classes: list[str]
    vocabulary: list[str]
    vectors: np.ndarray | None
    splits: dict[str, EncodedSplit]
    sha256: str
    report: dict[str, Any]

    @property
    def size(self) -> int:
        """Number of ids."""
        return FIRST + len(self.vocabulary)


def _training(data: DataSet, options: Encode, root: Path, progress: Progress) -> tuple[Any, Build]:
    found = [data.fingerprint.get(s) for s in ("train", "dev")]
    key = [RECIPE, data.name, found, _identity(options, _stamp(options.vectors))]
    return key, partial(_build, data, options, progress)


def _testing(data: DataSet, encoding: Path, root: Path, progress: Progress) -> tuple[Any, Build]:
    meta = read_meta(encoding)
    key = [RECIPE, data.name, data.fingerprint.get("test"), meta["sha256"]]
    return key, partial(_build_test, data, encoding, meta, progress)


def open_encoded(folder: str | Path) -> Encoded:
    """Open a folder made by `encode`, `encode_test` or `keep_encoding`; ids and vectors are memory-mapped, not read."""
    folder = Path(folder)
    meta = read_meta(folder)
    vectors = np.load(folder / VECTORS, mmap_mode="c") if (folder / VECTORS).exists() else None
    options, classes, report = read(Encode, meta["options"], "encode"), meta["classes"], meta["report"]
    splits = {split: _open_split(folder, split, meta["fields"]) for split in meta["splits"]}
    return Encoded(folder, options, classes, read_dictionary(folder / DICT), vectors, splits, meta["sha256"], report)


encode, encode_test = encoders(_training, _testing, open_encoded)
keep_encoding = partial(keep, names=(DICT, VECTORS, PIECES))


def shortfalls(options: Encode, encoded: Encoded) -> list[str]:
    """How the word vectors differ from 300-dimensional GloVe 840B; empty if they do not differ."""
    if options.vectors is None:
        return ["random word vectors instead of GloVe 840B"]
    if options.vectors == COUNTED:
        return ["word vectors counted in the training texts instead of GloVe 840B"]
    words, dim = encoded.report["vector_file"]
    if words in GLOVE_840B[0] and dim == GLOVE_840B[1]:
        return []
    return [f"a file of {words:,} word vectors of {dim} dimensions instead of GloVe 840B"]


def _identity(options: Encode, vectors: Any) -> dict[str, Any]:
    """The options that affect the result, with the vector file identified by its content."""
    unset = {"vector_dim": options.vectors != COUNTED, "subword": options.subword is None}
    return {k: v for k, v in (plain(options) | {"vectors": vectors}).items() if not unset.get(k)}


def _stamp(vectors: str | None) -> Any:
    """Identify a vector file by its size and the hash of its first megabyte, without reading gigabytes."""
    if vectors in (None, COUNTED):
        return vectors
    with formats.opened(Path(vectors), unpack=False) as stream:
        return [Path(vectors).stat().st_size, hashlib.sha256(stream.read(1 << 20)).hexdigest()]


def _build(data: DataSet, options: Encode, progress: Progress, folder: Path) -> dict[str, Any]:
    fields, classes = list(data.about["fields"]), list(data.about["classes"])
    splits = data.read(progress)
    for split in ("train", "dev"):
        split_of(data, splits, split)
    if options.subword == "sentencepiece":
        raw = [text.lower() if options.lowercase else text for example in splits["train"] for text in example.texts]
        learn_pieces(raw, *fitted(raw, options.vocab_size), folder / PIECES)
    cut = tokens_of(options, folder)
    said = {s: f"tokenising {data.name}, {s}" for s in ("train", "dev")}
    texts = {s: _tokenized(splits[s], cut, label, progress) for s, label in said.items()}
    counts = Counter(token for field in texts["train"] for row in field for token in row)
    for special in SPECIAL:  # special symbols found in a text are not words
        counts.pop(special, None)
    words, vectors, report = _vocabulary(counts, texts["train"], options, progress)
    write_dictionary(folder / DICT, ((word, counts[word]) for word in words))
    vector_sha256 = None
    if vectors is not None:
        np.save(folder / VECTORS, vectors)
        # Vectors counted from the texts are not hashed, since their last digits depend on the machine.
        vector_sha256 = COUNTED if options.vectors == COUNTED else hashlib.sha256(vectors.tobytes()).hexdigest()
    index = {word: i for i, word in enumerate(words, FIRST)}
    unknown = {}
    for split in texts:
        unknown |= _write_split(folder, split, splits[split], dict(zip(fields, texts[split])), index)
    labels = np.bincount([e.label for e in splits["train"]], minlength=len(classes))
    report |= {"sizes": {s: len(splits[s]) for s in texts}, "unknown": unknown, "labels": labels.tolist()}
    content = [content_sha256(splits[s]) for s in texts]
    sha256 = fingerprint(RECIPE, content, classes, _identity(options, vector_sha256))
    made = {"name": data.name, "fields": fields, "classes": classes, "options": plain(options)}
    return made | {"splits": list(texts), "report": report, "sha256": sha256}


def _build_test(
    data: DataSet, encoding: Path, meta: Mapping[str, Any], progress: Progress, folder: Path
) -> dict[str, Any]:
    known, classes = meta["classes"], list(data.about["classes"])
    if sorted(classes) != sorted(known) or len(data.about["fields"]) != len(meta["fields"]):
        here = f"classes {', '.join(classes)}, texts {', '.join(data.about['fields'])}"
        model = f"the model knows the classes {', '.join(known)} and reads {', '.join(meta['fields'])}"
        what, step = f"{data.name} is not a test set for this model", "choose a data set with these classes"
        if data.name == "table" and len(data.about["fields"]) == len(meta["fields"]):
            others = [name for name in classes if name not in known]
            step = f"name the model's classes: {setting(classes=known, **({'drop': others} if others else {}))}"
            step += f", which leaves out the rows of {', '.join(others)}" if others else ""
        raise DataError(what, f"{here}; {model}", step)
    examples = split_of(data, data.read(progress), "test")
    options = read(Encode, meta["options"], "encode")
    copy_files(encoding, folder, (DICT, PIECES))
    index = {word: i for i, word in enumerate(read_dictionary(encoding / DICT), FIRST)}
    texts = _tokenized(examples, tokens_of(options, folder), f"tokenising {data.name}, test", progress)
    order = [known.index(name) for name in classes]
    numbered = [dataclasses.replace(example, label=order[example.label]) for example in examples]
    unknown = _write_split(folder, "test", numbered, dict(zip(meta["fields"], texts)), index)
    told = {k: v for k, v in meta.items() if k != "files"}
    report = {"sizes": {"test": len(examples)}, "unknown": unknown}
    sha256 = fingerprint(RECIPE, content_sha256(examples), order, meta["sha256"])
    return told | {"name": data.name, "splits": ["test"], "report": report, "sha256": sha256}


def tokens_of(options: Encode, folder: Path) -> Callable[[str], list[str]]:
    """The function text -> tokens of an encoding; without any, the token `EMPTY`, because attention needs a position."""
    cut = characters if options.subword == "char" else TOKENIZERS[options.tokenizer]
    if options.subword == "sentencepiece":
        cut = partial(opened(folder / PIECES).encode, out_type=str)
    return lambda text: cut(text.lower() if options.lowercase else text)[: options.max_tokens] or [EMPTY]


def _tokenized(
    examples: Sequence[Example], cut: Callable[[str], list[str]], label: str, progress: Progress
) -> list[Sequence[list[str]]]:
    """Tokenise the examples; the result is indexed as [field][row] and holds lists of tokens."""
    return list(
        zip(*([cut(text) for text in example.texts] for example in progress.over(examples, label)), strict=True)
    )


def _vocabulary(counts: Counter[str], texts: Sequence[Sequence[Sequence[str]]], options: Encode, progress: Progress):
    """Words, pretrained vectors [found, dim] of the last of these words (or None), and the report on the vectors."""
    kept = frequent(counts, options.min_count, options.vocab_size)
    if options.vectors is None:
        return kept, None, {"vectors": 0}
    if options.vectors == COUNTED:
        with progress.bar(None, "counting word vectors"):
            vectors = counted_vectors((row for field in texts for row in field), kept, options.vector_dim)
        return kept, vectors, {"vectors": len(kept)}
    found, vectors, lines = read_vectors(Path(options.vectors), counts, progress)
    has = set(found)
    words = [word for word in kept if word not in has] + found
    return words, vectors, {"vectors": len(found), "vector_file": [lines, vectors.shape[1]]}


def _write_split(
    folder: Path, split: str, examples: Sequence[Example], texts: Mapping[str, Texts], index: Mapping[str, int]
) -> dict[str, float]:
    """Write one split, whose texts are named by their field; returns the share of unknown tokens for each field."""
    named = {f"{split}.{field}": rows for field, rows in texts.items()}
    rates = {name: round(write_tokens(folder, name, rows, index, UNK), 4) for name, rows in named.items()}
    first = next(iter(texts.values()))
    flags = [token.lower() in example.marked for example, row in zip(examples, first, strict=True) for token in row]
    np.save(folder / f"{split}.marked.npy", np.array(flags, dtype=bool))
    np.save(folder / f"{split}.labels.npy", np.array([example.label for example in examples], dtype=np.int64))
    return rates


def _open_split(folder: Path, split: str, fields: Sequence[str]) -> EncodedSplit:
    opened = [open_tokens(folder, f"{split}.{name}") for name in fields]
    ids, tokens = zip(*opened)
    marked = Ragged(np.load(folder / f"{split}.marked.npy", mmap_mode="r"), ids[0].offsets)
    return EncodedSplit(ids, np.load(folder / f"{split}.labels.npy"), tokens, marked)
