"""Encode text pairs as folders of ids: tokenise, split into subwords, build the vocabulary.

A training folder holds the splits train and dev; a test folder holds the split test, encoded with the same vocabulary:

    encoding.json                        options and languages
    dict.source.txt dict.target.txt      fairseq dictionaries; also dict.txt if the vocabulary is joint
    subwords.*                           the subword models
    <split>.<side>.{ids,offsets,lines}.npy, .txt     ids and tokens, see `tasks.data.ragged`
    <split>.pairs.jsonl                  the raw pairs of dev and test: [source, reference, ...]
    <split>.links.jsonl                  their human word alignment, if there is one: [sure links, possible links]

The first three lines are the encoding, which a trained model needs to read a text; it is stored with the weights.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from repro.options import plain, read
from tasks.data import DataError, DataSet, Progress
from tasks.data.cache import META, copy_files, read_meta
from tasks.data.files import sha256_of
from tasks.data.ragged import Ragged, TokenLines, open_tokens, write_tokens
from tasks.data.records import AlignedPair, Gold, Pair
from tasks.data.symbols import FIRST, SPECIAL, UNK, read_dictionary, write_dictionary
from tasks.encoding import Build, encoders, split_of
from tasks.seq2seq.options import Encode
from tasks.seq2seq.tokenize import hide_digits, tokenizer
from tasks.seq2seq.vocabulary import SIDES, fits, learn, lines, subwords

RECIPE = 2  # raise when a code change gives different files for the same options
ALIGNER = "aligner.npz"  # see `tasks.seq2seq.fertility`
ENCODING = ("encoding.json", "dict*.txt", "subwords.*", ALIGNER)
Cut = Callable[[str], list[str]]


@dataclass
class Split:
    """One encoded split.

    Attributes:
        source, target: rows of ids without end of sentence; a source is never empty; target is the first reference.
        source_tokens, target_tokens: the same rows as tokens, before rare words were replaced by the unknown word.
    """

    source: Ragged
    target: Ragged
    source_tokens: TokenLines
    target_tokens: TokenLines
    raw: Path

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def pairs(self) -> list[Pair]:
        """The raw pairs with all references, row by row; stored only for dev and test."""
        with open(self.raw, encoding="utf-8", errors="surrogatepass", newline="\n") as stream:
            return [Pair(source, tuple(references)) for source, *references in map(json.loads, stream)]

    @cached_property
    def gold(self) -> list[Gold] | None:
        """The human word alignment of each pair, or None if the split has none."""
        path = self.raw.with_name(self.raw.name.replace(".pairs.", ".links."))
        if not path.exists():
            return None
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [(frozenset(map(tuple, sure)), frozenset(map(tuple, possible))) for sure, possible in rows]


@dataclass
class Encoded:
    """Contents of an encoded folder.

    Attributes:
        languages: side -> language code or None, for the rules of Moses.
        source_vocab, target_vocab: words with ids from 4 on, most frequent first (equal if joint).
        splits: "train" and "dev", or "test"; empty for an encoding stored with a finished model.
        sha256: hash of everything in the folder, that is, of the content as a model sees it.
        digits: the character that replaces every digit of the test source, or None.
        report: counts of pairs, pairs left out and words, and shares of unknown words.
    """

    folder: Path
    options: Encode
    languages: Mapping[str, str | None]
    source_vocab: list[str]
    target_vocab: list[str]
    splits: dict[str, Split]
    sha256: str
    digits: str | None
    report: Mapping[str, Any]

    @property
    def sizes(self) -> tuple[int, int]:
        """Sizes of the source and target vocabulary, including the special symbols."""
        return len(self.source_vocab) + FIRST, len(self.target_vocab) + FIRST

    def cut(self, side: str) -> Cut:
        """The function that splits a raw text of this side into tokens."""
        words = tokenizer(self.options.tokenizer, self.languages[side])
        units, hide = subwords(self.options, self.folder)[side], hide_digits if self.digits else str
        return lambda text: units([hide(word) for word in words(text)])

    def ids(self, side: str) -> dict[str, int]:
        """The id of each token of this side."""
        vocabulary = self.source_vocab if side == "source" else self.target_vocab
        return {word: i for i, word in enumerate(vocabulary, FIRST)}


def _training(data: DataSet, options: Encode, root: Path, progress: Progress) -> tuple[Any, Build]:
    languages = {side: data.about.get(f"{side}_lang") for side in SIDES}
    key = ["pairs", RECIPE, [data.fingerprint.get(s) for s in ("train", "dev")], plain(options), languages]
    return key, partial(_build, data, options, languages, progress)


def _testing(data: DataSet, encoding: Path, root: Path, progress: Progress) -> tuple[Any, Build]:
    digits = data.about.get("digits")

    def build(folder: Path) -> dict[str, Any]:
        pairs = split_of(data, data.read(progress), "test")
        keep_encoding(encoding, folder)
        encoded = replace(open_encoded(folder), digits=digits)
        return {"digits": digits, "report": _write_split(encoded, "test", pairs, None, progress)}

    return ["pairs", RECIPE, data.fingerprint.get("test"), digits, _sha256(_encoding_files(encoding))], build


def open_encoded(folder: str | Path) -> Encoded:
    """Open a folder made by `encode`, `encode_test` or `keep_encoding`. Raises DataError if it is none of these."""
    folder = Path(folder)
    try:
        stored = json.loads((folder / "encoding.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is not a folder of encoded pairs", str(error), "encode the data again") from error
    meta = read_meta(folder) if (folder / META).exists() else {}
    splits = {}
    for name in ("train", "dev", "test"):
        if (folder / f"{name}.source.ids.npy").exists():
            (source, s), (target, t) = (open_tokens(folder, f"{name}.{side}") for side in SIDES)
            splits[name] = Split(source, target, s, t, folder / f"{name}.pairs.jsonl")
    options, languages = read(Encode, stored["options"], "encode"), stored["languages"]
    vocabularies = [read_dictionary(folder / f"dict.{side}.txt") for side in SIDES]
    sha256 = _sha256(meta.get("files") or _encoding_files(folder))
    digits, report = meta.get("digits"), meta.get("report", {})
    return Encoded(folder, options, languages, *vocabularies, splits, sha256, digits, report)


encode, encode_test = encoders(_training, _testing, open_encoded)


def keep_encoding(folder: str | Path, to: str | Path) -> None:
    """Copy the encoding of a folder: the files that a model trained on it needs to read further texts."""
    copy_files(folder, to, _encoding_files(Path(folder)))


def _encoding_files(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for pattern in ENCODING for path in sorted(folder.glob(pattern))}


def _sha256(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _build(
    data: DataSet, options: Encode, languages: Mapping[str, str | None], progress: Progress, folder: Path
) -> dict[str, Any]:
    splits = data.read(progress)
    split_of(data, splits, "train")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        kept, units, vocabularies = learn(splits["train"], options, languages, folder, Path(work), progress)
        for side, vocabulary in vocabularies.items():
            write_dictionary(folder / f"dict.{side}.txt", vocabulary)
        if options.joint:
            write_dictionary(folder / "dict.txt", vocabularies["source"])
        about = {"options": plain(options), "languages": languages}
        (folder / "encoding.json").write_text(json.dumps(about, indent=1, sort_keys=True), encoding="utf-8")
        encoded = open_encoded(folder)
        rows = [map(str.split, lines(units[side])) for side in SIDES]
        unknown = _write_tokens(encoded, "train", rows)
    limits = options if options.filter_dev else None
    report = _write_split(encoded, "dev", splits.get("dev", ()), limits, progress)
    report["pairs"]["train"], report["left_out"]["train"] = kept, len(splits["train"]) - kept
    report["unknown"] |= unknown
    return {"report": report | {"vocabulary": {side: len(vocabularies[side]) for side in SIDES}}}


def _write_split(
    encoded: Encoded, split: str, pairs: Sequence[Pair], limits: Encode | None, progress: Progress
) -> dict[str, Any]:
    """Write a split with the encoding of its folder, leaving out pairs longer than `limits`; returns the report."""
    source, target = (encoded.cut(side) for side in SIDES)
    kept, rows = [], []
    for pair in progress.over(pairs, f"encoding {split}"):
        tokens = source(pair.source), target(pair.references[0])
        if limits is None or fits(tokens, limits):
            kept.append(pair)
            rows.append([tokens[0] or [SPECIAL[UNK]], tokens[1]])  # attention needs at least one position
    unknown = _write_tokens(encoded, split, [[row[i] for row in rows] for i in range(2)])
    path = encoded.folder / f"{split}.pairs.jsonl"
    with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as stream:
        stream.writelines(json.dumps([p.source, *p.references], ensure_ascii=False) + "\n" for p in kept)
    if links := [[sorted(p.sure), sorted(p.possible)] for p in kept if isinstance(p, AlignedPair)]:
        (encoded.folder / f"{split}.links.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in links))
    return {"pairs": {split: len(kept)}, "left_out": {split: len(pairs) - len(kept)}, "unknown": unknown}


def _write_tokens(encoded: Encoded, split: str, rows: Sequence[Iterable[Sequence[str]]]) -> dict[str, float]:
    """Write the `rows` of tokens of both sides of a split; returns "split.side" -> the share of unknown tokens."""
    ids = {f"{split}.{side}": encoded.ids(side) for side in SIDES}
    return {name: write_tokens(encoded.folder, name, own, ids[name], UNK) for name, own in zip(ids, rows)}
