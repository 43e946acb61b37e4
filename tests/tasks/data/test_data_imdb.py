"""IMDB in its layouts, on tiny archives."""

from __future__ import annotations

import io
import tarfile
from collections import Counter

import pytest

from tasks.data import DataError, NullProgress


@pytest.fixture
def folder(tmp_path, write):
    for split in ("train", "test"):
        for kind, mark in (("pos", 9), ("neg", 2)):
            reviews = {f"{i}_{mark}.txt": [f"{split} {kind} {i}<br />ü"] for i in range(10)}
            write(tmp_path / "aclImdb" / split / kind, reviews)
    write(tmp_path / "aclImdb" / "train" / "unsup", {"0_0.txt": ["no label"]})
    return tmp_path


@pytest.fixture
def imdb(opened):
    """`imdb(**options)`: (data set, its splits)."""

    def imdb(**options):
        found = opened("imdb", **options)
        return found, found.read(NullProgress())

    return imdb


def test_folder_and_archive_give_the_same_examples(folder, tmp_path, imdb):
    archive = tmp_path / "aclImdb_v1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "aclImdb", "aclImdb")
        info = tarfile.TarInfo("aclImdb/README")
        tar.addfile(info, io.BytesIO(b""))
    _, one = imdb(path=str(folder))
    _, inner = imdb(path=str(folder / "aclImdb"))
    _, two = imdb(path=str(archive))
    assert one == two == inner
    assert {s: len(e) for s, e in one.items()} == {"train": 18, "dev": 2, "test": 20}
    for split, examples in one.items():
        for example in examples:
            name, label, _ = example.texts[0].split(" ", 2)
            assert name == ("test" if split == "test" else "train")
            assert example.label == int(label == "pos")
    assert len({e.texts for e in one["train"]} | {e.texts for e in one["dev"]}) == 20


def test_dev_is_a_seeded_share_of_train(folder, imdb):
    _, a = imdb(path=str(folder), dev_share=0.3)
    source, b = imdb(path=str(folder), dev_share=0.3, split_seed=7)
    assert len(a["dev"]) == len(b["dev"]) == 6 and a["dev"] != b["dev"] and set(a["test"]) == set(b["test"])
    assert source.fingerprint != imdb(path=str(folder), dev_share=0.3)[0].fingerprint
    sizes = ("20 of 25,000 training examples", "20 of 25,000 test examples")
    assert source.shortfalls == (*sizes, "content not verified: imdb is known by its size only")
    _, cut = imdb(path=str(folder), dev_share=0.3, limits={"train": 4})
    assert list(cut["train"]) == a["train"][:4]


def test_what_cannot_be_read_is_an_error(folder, tmp_path, imdb):
    with pytest.raises(DataError, match="holds no reviews"):
        imdb(path=str(tmp_path / "aclImdb" / "train"))
    with pytest.raises(DataError, match="does not exist"):
        imdb(path=str(tmp_path / "none.tar"))


def test_the_archive_of_a_mirror(mirror, imdb):
    source, splits = imdb(mirror=str(mirror))
    assert not source.shortfalls  # its checksum says that it is whole
    assert imdb(mirror=str(mirror), limits={"test": 9})[0].shortfalls == ("9 of 25,000 test examples",)
    assert {s: len(rows) for s, rows in splits.items()} == {"train": 18, "dev": 2, "test": 10}
    assert Counter(e.label for s in ("train", "dev") for e in splits[s]) == {0: 10, 1: 10}
    for example in splits["test"]:
        assert example.texts[0].startswith(f"test {('neg', 'pos')[example.label]} ") and "<br />" in example.texts[0]
