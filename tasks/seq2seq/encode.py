"""From pairs of texts to folders of ids: tokenise, split into subwords, count the vocabulary.

A folder of training data holds splits train and dev, one of a further test set the split test in the same vocabulary:

    encoding.json                        options and languages
    dict.source.txt dict.target.txt      fairseq's dictionaries; dict.txt too, when joint
    subwords.*                           the subword models
    <split>.<side>.{ids,offsets,lines}.npy, .txt     ids and tokens, see `tasks.data.ragged`
    <split>.pairs.jsonl                  the raw pairs of dev and test: [source, reference, ...]
    <split>.links.jsonl                  their word alignment, where people have made one: [sure links, possible links]

The first three are the encoding: what a trained model needs to read a text, kept beside its weights.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from tasks.config.options import plain, read
from tasks.data.cache import META, cached_folder, read_meta
from tasks.data.dataset import DataSet
from tasks.data.errors import DataError
from tasks.data.files import sha256_of
from tasks.data.parallel import chosen, mapped, ranges, worth
from tasks.data.progress import Progress
from tasks.data.ragged import Ragged, TokenLines, open_tokens, write_tokens
from tasks.data.read.alignments import AlignedPair, Gold
from tasks.data.records import Pair
from tasks.data.symbols import FIRST, SPECIAL, UNK
from tasks.seq2seq.learn import fits, learn, lines, subwords
from tasks.seq2seq.options import Encode
from tasks.seq2seq.tokenize import hide_digits, tokenizer
from tasks.seq2seq.vocabulary import SIDES, ids, read_dictionary, write_dictionary

RECIPE = 2  # raised when the same options give other files
ALIGNER = "aligner.npz"  # see `tasks.seq2seq.fertility`
ENCODING = ("encoding.json", "dict*.txt", "subwords.*", ALIGNER)
Cut = Callable[[str], list[str]]


@dataclass
class Split:
    """One split in ids.

    Attributes:
        source, target: rows of ids, without end of sentence; a source has one at least; target is the first reference.
        tokens: side -> the same rows as tokens, before rare ones became unknown.
    """

    source: Ragged
    target: Ragged
    tokens: Mapping[str, TokenLines]
    raw: Path

    def __len__(self) -> int:
        return len(self.source)

    def source_tokens(self, i: int) -> list[str]:
        return self.tokens["source"][i]

    def target_tokens(self, i: int) -> list[str]:
        return self.tokens["target"][i]

    @cached_property
    def pairs(self) -> list[Pair]:
        """The raw pairs, row by row, with all references; of dev and test only."""
        with open(self.raw, encoding="utf-8", errors="surrogatepass", newline="\n") as stream:
            return [Pair(source, tuple(references)) for source, *references in map(json.loads, stream)]

    @cached_property
    def gold(self) -> list[Gold] | None:
        """The links between the words of each pair, None where nobody has aligned them."""
        path = self.raw.with_name(self.raw.name.replace(".pairs.", ".links."))
        if not path.exists():
            return None
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [(frozenset(map(tuple, sure)), frozenset(map(tuple, possible))) for sure, possible in rows]


@dataclass
class Encoded:
    """What lies in an encoded folder.

    Attributes:
        languages: side -> language code or None, for the rules of Moses.
        source_vocab, target_vocab: words from id 4 on, most frequent first (equal when joint).
        splits: "train" and "dev", or "test"; none beside a finished model.
        sha256: of everything in the folder: the content as a model sees it.
        digits: the sign that stands for every digit of the test source, or None.
        report: counts of pairs, pairs left out, words, shares of unknown words.
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
        """Sizes of the two vocabularies with the special symbols."""
        return len(self.source_vocab) + FIRST, len(self.target_vocab) + FIRST

    def cut(self, side: str) -> Cut:
        """The function from a raw text to its tokens."""
        words = tokenizer(self.options.tokenizer, self.languages[side])
        units = subwords(self.options, self.folder)[side]
        if self.digits:
            return lambda text: units([hide_digits(word) for word in words(text)])
        return lambda text: units(words(text))

    def ids(self, side: str) -> dict[str, int]:
        """Token -> id."""
        return ids(self.source_vocab if side == "source" else self.target_vocab)


def encode(data: DataSet, options: Encode, root: str | Path, progress: Progress, workers: int = 1) -> Encoded:
    """Encode train and dev in a vocabulary of train, or find them encoded under `root`.

    `workers` processes work on large sets; the files are the same whatever their number.

    Raises:
        DataError: no training pairs, subwords that cannot be learned, a full disk; what reading the data raises.
    """
    languages = {side: data.about.get(f"{side}_lang") for side in SIDES}
    key = ["pairs", RECIPE, [data.fingerprint.get(s) for s in ("train", "dev")], plain(options), languages]
    return open_encoded(
        cached_folder(
            root, data.name, key, lambda folder: _build(data, options, languages, folder, progress, workers), progress
        )
    )


def encode_test(data: DataSet, encoding: str | Path, root: str | Path, progress: Progress, workers: int = 1) -> Encoded:
    """Encode the test split of `data` as `encoding` (a folder of `encode` or `keep_encoding`) says; nothing is learned.

    Raises:
        DataError: no test pairs; as `encode`.
    """
    digits = data.about.get("digits")
    key = ["pairs", RECIPE, data.fingerprint.get("test"), digits, _sha256(_encoding_files(Path(encoding)))]

    def build(folder: Path) -> dict[str, Any]:
        pairs = data.read(progress).get("test", ())
        if not len(pairs):
            raise DataError(f"{data.name} has no test pairs", data.provenance, "score the model on another data set")
        keep_encoding(encoding, folder)
        return {
            "digits": digits,
            "report": _write_split(open_encoded(folder, digits), "test", pairs, None, progress, workers),
        }

    return open_encoded(cached_folder(root, f"{data.name}-test", key, build, progress))


def open_encoded(folder: str | Path, digits: str | None = None) -> Encoded:
    """Open a folder of `encode`, `encode_test` or `keep_encoding`. Raises DataError when it is none.

    Args:
        digits: of a folder that does not say so itself: read every digit of a text as this sign.
    """
    folder = Path(folder)
    try:
        stored = json.loads((folder / "encoding.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is no folder of encoded pairs", str(error), "encode the data again") from error
    meta = read_meta(folder) if (folder / META).exists() else {}
    splits = {}
    for name in ("train", "dev", "test"):
        if (folder / f"{name}.source.ids.npy").exists():
            (source, s), (target, t) = (open_tokens(folder, f"{name}.{side}") for side in SIDES)
            splits[name] = Split(source, target, {"source": s, "target": t}, folder / f"{name}.pairs.jsonl")
    return Encoded(
        folder, read(Encode, stored["options"], "encode"), stored["languages"],
        *(read_dictionary(folder / f"dict.{side}.txt") for side in SIDES), splits,
        _sha256(meta.get("files") or _encoding_files(folder)), meta.get("digits", digits), meta.get("report", {}),
    )  # fmt: skip


def keep_encoding(folder: str | Path, to: str | Path) -> None:
    """Copy the encoding of a folder: what is needed to read further texts with a model trained on it."""
    Path(to).mkdir(parents=True, exist_ok=True)
    for name in _encoding_files(Path(folder)):
        shutil.copyfile(Path(folder) / name, Path(to) / name)


def _encoding_files(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for pattern in ENCODING for path in sorted(folder.glob(pattern))}


def _sha256(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _build(
    data: DataSet, options: Encode, languages: Mapping[str, str | None], folder: Path, progress: Progress, workers: int
) -> dict[str, Any]:
    splits = data.read(progress)
    if not len(splits.get("train", ())):
        raise DataError(f"{data.name} has no training pairs", data.provenance, "train on another data set")
    forked = worth(workers, len(splits["train"]))
    with tempfile.TemporaryDirectory(dir=folder) as work:
        kept, units, vocabularies = learn(splits["train"], options, languages, folder, Path(work), progress, forked)
        for side, vocabulary in vocabularies.items():
            write_dictionary(folder / f"dict.{side}.txt", vocabulary)
        if options.joint:
            write_dictionary(folder / "dict.txt", vocabularies["source"])
        about = {"options": plain(options), "languages": languages}
        (folder / "encoding.json").write_text(json.dumps(about, indent=1, sort_keys=True), encoding="utf-8")
        encoded = open_encoded(folder)
        unknown = {
            f"train.{side}": write_tokens(
                folder, f"train.{side}", map(str.split, lines(units[side])), encoded.ids(side), UNK, forked
            )
            for side in SIDES
        }
    report = _write_split(
        encoded, "dev", splits.get("dev", ()), options if options.filter_dev else None, progress, workers
    )
    report["pairs"]["train"], report["left_out"]["train"] = kept, len(splits["train"]) - kept
    report["unknown"] |= unknown
    return {"report": report | {"vocabulary": {side: len(vocabularies[side]) for side in SIDES}}}


def _write_split(
    encoded: Encoded, split: str, pairs: Sequence[Pair], limits: Encode | None, progress: Progress, workers: int
) -> dict[str, Any]:
    """Write a split in the encoding of its folder, without pairs that are too long for `limits`; the report."""
    cut = {side: encoded.cut(side) for side in SIDES}
    rows: dict[str, list[list[str]]] = {side: [] for side in SIDES}
    kept = []

    def tokens_of(part: range) -> list[dict[str, list[str]]]:
        return [
            {"source": cut["source"](p.source), "target": cut["target"](p.references[0])} for p in chosen(pairs, part)
        ]

    with progress.bar(len(pairs), f"encoding {split}") as bar:
        tokenized = chain.from_iterable(mapped(tokens_of, ranges(len(pairs)), worth(workers, len(pairs))))
        for pair, tokens in zip(pairs, tokenized):
            bar.advance(1)
            if limits is not None and not fits(tokens, limits):
                continue
            kept.append(pair)
            rows["source"].append(tokens["source"] or [SPECIAL[UNK]])  # there must be something to attend to
            rows["target"].append(tokens["target"])
    unknown = {
        f"{split}.{side}": write_tokens(encoded.folder, f"{split}.{side}", rows[side], encoded.ids(side), UNK)
        for side in SIDES
    }
    with open(
        encoded.folder / f"{split}.pairs.jsonl", "w", encoding="utf-8", errors="surrogatepass", newline="\n"
    ) as stream:
        stream.writelines(json.dumps([p.source, *p.references], ensure_ascii=False) + "\n" for p in kept)
    if links := [[sorted(p.sure), sorted(p.possible)] for p in kept if isinstance(p, AlignedPair)]:
        (encoded.folder / f"{split}.links.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in links))
    return {"pairs": {split: len(kept)}, "left_out": {split: len(pairs) - len(kept)}, "unknown": unknown}
