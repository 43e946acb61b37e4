"""From labelled texts to arrays of ids: tokenise, cut, count the vocabulary, look up pretrained vectors, cache by content.

An entry `root/encoded/<name>-<hash>/` is named by the source's fingerprint, the options and `RECIPE`, so that a cached
data set is opened without reading its texts again. Ids: 0 padding, 1 unknown, 2 the separator, words from 3.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.classification.corpus import SPLITS, Example, Source, hash_examples
from tasks.data.errors import DataError
from tasks.data.files import publish_folder, sha256_of
from tasks.data.progress import NullProgress, Progress
from tasks.data.vectors import COUNTED, counted_vectors, read_vectors
from tasks.seq2seq.encode import Ragged, TokenLines

RECIPE = 2  # bump when the same options would give other ids or vectors
PAD, UNK, SEPARATOR, WORDS = 0, 1, 2, 3

DEFAULTS: dict[str, Any] = {
    "tokenizer": "whitespace",
    "lowercase": False,
    "vocab_size": None,  # most frequent training words kept; words with a pretrained vector come on top
    "min_count": 1,  # rarer training words are unknown, unless they have a pretrained vector
    "max_tokens": None,  # only the first ones of each text are read, in every split
    "vectors": None,  # text file of pretrained word vectors (GloVe's format); "ppmi": counted in the training texts
    "vector_dim": 100,  # of counted vectors
}

# NLTK's WordPunctTokenizer: runs of letters, digits and underscores, or runs of other visible characters.
_WORD_PUNCT = re.compile(r"\w+|[^\w\s]+")
_BREAK = re.compile(r"<\s*br\s*/?\s*>", re.I)


def wordpunct(text: str) -> list[str]:
    """Words and runs of punctuation, as NLTK's WordPunctTokenizer cuts them."""
    return _WORD_PUNCT.findall(text)


def wordpunct_br(text: str) -> list[str]:
    """`wordpunct` with HTML line breaks kept as one token `<br>`."""
    tokens = wordpunct(text[: match.start()] if (match := _BREAK.search(text)) else text)
    while match:
        following = _BREAK.search(text, match.end())
        tokens.append("<br>")
        tokens += wordpunct(text[match.end() : following.start() if following else None])
        match = following
    return tokens


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "whitespace": str.split,
    "wordpunct": wordpunct,
    "wordpunct_br": wordpunct_br,
}


@dataclass
class EncodedSplit:
    """One split in ids.

    Attributes:
        fields: rows of ids, one `Ragged` per text.
        labels: [n] int64.
        tokens: the tokens behind the ids, one `TokenLines` per text.
        marked: flags of the first text's tokens, flat like its ids [sum of lengths] bool.
    """

    fields: tuple[Ragged, ...]
    labels: np.ndarray
    tokens: tuple[TokenLines, ...]
    marked: Ragged

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Encoded:
    """An encoded data set; `vectors` [found, dim] float32 and `vector_rows` [found] belong to pretrained words."""

    name: str
    vocab: list[str]
    classes: list[str]
    splits: dict[str, EncodedSplit]
    sha256: str
    folder: Path
    report: dict[str, Any]
    vectors: np.ndarray | None = None
    vector_rows: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Number of ids."""
        return WORDS + len(self.vocab)


def encode(source: Source, options: Mapping[str, Any], root: str | Path, progress: Progress | None = None) -> Encoded:
    """Encode a data set, or open it from the cache under `root`.

    Raises:
        DataError: wrong options, an empty training split, a vector file that cannot be read, disk full.
    """
    progress = progress or NullProgress()
    options = check_options(options)
    stamp = options["vectors"] if options["vectors"] in (None, COUNTED) else _stamp(Path(options["vectors"]))
    key = json.dumps([source.fingerprint, options | {"vectors": stamp}, RECIPE], sort_keys=True, default=str)
    folder = Path(root) / "encoded" / f"{source.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    for _ in range(3):
        if _whole(folder):
            return open_encoded(folder)
        if folder.exists():
            progress.say(f"the encoded copy {folder} is damaged; building it again")
            shutil.rmtree(folder, ignore_errors=True)
        with publish_folder(folder) as temporary:
            _build(source, options, temporary, progress)
    raise DataError(
        f"{source.name} could not be encoded: three copies in a row were damaged", str(folder), "check the disk"
    )


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options completed with the defaults; `DataError` listing all that is wrong."""
    problems = []
    for key in options:
        if key not in DEFAULTS:
            near = difflib.get_close_matches(key, DEFAULTS, n=1)
            problems.append(f"unknown key {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    full = DEFAULTS | {key: value for key, value in options.items() if key in DEFAULTS}
    if full["tokenizer"] not in TOKENIZERS:
        problems.append(f"tokenizer is {full['tokenizer']!r}, allowed are {', '.join(TOKENIZERS)}")
    for key in ("vocab_size", "min_count", "max_tokens", "vector_dim"):
        if full[key] is not None and (not isinstance(full[key], int) or full[key] < 1):
            problems.append(f"{key} is {full[key]!r}, allowed is a whole number from 1")
    if problems:
        raise DataError(
            "the encoding options are wrong: " + "; ".join(problems), f"keys: {', '.join(DEFAULTS)}", "correct them"
        )
    if full["vectors"] != COUNTED:
        del full["vector_dim"]
    return full


def open_encoded(folder: str | Path) -> Encoded:
    """A finished entry of the cache; arrays are mapped, not read."""
    folder = Path(folder)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))

    def load(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    splits = {}
    for split in SPLITS:
        names = [f"{split}.{field}" for field in meta["fields"]]
        fields = tuple(Ragged(load(f"{n}.ids"), load(f"{n}.offsets")) for n in names)
        tokens = tuple(TokenLines(folder / f"{n}.txt", load(f"{n}.lines")) for n in names)
        splits[split] = EncodedSplit(
            fields, np.array(load(f"{split}.labels")), tokens, Ragged(load(f"{split}.marked"), fields[0].offsets)
        )
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    vectors = (np.array(load("vectors")), np.array(load("vector_rows"))) if meta["report"]["vectors"] else (None, None)
    return Encoded(meta["name"], vocab, meta["classes"], splits, meta["sha256"], folder, meta["report"], *vectors)


def _stamp(path: Path) -> list[Any]:
    """What tells one vector file from another without reading gigabytes."""
    if not path.is_file():
        raise DataError(
            f"the file of word vectors {path.name} is missing",
            str(path),
            "correct task.encode.vectors; null for random vectors, ppmi for vectors counted in the training texts",
        )
    with open(path, "rb") as stream:
        return [path.stat().st_size, hashlib.sha256(stream.read(1 << 20)).hexdigest()]


def _whole(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return all(sha256_of(folder / name) == digest for name, digest in meta["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _build(source: Source, options: dict[str, Any], folder: Path, progress: Progress) -> None:
    splits = source.read(progress)
    for split in ("train", "dev"):
        if not splits[split]:
            raise DataError(
                f"{source.name} has no {split} examples",
                source.provenance,
                f"raise data.limits.{split} or data.dev_share",
            )
    content = hash_examples(splits)
    cut = _cutter(options)
    texts: dict[str, list[list[list[str]]]] = {}  # split -> field -> row -> tokens
    for split in SPLITS:
        texts[split] = [[] for _ in source.fields]
        with progress.bar(len(splits[split]), f"tokenising {source.name}, {split}") as bar:
            for number, example in enumerate(splits[split], 1):
                for field, text in zip(texts[split], example.texts, strict=True):
                    field.append(cut(text) or ["<empty>"])  # every text must have something to attend to
                if number % 1000 == 0:
                    bar.advance(1000)
    vocab, vectors, rows = _vocabulary(texts, options, progress)
    index = {word: i for i, word in enumerate(vocab, WORDS)}
    unknown = {}
    for split in SPLITS:
        for name, field in zip(source.fields, texts[split]):
            unknown[f"{split}.{name}"] = _write_field(folder, f"{split}.{name}", field, index)
        np.save(folder / f"{split}.labels.npy", np.array([e.label for e in splits[split]], dtype=np.int64))
        np.save(folder / f"{split}.marked.npy", _marks(splits[split], texts[split][0]))
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in vocab), encoding="utf-8")
    if vectors is not None:
        np.save(folder / "vectors.npy", vectors)
        np.save(folder / "vector_rows.npy", rows)
    report = {
        "sizes": {split: len(splits[split]) for split in SPLITS}, "unknown": unknown,
        "vectors": 0 if vectors is None else len(vectors), "tokens": sum(map(len, texts["train"][0])),
    }  # fmt: skip
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    # Counted vectors follow from the texts; their last digits depend on the machine.
    given = COUNTED if options["vectors"] == COUNTED else files.get("vectors.npy")
    shown = {k: v for k, v in options.items() if k != "vectors"} | {"vectors": given}
    digest = hashlib.sha256(json.dumps([content, shown, RECIPE], sort_keys=True).encode()).hexdigest()
    meta = {
        "name": source.name,
        "fields": list(source.fields),
        "classes": list(source.classes),
        "sha256": digest,
        "report": report,
    }
    (folder / "meta.json").write_text(json.dumps(meta | {"files": files}, indent=1), encoding="utf-8")


def _cutter(options: Mapping[str, Any]) -> Callable[[str], list[str]]:
    tokenize, limit = TOKENIZERS[options["tokenizer"]], options["max_tokens"]
    if options["lowercase"]:
        return lambda text: tokenize(text.lower())[:limit]
    return lambda text: tokenize(text)[:limit]


def _vocabulary(texts, options: Mapping[str, Any], progress: Progress):
    """(words by id - WORDS, vectors [found, dim] or None, ids of the found words)."""
    counts = Counter(token for field in texts["train"] for row in field for token in row)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [word for word, count in ranked[: options["vocab_size"]] if count >= options["min_count"]]
    if options["vectors"] is None:
        return kept, None, None
    if options["vectors"] == COUNTED:
        rows = (row for field in texts["train"] for row in field)
        with progress.bar(None, "counting word vectors"):
            vectors = counted_vectors(rows, kept, options["vector_dim"])
        return kept, vectors, np.arange(len(kept), dtype=np.int64) + WORDS
    every = set(counts).union(
        token for split in ("dev", "test") for field in texts[split] for row in field for token in row
    )
    found, vectors = read_vectors(Path(options["vectors"]), every, progress)
    has = set(found)
    words = [word for word in kept if word not in has] + found
    return words, vectors, np.arange(len(words) - len(found), len(words), dtype=np.int64) + WORDS


def _write_field(folder: Path, name: str, rows: Sequence[Sequence[str]], index: Mapping[str, int]) -> float:
    """Write ids, offsets and token lines of one text of one split; return the share of unknown tokens."""
    ids, offsets, lines = array("i"), array("q", [0]), array("q", [0])
    with open(folder / f"{name}.txt", "wb") as stream:
        for row in rows:
            ids.extend(index.get(token, UNK) for token in row)
            offsets.append(len(ids))
            stream.write((" ".join(row) + "\n").encode("utf-8", "replace"))
            lines.append(stream.tell())
    flat = np.array(ids, dtype=np.int32)
    np.save(folder / f"{name}.ids.npy", flat)
    np.save(folder / f"{name}.offsets.npy", np.array(offsets, dtype=np.int64))
    np.save(folder / f"{name}.lines.npy", np.array(lines, dtype=np.int64))
    return round(float((flat == UNK).mean()), 4) if len(flat) else 0.0


def _marks(examples: Sequence[Example], rows: Sequence[Sequence[str]]) -> np.ndarray:
    flags = [token.lower() in example.marked for example, row in zip(examples, rows, strict=True) for token in row]
    return np.array(flags, dtype=bool)
