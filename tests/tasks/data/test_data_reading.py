"""The one place where files are read: what good files give in every dress, limits and counts."""

import bz2
import codecs
import gzip
import json
import lzma
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed import tar
from refusals import refused

from tasks import data
from tasks.data import DataError, NullProgress
from tasks.data.acquire.sources import unpack
from tasks.data.read.formats import LONGEST_WORD, read_lines, read_text, too_long
from tasks.data.read.labelled import read_arff
from tasks.data.read.lines import Lines
from tasks.data.read.vectors import read_vectors
from tasks.data.sets.texts import leaves

DRESSES = {
    "mark": lambda raw: codecs.BOM_UTF8 + raw,
    "CRLF": lambda raw: raw.replace(b"\n", b"\r\n"),
    "no last line end": lambda raw: raw.removesuffix(b"\n"),
    "gzip": lambda raw: gzip.compress(raw),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
    "UTF-16": lambda raw: raw.decode().encode("utf-16"),
    "UTF-16, big end first": lambda raw: codecs.BOM_UTF16_BE + raw.decode().encode("utf-16-be"),
}
FRENCH, ENGLISH = ["un homme marche", "deux é femmes", "trois enfants"], ["a man", "two é women", "three children"]
PAIRS = {"name": "files", "source_lang": "fr", "target_lang": "en"}
TEXTS = {"name": "table", "text": "text", "label": "label", "classes": ["a", "b"]}
ROWS = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(FRENCH)]
# Format -> node, and the lines of each file of a split by its ending. The first file is changed.
FORMATS = {
    "lines": (PAIRS, {".fr": FRENCH, ".en": ENGLISH}),
    "tsv": (PAIRS, {".tsv": [f"{a}\t{b}" for a, b in zip(FRENCH, ENGLISH)]}),
    "csv": (TEXTS, {".csv": ["text,label", *(f"{row['text']},{row['label']}" for row in ROWS)]}),
    "jsonl": (TEXTS, {".jsonl": [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in ROWS]}),
}
ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIGNS = "\u2028\u2029\x85\x0b\x0c"


def opened_of(form: str, folder: Path, change=bytes) -> data.DataSet:
    """The data set of a folder in this format, in which the first file of train is changed."""
    node, files = FORMATS[form]
    folder.mkdir(parents=True)
    for split in data.SPLITS:
        for number, (end, rows) in enumerate(files.items()):
            raw = "".join(f"{row}\n" for row in rows).encode()
            (folder / f"{split}{end}").write_bytes(change(raw) if (split, number) == ("train", 0) else raw)
    return data.open_data(node | {"path": str(folder)}, folder / ".cache")


def read_of(form: str, folder: Path, change=bytes) -> dict[str, list]:
    return {s: list(records) for s, records in opened_of(form, folder, change).read(NullProgress()).items()}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_mark_line_ends_and_packing_change_nothing(form, dress, tmp_path):
    good = read_of(form, tmp_path / "good")
    assert len(good["train"]) == 3 and read_of(form, tmp_path / "dressed", DRESSES[dress]) == good


@pytest.mark.parametrize("form", ["lines", "tsv", "csv"])
def test_odd_signs_end_no_line(form, tmp_path):
    odd = read_of(form, tmp_path / "odd", lambda raw: raw.replace(b" ", SIGNS.encode()))
    assert odd["train"] == read_of(form, tmp_path / "good")["train"]  # they are white space


@pytest.mark.parametrize("form", FORMATS)
def test_a_word_of_two_megabytes_is_left_out_counted_and_remembered(form, tmp_path):
    start = time.process_time()
    found = opened_of(form, tmp_path / "x", lambda raw: raw.replace("é".encode(), b"x" * 2_000_000, 1))
    assert len(found.read(NullProgress())["train"]) == 2 and time.process_time() - start < 2
    (said,) = [s for s in found.shortfalls if "left out" in s]
    assert said.startswith("1 ") and ("1,000" in said)
    node = FORMATS[form][0] | {"path": str(tmp_path / "x")}
    assert said in data.open_data(node, tmp_path / "x" / ".cache").shortfalls  # also when it is not read again
    assert too_long("x" * (LONGEST_WORD + 1)) and not too_long("x" * LONGEST_WORD)
    assert not too_long("word " * 1000) and too_long("word " * 200_001)
    assert not any(too_long(text * 999) for text in ("我们去公园玩。", "ภาษาไทยง่ายมาก")) and too_long("天" + "x" * 1001)
    assert leaves("(" * LONGEST_WORD) == ""


def test_lines_of_a_mapped_file_are_those_of_the_reader(tmp_path):
    path = tmp_path / "x"
    text = "".join(f"{i} é\u2028{'y' * (i % 7)}\r\n" for i in range(300)) + "last"
    path.write_text(text, encoding="utf-8", newline="")
    assert list(Lines(path)) == read_lines(path)
    path.write_bytes(text.encode()[:-1000] + b"\xff" + b"x" * 999)
    with pytest.raises(DataError, match=f"byte {len(text.encode()) - 1000:,}"):
        Lines(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("any") / "file"


LINE = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0"), max_size=20)


@ANY
@given(texts=st.lists(LINE, min_size=1, max_size=8).filter(lambda t: any(map(str.strip, t))))
def test_good_lines_come_back(texts, file):
    first = texts[0]
    if first.startswith(("\ufeff", "PK\x03\x04", "PAR1", "%PDF", "BZh")):
        texts = ["x" + first, *texts[1:]]
    file.write_text("".join(t + "\n" for t in texts), encoding="utf-8", newline="")
    assert read_lines(file) == list(Lines(file)) == texts


@ANY
@given(rows=st.lists(st.tuples(st.floats(-1e150, 1e150), st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_good_arff_comes_back(rows, file):
    """Names in quotes may have commas."""
    head = "@relation r\n@attribute 'x, y' real\n@ATTRIBUTE 'it\\'s, k' {u,v,w}\n@attribute a {0,1}\n% none\n@data\n"
    file.write_text(head + "".join(f"{x!r},{'uvw'[k]},{int(a)}\n" for x, k, a in rows))
    found, labels = read_arff(file, ("a",))
    expected = [[x, *(float(k == i) for i in range(3))] for x, k, _ in rows]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(labels[:, 0], [a for *_, a in rows])


def test_an_archive_is_unpacked_whole_and_inside_or_not_at_all(tmp_path):
    link = tarfile.TarInfo("x")
    link.type, link.linkname = tarfile.SYMTYPE, "../../etc/passwd"
    with tarfile.open(tmp_path / "link", "w") as archive:
        archive.addfile(link)
    whole = tar({"text": np.random.default_rng(0).bytes(50_000)}, "w:gz")
    outside, cut = "outside the destination", "the archive is damaged"
    bad = [(tar({"../x": b"1"}), outside), (tar({"a" * 300: b"1"}), "too long"), (whole[:20_000], cut)]
    bad += [(tar({"ok": b"1", "a/../../x": b"2"}), outside), ((tmp_path / "link").read_bytes(), "")]
    for number, (raw, said) in enumerate(bad):
        (tmp_path / f"{number}.tar").write_bytes(raw)
        with refused(DataError, key=f"{number}.tar", says=said):
            unpack(tmp_path / f"{number}.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "x").exists()
    (tmp_path / "a.tgz").write_bytes(whole)
    unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert (tmp_path / "out" / "text").stat().st_size == 50_000


def test_a_root_that_is_no_folder_is_refused_before_anything(tmp_path):
    (file := tmp_path / "file").write_text("x")
    below, nothing = file / "below", Path("/proc/nothing")
    for root in (file, below, nothing, Path("/proc/self")):
        with refused(DataError, key="paths.data", value=root):
            data.fetch("toy", str(root))
    for root in (file, below, nothing):
        with refused(DataError, key="paths.data", value=root):
            data.open_data({"name": "toy"}, root)


def test_vectors_of_the_words_that_are_wanted(tmp_path):
    """A header counts in the first line alone; a word may hold spaces; the first of two rows of a word is kept."""
    path = tmp_path / "vectors.txt"
    path.write_text("3 2\nthe 1 2\ndog 0 0\nat name.com 3 4 \ncat 5 6\nthe 7 8\n")
    words, rows, lines = read_vectors(path, {"the", "cat", "at name.com", "none"}, progress := NullProgress())
    assert words == ["the", "at name.com", "cat"] and rows.dtype == np.float32 and lines == 6
    assert any("3 of 4 words" in line for line in progress.lines)
    assert rows.tolist() == [[1, 2], [3, 4], [5, 6]]
    path.write_text("the 1 2\n3 2\n")
    with refused(DataError, key="vectors.txt", line=2, value=1):
        read_vectors(path, {"the"}, NullProgress())
    path.write_text("cat 1 2\ndog 1 x\n")  # nobody asked for the dog
    assert read_vectors(path, {"cat"}, NullProgress())[0] == ["cat"]


VECTOR_LINES = ["the 0.1 0.2 0.3", "a 0.1 0.2 0.3", "cat 0.1 0.2 0.3", "windows 95 0.1 0.2 0.3", ". . 0.1 0.2 0.3"]


@pytest.mark.parametrize(
    ("changed", "line", "held"),
    [
        ({0: "the 0.1 0.2"}, 2, 3),  # without a check, all other words are unknown
        ({0: "the 0.1 0.2 0.3 0.4"}, 2, 3),
        ({2: "cat -.1e-1 0.1 0.2 0.3"}, 3, 4),
        ({2: "cat 0.1 0.2"}, 3, 2),
        ({0: "5 4\nthe 0.1 0.2 0.3"}, 2, 3),  # the header counts
    ],
)
def test_vectors_with_another_number_of_columns_are_refused(changed, line, held, tmp_path):
    path, wanted = tmp_path / "vectors.txt", ["the", "a", "cat", ". ."]
    path.write_text("\n".join(changed.get(i, text) for i, text in enumerate(VECTOR_LINES)))
    with refused(DataError, key="vectors.txt", line=line, value=held):
        read_vectors(path, wanted, NullProgress())


@pytest.mark.parametrize("encoding, told", [("cp1251", "0xD1 is not UTF-8"), ("utf-16-le", "NUL, which no text has")])
def test_bytes_of_another_encoding_are_told_with_their_place(tmp_path, encoding, told):
    (path := tmp_path / "my own.txt").write_bytes("a\nС утра".encode(encoding))
    with refused(DataError, key="my own.txt", says=told) as caught:
        read_text(path)
    assert "save it again, as UTF-8" in caught.value.next_step and "byte" in str(caught.value)
