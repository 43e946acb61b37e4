"""The cache of encoded data: built once, verified, mended; rows of tokens as they were written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.data import DataError, NullProgress
from tasks.data.cache import cached_folder, is_whole, read_meta, write_meta

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


def test_an_entry_is_built_once_and_another_key_is_another_entry(build, tmp_path):
    first = build(["a", 1])
    assert first.parent == tmp_path / "encoded"
    assert read_meta(first)["key"] == ["a", 1] and set(read_meta(first)["files"]) == {"sub/x.txt"}
    assert build(["a", 1]) == first and build.made == 1 and build(["a", 2]) != first
    assert build({"b": 1, "a": 2}) == build({"a": 2, "b": 1})


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


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise DataError("no", "where", "next")

    with pytest.raises(DataError, match="no"):
        cached_folder(tmp_path, "set", 1, fail, QUIET)
    assert [p.name for p in (tmp_path / "encoded").iterdir() if not p.name.endswith(".lock")] == []


def test_many_at_once_build_one_entry(build):
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(build, ["k"] * 8))) == 1
    assert build.made == 1


def test_a_folder_that_is_no_entry_is_named(tmp_path):
    with pytest.raises(DataError, match="not a folder of encoded data"):
        read_meta(tmp_path)
    write_meta(tmp_path, {"a": 1})
    assert read_meta(tmp_path) == {"a": 1, "files": {}}
