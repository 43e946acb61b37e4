"""Files and entries of the cache appear whole or not at all; encoding by several processes gives the same bytes."""

import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tasks.data import DataError, NullProgress, Progress
from tasks.data.cache import cached_folder, cached_rows, is_whole, read_meta, write_meta
from tasks.data.files import publish_file, publish_folder, remembered, sha256_of, verify, writing_to
from tasks.data.ragged import open_tokens, write_tokens

KINDS = {"too long": b"abcd", "truncated": b"ab", "damaged": b"abd", "missing": None}


@pytest.mark.parametrize("kind, content", KINDS.items())
def test_verify_names_file_expected_found_and_next_step(tmp_path, kind, content):
    path, good = tmp_path / "text.gz", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"abc")  # test vector of FIPS 180-2, appendix B.1
    verify(path, good, 3)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=kind) as caught:
        verify(path, good, 3)
    assert "text.gz" in str(caught.value) and "fetch it again" in caught.value.next_step
    if kind == "damaged":
        assert good in caught.value.why and sha256_of(path) in caught.value.why


def test_files_and_folders_are_published_whole_and_the_first_writer_of_a_folder_wins(tmp_path):
    path = tmp_path / "folder" / "data"
    publish_file(path, "whole")
    assert path.read_text() == "whole" and list(path.parent.iterdir()) == [path]
    folder = path.parent / "entry"
    with publish_folder(folder) as one, publish_folder(folder) as two:
        (one / "x").write_text("outer")
        (two / "x").write_text("inner")
    assert (folder / "x").read_text() == "inner" and {*path.parent.iterdir()} == {path, folder}


def test_a_full_disk_and_one_that_cannot_be_written_are_data_errors(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(DataError, match="disk is full") as caught:
        patch.setattr(os, "fsync", lambda _: Path("/dev/full").write_bytes(b"1"))
        publish_file(tmp_path / "x", "half")
    assert "paths.data" in caught.value.next_step
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="cannot be written"), writing_to(tmp_path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    with pytest.raises(IsADirectoryError), writing_to(tmp_path):  # other errors pass unchanged
        tmp_path.write_text("a folder is no file")


def test_cached_rows_are_made_once_whatever_is_in_them(tmp_path):
    made = iter([([["a\u2028b", "é"], ["c", "\n"]], {"release": "x"})])
    first, again = (cached_rows(tmp_path, "x", 1, lambda: next(made), NullProgress()) for _ in range(2))
    assert first == again and first[0] == [["a\u2028b", "é"], ["c", "\n"]] and first[1]["release"] == "x"


def test_plain_progress_writes_lines_with_counts(tmp_path):
    with open(tmp_path / "log", "w") as stream:
        progress = Progress(stream, interval=0.0)
        progress.say("hello")
        assert list(progress.over(range(4), "working")) == [0, 1, 2, 3]
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "hello" and lines[-1].startswith("working: 4 of 4") and len(lines) == 5


def test_a_value_is_remembered_for_its_key_and_computed_each_time_where_it_cannot_be_kept(tmp_path, monkeypatch):
    made = iter(range(9))
    path = tmp_path / "kept.json"
    assert [remembered(path, key, lambda: next(made)) for key in ("a", "a", "b")] == [0, 0, 1]
    for damaged in (path.read_text().replace('"b": 1', '"b": 7'), "{"):  # another value, no JSON
        path.write_text(damaged)
        assert remembered(path, "b", lambda: next(made)) in (2, 3)

    def refused(*args, **kwargs):
        raise PermissionError(errno.EROFS, "read-only")

    monkeypatch.setattr("os.replace", refused)
    assert [remembered(path, key, lambda: next(made)) for key in ("b", "c", "c")] == [3, 4, 5]


QUIET = NullProgress()


@pytest.fixture
def build(tmp_path):
    """`build(key)`: an entry; `build.made` counts."""

    def build(key, progress=QUIET):
        def fill(folder):
            build.made += 1
            (folder / "sub").mkdir()
            (folder / "sub" / "x.txt").write_text(f"content of {key}")
            return {"key": key}

        return cached_folder(tmp_path, "set", key, fill, progress)

    build.made = 0
    return build


def test_an_entry_is_built_once_whole_or_not_at_all_and_another_key_is_another_entry(build, tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise DataError("no", "where", "next")

    with pytest.raises(DataError, match="no"):
        cached_folder(tmp_path, "set", 1, fail, QUIET)
    assert [p.name for p in (tmp_path / "encoded").iterdir() if not p.name.endswith(".lock")] == []
    first = build(["a", 1])
    assert first.parent == tmp_path / "encoded"
    assert read_meta(first)["key"] == ["a", 1] and set(read_meta(first)["files"]) == {"sub/x.txt"}
    assert build(["a", 1]) == first and build.made == 1 and build(["a", 2]) != first
    assert build({"b": 1, "a": 2}) == build({"a": 2, "b": 1})
    made = build.made
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(build, ["k"] * 8))) == 1 and build.made == made + 1
    with pytest.raises(DataError, match="not a folder of encoded data"):
        read_meta(tmp_path)
    (other := tmp_path / "other").mkdir()
    write_meta(other, {"a": 1})
    assert read_meta(other) == {"a": 1, "files": {}}


@pytest.mark.parametrize("damage", ["content", "missing file", "missing meta", "no json"])
def test_a_damaged_entry_is_built_again(build, damage):
    folder, progress = build("k"), NullProgress()
    if damage == "content":
        (folder / "sub/x.txt").write_text("other")
    elif damage == "missing file":
        (folder / "sub/x.txt").unlink()
    elif damage == "missing meta":
        (folder / "meta.json").unlink()
    else:
        (folder / "meta.json").write_text("{")
    assert not is_whole(folder) and build("k", progress) == folder and is_whole(folder) and build.made == 2
    assert "damaged" in progress.lines[0] and [p.name for p in folder.parent.iterdir() if ".damaged." in p.name] == []


def test_tokens_are_written_as_numpy_would(tmp_path):
    rng = random.Random(1)
    rows = [rng.choices("abcdefg", k=rng.randint(0, 6)) for _ in range(5000)]
    index = {letter: i for i, letter in enumerate("abcdef", 4)}
    share = write_tokens(tmp_path, "x", rows, index, 3)
    flat = np.array([index.get(t, 3) for row in rows for t in row], dtype=np.int32)
    np.save(tmp_path / "own.npy", flat)
    assert (tmp_path / "x.ids.npy").read_bytes() == (tmp_path / "own.npy").read_bytes()
    assert share == float((flat == 3).mean())
    ids, tokens = open_tokens(tmp_path, "x")
    assert [tokens[i] for i in range(5000)] == rows and list(ids.lengths) == list(map(len, rows))
    assert write_tokens(tmp_path, "none", [], index, 3) == 0.0 and len(open_tokens(tmp_path, "none")[0]) == 0
    rows = [["a", "b", "a"], [], ["é", "\u2028x"]]
    assert write_tokens(tmp_path, "odd", rows, index, 3) == pytest.approx(2 / 5)
    ids, tokens = open_tokens(tmp_path, "odd")
    assert [ids[i].tolist() for i in (0, 1, -1)] == [[4, 5, 4], [], [3, 3]] and tokens[-1] == rows[-1]
    for found in (ids, tokens):
        with pytest.raises(IndexError):
            found[3]
