"""Small good files of every format that the loaders read, and bad ones to put in their place."""

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from packed import tar, zipped
from small_vqa2 import picture

from tasks.data import NullProgress, load_manifest, open_data
from tasks.data.read.vectors import read_vectors
from tasks.data.sets import debian


@dataclass(frozen=True)
class Loader:
    """A loader with good files for it.

    target: the file that is damaged. kind: its format. options: of the set beside path or mirror.
    """

    name: str
    files: dict[str, bytes]
    target: str
    kind: str
    options: dict[str, Any]
    place: str | None = "path"  # path, mirror, wheel, or None: read by `reader`
    reader: Callable[[Path], Any] | None = None

    def lay(self, folder: Path) -> Path:
        """Write the good files."""
        for name, raw in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        return folder

    def read(self, folder: Path, cache: Path) -> Any:
        """Everything that the loader gives, as lists, and the data set."""
        if self.reader:
            return self.reader(folder / self.target), None
        path = folder / next(iter(self.files)) if self.name == "imdb" and self.kind == "tar" else folder
        node = {"name": self.name, **self.options} | ({} if self.place == "wheel" else {self.place: str(path)})
        data = open_data(node, cache)
        splits = data.read(NullProgress())
        found = {s: records if data.kind == "features" else list(records) for s, records in splits.items()}
        if data.kind == "questions" and data.about["images"].input == "pixels":
            keys = list(dict.fromkeys(q.image for part in found.values() for q in part))
            data.about["images"](keys, cache, NullProgress())
        return found, data


def lines(*texts: str) -> bytes:
    return "".join(text + "\n" for text in texts).encode()


SIDE = lines("ein Mann geht .", "zwei é Frauen .", "drei Kinder .")
OTHER = lines("a man", "two é women", "three children")
ROW = {"pairID": "1", "gold_label": "entailment"}
ROW |= {"sentence1_parse": "(ROOT (NN dog))", "sentence2_parse": "(ROOT (NN é))"}
SNLI_JSON = lines(*[json.dumps(ROW | {"pairID": str(i)}, ensure_ascii=False) for i in range(3)])
ESNLI = lines("pairID,Sentence1_marked_1", "1,A *man* é", '2,"a, *dog*"')
ARFF_HEAD = ("% made here", "@relation r", "@attribute x numeric", "@attribute 'é k' {u,v,w}", "@attribute a {0,1}")
ARFF = lines(*ARFF_HEAD, "@attribute b {0,1}", "@data", "1.5,u,1,0", "-2e3,v,0,1", "0,w,1,1")
XML = lines('<labels xmlns="x" about="é">', '<label name="a"></label>', '<label name="b"></label>', "</labels>")
SEGMENTS = lines("<doc>", '<seg id="1"> eins é </seg>', '<seg id="2">zwei</seg>', "</doc>")
SGML = lines(*["<REUTERS ID=1><TITLE>RISE é</TITLE><BODY>Prices rose a lot today.", "</BODY></REUTERS>"] * 3)
PAGE = lines('<p id="par_id1">Click é here.</p>', '<p id="par_id2">Save the file.</p>')
VECTORS = lines("the 0.1 0.2", "é 0.3 -0.4", "dog 1 2")
TSV4 = lines("1\t1\tA man é\tA dog", "2\t3\tA man\tA person")
LABELS = lines("entailment", "neutral", "contradiction")
REVIEW = lines("a good film é <br /> indeed")
EASY = json.dumps([["what colour é?", "red", 1], ["is it red?", "yes", 2]], ensure_ascii=False).encode()
TOMATOES = lines("category,text,movie_name", "rotten,a bad é film,A", 'fresh,"good, really",B', "fresh,so so fine,C")
RIVER = lines("é1,f2,Class1,Class2", *["0.5,1,1,0", "1.5,2,0,1"] * 3)


def questions(first: int) -> bytes:
    asked = [{"image_id": first + i, "question": f"what é {i}?", "question_id": first + i} for i in range(3)]
    return json.dumps({"questions": asked}, ensure_ascii=False).encode()


def annotations(first: int) -> bytes:
    answers = {"answers": [{"answer": "é yes"}] * 10, "answer_type": "other"}
    given = [{"question_id": first + i} | answers for i in range(3)]
    return json.dumps({"annotations": given}, ensure_ascii=False).encode()


def mirrored(name: str, content: Callable[[str], bytes]) -> dict[str, bytes]:
    """The files of a mirror as its manifest lays them out."""
    return {entry["path"]: content(Path(entry["path"]).name) for entry in load_manifest(name)["files"]}


def _at(files: dict[str, bytes], name: str) -> str:
    return next(path for path in files if path.endswith(name))


GIGAWORD = {"train.article.txt": SIDE, "train.title.txt": OTHER, "input.txt": SIDE, "task1_ref0.txt": OTHER}
GIGAWORD |= {"valid.article.filter.txt": SIDE, "valid.title.filter.txt": OTHER}
DUC = {"input.txt": SIDE} | {f"task1_ref{k}.txt": OTHER for k in range(4)}
BASELINE = {f"baseline-1M_{part}.fr": SIDE for part in ("train", "valid", "test")}
BASELINE |= {f"baseline-1M_{part}.en": OTHER for part in ("train", "valid", "test")}
TALKS = ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014", "tst2015")
IWSLT = {"train.tags.de-en.de": SIDE, "train.tags.de-en.en": OTHER}
IWSLT |= {f"IWSLT17.TED.{talk}.de-en.{lang}.xml": SEGMENTS for talk in TALKS for lang in ("de", "en")}
MULTI30K = mirrored("multi30k", lambda name: SIDE if ".fr" in name else OTHER)
SPLITS = ("train", "dev", "test")
SNLI = {f"snli_1.0_{s}.jsonl": SNLI_JSON for s in SPLITS} | {"esnli_test.csv": ESNLI}
REVIEWS = {f"aclImdb/{s}/{c}/{i}_1.txt": REVIEW for s in ("train", "test") for c in ("pos", "neg") for i in range(3)}
VQA2 = {}
for _part, _first in (("train", 0), ("val", 10)):
    VQA2[f"v2_OpenEnded_mscoco_{_part}2014_questions.json"] = questions(_first)
    VQA2[f"v2_mscoco_{_part}2014_annotations.json"] = annotations(_first)
    _images = {f"COCO_{_part}2014_{i:012d}.jpg": picture("red") for i in range(_first, _first + 3)}
    VQA2[f"{_part}2014.zip"] = zipped(_images)
BIRDS = mirrored("birds", lambda name: XML if name.endswith(".xml") else ARFF)
REUTERS = mirrored("reuters21578", lambda name: SGML)
SNLI20 = mirrored("snli_20k", lambda name: TSV4 if ".csv" in name else LABELS if "labels" in name else SIDE)
TOMATOES_FILE, RIVER_FILE = load_manifest("rotten_tomatoes")["member"], load_manifest("yeast_river")["files"][0]["path"]
EASYVQA = {f"easy_vqa/data/{s}/questions.json": EASY for s in ("train", "test")}
EASYVQA |= {f"easy_vqa/data/{s}/images/{i}.png": picture("red") for s in ("train", "test") for i in (1, 2)}


def vectors(path: Path) -> Any:
    return read_vectors(path, {"the", "é", "dog"}, NullProgress())


def pages(path: Path) -> Any:
    return list(debian.help_paragraphs(path.parent))


HELP, CRITICS = "text/shared/a.html", bz2.compress(TOMATOES)
LOADERS = {
    "gigaword source": Loader("gigaword", GIGAWORD, "train.article.txt", "side", {}),
    "duc2004": Loader("duc2004", DUC, "task1_ref2.txt", "side", {}),
    "baseline_1m_enfr": Loader("baseline_1m_enfr", BASELINE, "baseline-1M_valid.fr", "side", {}),
    "iwslt2017 training": Loader("iwslt2017", IWSLT, "train.tags.de-en.de", "side", {}),
    "iwslt2017 talks": Loader("iwslt2017", IWSLT, "IWSLT17.TED.tst2012.de-en.de.xml", "segments", {}),
    "multi30k": Loader("multi30k", MULTI30K, _at(MULTI30K, "raw/train.fr.gz"), "side", {}, "mirror"),
    "reuters21578": Loader("reuters21578", REUTERS, _at(REUTERS, "reut2-003.sgm"), "sgml", {"min_words": 1}, "mirror"),
    "libreoffice_help": Loader("libreoffice_help", {HELP: PAGE}, HELP, "page", {}, None, pages),
    "snli jsonl": Loader("snli", SNLI, "snli_1.0_train.jsonl", "snli", {}),
    "snli highlights": Loader("snli", SNLI, "esnli_test.csv", "csv", {}),
    "snli_20k pairs": Loader("snli_20k", SNLI20, _at(SNLI20, "snli_subset_20k/train.csv"), "tsv4", {}, "mirror"),
    "snli_20k labels": Loader("snli_20k", SNLI20, _at(SNLI20, "labels.test"), "labels", {}, "mirror"),
    "imdb archive": Loader("imdb", {"a.tar.gz": tar(REVIEWS, "w:gz")}, "a.tar.gz", "tar", {}),
    "rotten_tomatoes": Loader("rotten_tomatoes", {TOMATOES_FILE: CRITICS}, TOMATOES_FILE, "csv3", {}, "wheel"),
    "vqa2 questions": Loader("vqa2", VQA2, _at(VQA2, "train2014_questions.json"), "questions", {"input": "none"}),
    "vqa2 annotations": Loader("vqa2", VQA2, _at(VQA2, "val2014_annotations.json"), "annotations", {"input": "none"}),
    "vqa2 images": Loader("vqa2", VQA2, "train2014.zip", "zip", {"input": "pixels"}),
    "easy_vqa": Loader("easy_vqa", EASYVQA, "easy_vqa/data/test/questions.json", "easy", {}, "wheel"),
    "yeast_river": Loader("yeast_river", {RIVER_FILE: gzip.compress(RIVER)}, RIVER_FILE, "numbers", {}, "wheel"),
    "birds": Loader("birds", BIRDS, _at(BIRDS, "birds-test.arff"), "arff", {}, "mirror"),
    "birds labels": Loader("birds", BIRDS, _at(BIRDS, "birds.xml"), "xml", {}, "mirror"),
    "word vectors": Loader("vectors", {"glove.txt": VECTORS}, "glove.txt", "vectors", {}, None, vectors),
}

# What stands in the file's place when it is no file with other bytes.
PLACES: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a symbolic link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}

E = "é".encode()
# Bytes made of the good ones -> where the message must point, if anywhere.
TEXTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda raw: b"", ""),
    "blank": (lambda raw: b"\n \n\t\n", ""),
    "blank, Unicode's": (lambda raw: "\u2003\n\u00a0\n".encode(), ""),
    "Latin-1": (lambda raw: raw.replace(E, b"\xe9"), r"line \d+, byte \d+"),
    "cut in a character": (lambda raw: raw[: raw.index(E) + 1], r"line \d+, byte \d+"),
    "UTF-16, cut": (lambda raw: raw.decode().encode("utf-16")[:-1], "UTF-16"),
    "UTF-16 without mark": (lambda raw: raw.decode().encode("utf-16-le"), r"line \d+, byte \d+"),
    "UTF-32, cut": (lambda raw: raw.decode().encode("utf-32")[:-1], "UTF-32"),
    "NUL": (lambda raw: raw.replace(E, b"\0"), r"line \d+, byte \d+: NUL"),
    "gzip, cut": (lambda raw: gzip.compress(raw, mtime=0)[:-9], "gzip"),
    "gzip, a bit flipped": (lambda raw: _flipped(gzip.compress(raw, mtime=0)), "gzip"),
    "bzip2, cut": (lambda raw: bz2.compress(raw)[:-9], "bzip2"),
    "xz, cut": (lambda raw: lzma.compress(raw)[:-9], "xz"),
    "zstd, cut": (lambda raw: pyarrow.compress(raw, "zstd", asbytes=True)[:-3], "zstd"),
    "zip": (lambda raw: zipped({"a.txt": raw}), ""),
    "an image": (lambda raw: b"\x89PNG\r\n\x1a\n" + raw, "byte 0"),
    "random": (lambda raw: bytes(range(250, 0, -1)) * 9, "byte 0"),
    "an error page": (lambda raw: b"<!DOCTYPE html><html><body>404 Not Results</body></html>", ""),
}
ENCODINGS = {"Latin-1", "cut in a character", "random", "NUL"}  # what needs an é


def _flipped(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes([raw[middle] ^ 255]) + raw[middle + 1 :]


def _json(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    return lambda raw: json.dumps(change(json.loads(raw))).encode()


def _line(number: int, new: bytes) -> Callable[[bytes], bytes]:
    def change(raw: bytes) -> bytes:
        parts = raw.split(b"\n")
        return b"\n".join([*parts[: number - 1], new, *parts[number:]])

    return change


def _first(key: str, **changes: Any) -> Callable[[bytes], bytes]:
    return _json(lambda found: {key: [found[key][0] | changes, *found[key][1:]]})


def _without(key: str, field: str) -> Callable[[bytes], bytes]:
    return _json(lambda found: {key: [*found[key][:2], {k: v for k, v in found[key][2].items() if k != field}]})


DEEP, DIGITS = b"[" * 100_000, b"1" * 5_000
# A fault: (number of a line, its new text), (bytes, what takes their place, where), or (function of the bytes, where).
Fault = tuple[Any, ...]
JSONL: dict[str, Fault] = {"an array": (2, b"[1]"), "deep": (2, DEEP), "digits": (2, DIGITS)}
JSONL |= {"no fields": (3, b"{}"), "cut": (lambda raw: raw[:-20], "line 3")}
JSON_WHOLE: dict[str, Fault] = {"cut": (lambda raw: raw[:-20], "line 1"), "deep": (lambda raw: DEEP, "line 1")}
JSON_WHOLE |= {"digits": (lambda raw: b"[" + DIGITS + b"]", "line 1"), "a number": (lambda raw: b"3", "")}
JSON_WHOLE |= {"an empty object": (lambda raw: b"{}", "")}
SIDES: dict[str, Fault] = {"a line more": (lambda raw: raw + b"x\n", ""), "all in one line": (b"\n", b" ", "")}
SIDES |= {"CR alone": (b"\n", b"\r", "line 1")}
TARS: dict[str, Fault] = {"text": (lambda raw: SIDE * 99, ""), "its half": (lambda raw: raw[: len(raw) // 2], "")}
TARS |= {"nothing in it": (lambda raw: tar({"x": b"y"}), "")}
TARS |= {"gzip, cut": (lambda raw: gzip.compress(_plain_tar(raw))[:-9], "")}


def _plain_tar(raw: bytes) -> bytes:
    return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw


def _entities(raw: bytes) -> bytes:
    """Entities of entities: 99 letters in the first, and each holds the one before ten times."""
    each = b"".join(b'<!ENTITY z%d "%s">' % (i, b"&%s;" % (b"z%d" % (i - 1) if i else b"a") * 10) for i in range(26))
    return b'<!DOCTYPE x [<!ENTITY a "%s">%s]><labels><label name="&z25;"/></labels>' % (b"x" * 99, each)


def _row(**changes: Any) -> bytes:
    return json.dumps(ROW | changes).encode()


# What is wrong in a format of its own: kind -> what -> fault.
_QUESTIONS = JSON_WHOLE | {"no question": (_without("questions", "question"), r"questions\[2\]")}
_QUESTIONS |= {"a number for a question": (_first("questions", question=3), r"questions\[0\]")}
_QUESTIONS |= {"words for questions": (_json(lambda f: {"questions": ["question"]}), "")}
_ANNOTATIONS = JSON_WHOLE | {"no answers": (_without("annotations", "answers"), r"annotations\[2\]")}
_ANNOTATIONS |= {"a type unknown": (_first("annotations", answer_type="colour"), "colour")}
_ANNOTATIONS |= {"words for answers": (_first("annotations", answers=["yes"]), "")}
_ANNOTATIONS |= {"null for an answer": (_first("annotations", answers=[{"answer": None}]), "")}
_LABELS = lines("@relation r", *(f"@attribute {n} {{0,1}}" for n in "ab"), "@data", "1,0")
_ARFF: dict[str, Fault] = {
    "no row": (lambda raw: raw[: raw.index(b"1.5")], ""),
    "labels only": (lambda raw: _LABELS, ""),
}
_ARFF |= {"no @data": (b"@data", b"@date", ""), "a short row": (b",0,1", b",0", "")}
_ARFF |= {"infinite": (b"1.5", b"1e999", "a value is inf"), "a value missing": (b"1.5", b"?", "missing values")}
_ARFF |= {
    "a head alone": (lambda raw: raw[: raw.index(b"@data")], ""),
    "a value unknown": (b"5,u", b"5,z", "z value not"),
}
_ARFF |= {"a label missing": (b"e b", b"e c", "lacks labels: b"), "a type unknown": (b"numeric", b"date", "")}
_ARFF |= {"an attribute twice": (b"e b", b"e a", ""), "a quote without end": (b"k' {", b"k {", "")}
_XML: dict[str, Fault] = {"no label": (lambda raw: b"<labels/>", ""), "a label twice": (b'"b"', b'"a"', "")}
_XML |= {"a tag open": (lambda raw: raw.replace(b"</label>", b"", 1), "line 4")}
_XML |= {"entities of entities": (_entities, "")}
_VECTORS: dict[str, Fault] = {"a number less": (2, b"dog 1"), "a word for a number": (2, b"dog 1 x")}
_VECTORS |= {"not a number": (2, b"dog 1 nan"), "other words": (lambda raw: b"x 1 2\n", "")}
_ZIP: dict[str, Fault] = {"its half": (lambda raw: raw[: len(raw) // 2], ""), "text": (lambda raw: SIDE, "")}
_CSV: dict[str, Fault] = {"no column": (b"pairID", b"pair", "line 1"), "no star": (b"*", b"", "")}
FAULTS: dict[str, dict[str, Fault]] = {
    "side": SIDES,
    "labels": SIDES | {"a class unknown": (2, b"maybe")},
    "segments": {"no segment": (lambda raw: b"<doc></doc>", ""), "a segment less": (b'<seg id="2">zwei</seg>', b"", "")}
    | {"a tag cut": (lambda raw: raw.replace(b"</seg>", b"", 1), "")},
    "sgml": {"cut": (lambda raw: raw[:-15], "3 articles begin, 2 end"), "no article": (lambda raw: b"nothing\n", "")},
    "snli": JSONL
    | {"a label unknown": (2, _row(gold_label="maybe")), "null for a parse": (3, _row(sentence1_parse=None))},
    "csv": _CSV
    | {"a long row": (2, b"1,*a*,c"), "a quote without end": (lambda raw: _line(2, b'1,"A *man*')(raw), "")},
    "csv3": {"no column": (b"text", b"txt", "line 1"), "a short row": (2, b"rotten,x")},
    "tsv4": {"a cell less": (2, b"2\t3\tx"), "a cell more": (1, b"2\t3\tx\ty\tz"), "a blank line": (1, b"")}
    | {"a label unknown": (2, b"2\t4\tx\ty")},
    "numbers": {"a word": (2, b"x,1,1,0"), "a short row": (3, b"1,1")},
    "questions": _QUESTIONS,
    "annotations": _ANNOTATIONS,
    "easy": JSON_WHOLE
    | {"two of three": (_json(lambda f: [["a", "b"]]), "entry 0")}
    | {"a word for a number": (_json(lambda f: [*f, ["a", "b", "c"]]), "entry 2")},
    "arff": _ARFF,
    "xml": _XML,
    "vectors": _VECTORS,
    "tar": TARS,
    "zip": _ZIP | {"its end damaged": (lambda raw: raw[:-30] + b"\xff" * 30, "")},
}


def _change(fault: Fault) -> tuple[Callable[[bytes], bytes], str]:
    """The function that makes the damaged bytes of the good ones, and where the message must point, if anywhere."""
    if isinstance(fault[0], int):
        return _line(*fault), f"line {fault[0]}"
    return (lambda raw: raw.replace(*fault[:2]), fault[2]) if isinstance(fault[0], bytes) else fault


OF_KIND = {kind: {what: _change(fault) for what, fault in faults.items()} for kind, faults in FAULTS.items()}
