"""From a corpus to arrays of ids: tokenise, split into subwords, count the vocabulary, cache by content.

The cache lies under `root/encoded/<corpus>-<hash>/`; the hash covers the corpus, the options and `RECIPE`. An entry is
written to a temporary folder and renamed, so any number of processes may encode the same corpus at once. `meta.json`
holds the sha256 of every file; an entry that does not match is thrown away and built again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import mmap
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.errors import DataError
from tasks.data.files import publish_folder, sha256_of
from tasks.data.progress import NullProgress, Progress
from tasks.seq2seq.corpus import SPLITS, Corpus, Pair, Subset
from tasks.seq2seq.subwords import SUBWORDS, join_subwords, learn_subwords, load_subwords
from tasks.seq2seq.tokenize import check_name, detokenizer, tokenizer

RECIPE = 1  # bump when the same options would give other ids
UNK = -1
SIDES = ("source", "target")

DEFAULTS: dict[str, Any] = {
    "tokenizer": "none",  # a name of tasks.seq2seq.tokenize
    "subword": "none",  # none, bpe (subword-nmt) or sentencepiece (unigram)
    "vocab_size": None,  # largest vocabulary per side without special symbols; with subwords: symbols to learn
    "joint": False,  # one vocabulary (and one subword model) for both sides
    "min_count": 1,  # rarer training tokens are unknown
    "max_source_tokens": None,  # longer training pairs are left out; dev and test are never cut
    "max_target_tokens": None,
    "source_lang": None,  # for the language rules of Moses
    "target_lang": None,
}


class Ragged:
    """Rows of int32 ids of different lengths: `flat` [sum of lengths] and `offsets` [rows + 1]."""

    def __init__(self, flat: np.ndarray, offsets: np.ndarray) -> None:
        self.flat, self.offsets = flat, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """Row i, [length] int32; a view of the array on disk."""
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """[rows] int64."""
        return np.diff(self.offsets)


class TokenLines:
    """Lines of space-separated tokens in a file, read on demand."""

    def __init__(self, path: Path, offsets: np.ndarray) -> None:
        self.path, self.offsets = path, offsets
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> list[str]:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        start, end = int(self.offsets[i]), int(self.offsets[i + 1]) - 1
        if start == end:
            return []
        if self._map is None:
            with open(self.path, "rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map[start:end].decode("utf-8").split(" ")

    def __getstate__(self):  # a memory map cannot travel to a worker process; it is opened again there
        return {"path": self.path, "offsets": self.offsets, "_map": None}


@dataclass
class EncodedSplit:
    """One split in ids.

    Attributes:
        source, target: rows of ids into the vocabularies, -1 for unknown; target is the first reference.
        pairs: the raw pairs, row by row the same as `source` (all references are there).
    """

    source: Ragged
    target: Ragged
    pairs: Sequence[Pair]
    surface: Mapping[str, TokenLines]

    def __len__(self) -> int:
        return len(self.source)

    def source_tokens(self, i: int) -> list[str]:
        """Source tokens of row i before rare ones became unknown (for replace-unk)."""
        return self.surface["source"][i]

    def target_tokens(self, i: int) -> list[str]:
        """Target tokens of row i before rare ones became unknown."""
        return self.surface["target"][i]


@dataclass
class Encoded:
    """An encoded corpus.

    Attributes:
        source_vocab, target_vocab: tokens by id, most frequent first, without special symbols (equal when joint).
        sha256: of corpus, options and recipe version; names the cache entry.
        folder: the cache entry; holds the subword model too.
        report: counts (pairs kept and left out, unknown rates) for footers.
    """

    corpus: Corpus
    source_vocab: list[str]
    target_vocab: list[str]
    splits: dict[str, EncodedSplit]
    sha256: str
    folder: Path
    options: dict[str, Any]
    report: dict[str, Any]


def encode(
    corpus: Corpus,
    options: Mapping[str, Any],
    root: str | Path,
    progress: Progress | None = None,
    like: Encoded | None = None,
) -> Encoded:
    """Encode a corpus, or open it from the cache under `root`.

    Args:
        corpus: what to encode; vocabularies and subwords come from its train split.
        options: keys of `DEFAULTS`.
        root: cache folder.
        like: take options, subwords and vocabularies from this encoded corpus instead, and learn nothing: for a further
            test set of a trained model. `options` must be empty or the same, and no training pairs are needed.

    Raises:
        DataError: wrong options, no training pairs, disk full.
    """
    progress = progress or NullProgress()
    options = check_options(options)
    if like is not None:
        if options not in (like.options, DEFAULTS):
            raise DataError(
                "the encoding options differ from those of the corpus to be encoded like",
                f"{like.folder}: {like.options}",
                "give the same options, or none",
            )
        options = like.options
    key = json.dumps([corpus.sha256, options, RECIPE] + ([like.sha256] if like else []), sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()
    folder = Path(root) / "encoded" / f"{corpus.name}-{digest[:16]}"
    for _ in range(3):
        meta = _read_meta(folder)
        if meta is not None:
            return _open(corpus, options, digest, folder, meta)
        if folder.exists():
            progress.say(f"the encoded copy {folder} is damaged; building it again")
            _set_aside(folder)
        with publish_folder(folder) as temporary:
            _build(corpus, options, temporary, like, progress)
    raise DataError(
        f"{corpus.name} could not be encoded: three copies in a row were damaged",
        str(folder),
        "check the disk, or set another cache folder (data.root=FOLDER)",
    )


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options completed with the defaults; `DataError` listing all that is wrong."""
    problems = []
    for key in options:
        if key not in DEFAULTS:
            near = difflib.get_close_matches(key, DEFAULTS, n=1)
            problems.append(f"unknown key {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    full = DEFAULTS | {key: value for key, value in options.items() if key in DEFAULTS}
    if full["subword"] not in SUBWORDS:
        problems.append(f"subword is {full['subword']!r}, allowed are {', '.join(SUBWORDS)}")
    elif full["subword"] != "none" and not full["vocab_size"]:
        problems.append(f"subword {full['subword']} needs vocab_size")
    for key in ("vocab_size", "max_source_tokens", "max_target_tokens", "min_count"):
        if full[key] is not None and int(full[key]) < 1:
            problems.append(f"{key} is {full[key]}, allowed is 1 or more")
    if problems:
        raise DataError(
            "the encoding options are wrong: " + "; ".join(problems), f"keys: {', '.join(DEFAULTS)}", "correct them"
        )
    check_name(full["tokenizer"])
    return full


def decode_text(tokens: Sequence[str], options: Mapping[str, Any], lang: str | None = None) -> str:
    """Text of output tokens: subwords joined, then detokenised.

    Args:
        tokens: surface tokens without special symbols.
        options: those given to `encode`.
        lang: language of the text, for the rules of Moses.
    """
    words = join_subwords(list(tokens), options.get("subword", "none"))
    return detokenizer(options.get("tokenizer", "none"), lang)(words)


def tokenized_text(text: str, options: Mapping[str, Any], lang: str | None = None) -> str:
    """`text` as words of the encoding's tokeniser joined by spaces, for metrics on tokenised text."""
    return " ".join(tokenizer(options.get("tokenizer", "none"), lang)(text))


def _read_meta(folder: Path) -> dict[str, Any] | None:
    """The entry's meta.json, or None when the entry is absent, incomplete or altered."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        files = meta["files"]
        if any(sha256_of(folder / name) != digest for name, digest in files.items()):
            return None
        return meta
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _set_aside(folder: Path) -> None:
    """Move a damaged entry away before deleting it, so that nobody sees it half deleted."""
    doomed = folder.with_name(f".{folder.name}.damaged.{os.getpid()}")
    try:
        os.rename(folder, doomed)
    except FileNotFoundError:
        return  # another process did
    shutil.rmtree(doomed, ignore_errors=True)


def _open(corpus: Corpus, options: dict, digest: str, folder: Path, meta: dict) -> Encoded:
    def load(name: str) -> np.ndarray:
        array_ = np.load(folder / f"{name}.npy", mmap_mode="r")
        return np.asarray(array_)

    splits = {}
    for split in SPLITS:
        ragged = {s: Ragged(load(f"{split}.{s}.ids"), load(f"{split}.{s}.offsets")) for s in SIDES}
        surface = {s: TokenLines(folder / f"{split}.{s}.txt", load(f"{split}.{s}.lines")) for s in SIDES}
        pairs = Subset(corpus.splits[split], load(f"{split}.kept"))
        splits[split] = EncodedSplit(ragged["source"], ragged["target"], pairs, surface)
    vocab = {s: (folder / f"{s}.vocab.txt").read_text(encoding="utf-8").split("\n")[:-1] for s in SIDES}
    return Encoded(corpus, vocab["source"], vocab["target"], splits, digest, folder, options, meta["report"])


def _build(corpus: Corpus, options: dict, folder: Path, like: Encoded | None, progress: Progress) -> None:
    if like is None and len(corpus.splits["train"]) == 0:
        raise DataError(
            f"{corpus.name} has no training pairs",
            corpus.provenance,
            "train on another data set, or raise data.limits.train",
        )
    words = folder / "words"  # tokenised text before subwords, removed at the end
    words.mkdir()
    _tokenize(corpus, options, words, progress)
    segment = _learn(options, words, folder, progress) if like is None else _learned(options, like.folder)
    kept, counts = _segment_and_count(options, words, folder, segment, progress)
    shutil.rmtree(words)
    if like is not None:
        vocab = {"source": like.source_vocab, "target": like.target_vocab}
    elif kept["train"]:
        vocab = _vocabularies(options, counts)
    else:
        raise DataError(
            "no training pair is short enough",
            f"max_source_tokens={options['max_source_tokens']}, max_target_tokens={options['max_target_tokens']}",
            "raise these limits",
        )
    report: dict[str, Any] = {"vocabulary": {s: len(vocab[s]) for s in SIDES}, "left_out": {}, "unknown": {}}
    for side in SIDES:
        _write(folder / f"{side}.vocab.txt", vocab[side])
    for split in SPLITS:
        np.save(folder / f"{split}.kept.npy", np.asarray(kept[split], dtype=np.int64))
        report["left_out"][split] = len(corpus.splits[split]) - len(kept[split])
        for side in SIDES:
            report["unknown"][f"{split}.{side}"] = _write_ids(folder, split, side, vocab[side])
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    meta = {"corpus": corpus.name, "corpus_sha256": corpus.sha256, "options": options, "recipe": RECIPE}
    meta |= {"report": report, "files": files}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf-8")


def _write(path: Path, lines: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(line + "\n" for line in lines)


@contextmanager
def _writers(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    with ExitStack() as open_files:
        yield {
            s: open_files.enter_context(open(folder / f"{split}.{s}.txt", "w", encoding="utf-8", newline="\n"))
            for s in SIDES
        }


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            yield line[:-1]


def _tokenize(corpus: Corpus, options: dict, words: Path, progress: Progress) -> None:
    cut = {s: tokenizer(options["tokenizer"], options[f"{s}_lang"]) for s in SIDES}
    with progress.bar(sum(len(corpus.splits[s]) for s in SPLITS), f"tokenising {corpus.name}") as bar:
        for split in SPLITS:
            with _writers(words, split) as out:
                for number, pair in enumerate(corpus.splits[split], 1):
                    out["source"].write(" ".join(cut["source"](pair.source)) + "\n")
                    out["target"].write(" ".join(cut["target"](pair.references[0])) + "\n")
                    if number % 500 == 0:
                        bar.advance(500)


def _learn(options: dict, words: Path, folder: Path, progress: Progress) -> dict:
    """Side -> function words -> subwords (the same one when joint), learned on the training words."""
    if options["subword"] == "none":
        return {s: (lambda tokens: tokens) for s in SIDES}
    progress.say(f"learning {options['vocab_size']:,} {options['subword']} units")
    train = {s: words / f"train.{s}.txt" for s in SIDES}
    if options["joint"]:
        model = learn_subwords(
            options["subword"], list(train.values()), options["vocab_size"], folder / "subwords.joint"
        )
        return dict.fromkeys(SIDES, model)
    return {
        s: learn_subwords(options["subword"], [train[s]], options["vocab_size"], folder / f"subwords.{s}")
        for s in SIDES
    }


def _learned(options: dict, folder: Path) -> dict:
    """Side -> function words -> subwords, as learned for the entry in `folder`."""
    if options["subword"] == "none":
        return {s: (lambda tokens: tokens) for s in SIDES}
    names = {s: "subwords.joint" if options["joint"] else f"subwords.{s}" for s in SIDES}
    return {s: load_subwords(options["subword"], folder / names[s]) for s in SIDES}


def _segment_and_count(options: dict, words: Path, folder: Path, segment: dict, progress: Progress):
    """Write the surface tokens; return the kept row numbers per split and the training counts per side."""
    limits = {s: options[f"max_{s}_tokens"] or float("inf") for s in SIDES}
    kept: dict[str, array] = {split: array("q") for split in SPLITS}
    counts: dict[str, Counter] = {s: Counter() for s in SIDES}
    for split in SPLITS:
        with _writers(folder, split) as out, progress.bar(None, f"segmenting {split}") as bar:
            rows = zip(*(_lines(words / f"{split}.{s}.txt") for s in SIDES), strict=True)
            for number, row in enumerate(rows):
                tokens = {s: segment[s](line.split()) for s, line in zip(SIDES, row, strict=True)}
                if number % 500 == 499:
                    bar.advance(500)
                if split == "train":
                    if any(not 0 < len(tokens[s]) <= limits[s] for s in SIDES):
                        continue
                    for s in SIDES:
                        counts[s].update(tokens[s])
                kept[split].append(number)
                for s in SIDES:
                    out[s].write(" ".join(tokens[s]) + "\n")
    return kept, counts


def _vocabularies(options: dict, counts: dict[str, Counter]) -> dict[str, list[str]]:
    if options["joint"]:
        both = counts["source"] + counts["target"]
        counts = dict.fromkeys(SIDES, both)
    # a subword model already fixes the number of units: cutting its tail again would lose characters
    size = options["vocab_size"] if options["subword"] == "none" else None
    vocab = {}
    for side in SIDES:
        ranked = sorted(counts[side].items(), key=lambda item: (-item[1], item[0]))
        vocab[side] = [token for token, count in ranked[:size] if count >= options["min_count"]]
    return vocab


def _write_ids(folder: Path, split: str, side: str, vocab: list[str]) -> float:
    """Write ids, row offsets and line offsets of one file of tokens; return the share of unknown tokens."""
    index = {token: i for i, token in enumerate(vocab)}
    ids, offsets, lines = array("i"), array("q", [0]), array("q", [0])
    position = 0
    for line in _lines(folder / f"{split}.{side}.txt"):
        ids.extend(index.get(token, UNK) for token in line.split(" ") if token)
        offsets.append(len(ids))
        position += len(line.encode("utf-8")) + 1
        lines.append(position)
    flat = np.array(ids, dtype=np.int32)
    np.save(folder / f"{split}.{side}.ids.npy", flat)
    np.save(folder / f"{split}.{side}.offsets.npy", np.array(offsets, dtype=np.int64))
    np.save(folder / f"{split}.{side}.lines.npy", np.array(lines, dtype=np.int64))
    return float((flat == UNK).mean()) if len(flat) else 0.0
