"""IMDB in its three layouts on tiny archives, and the real set and the real demo set where they are at hand."""

from __future__ import annotations

import io
import tarfile
from collections import Counter

import pytest

from tasks.classification.corpus import open_source
from tasks.data.errors import DataError
from tasks.data.progress import NullProgress

REVIEWS = {
    f"{s}/{c}/{i}_{r}": f"{s} {c} {i}<br />ü"
    for s in ("train", "test")
    for c, r in (("pos", 9), ("neg", 2))
    for i in range(10)
}


@pytest.fixture
def folder(tmp_path):
    for name, text in REVIEWS.items():
        path = tmp_path / "aclImdb" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "aclImdb" / "train" / "unsup").mkdir()
    (tmp_path / "aclImdb" / "train" / "unsup" / "0_0.txt").write_text("no label")
    return tmp_path


def read(**data):
    source = open_source({"name": "imdb", **data})
    return source, source.read(NullProgress())


def test_folder_and_archive_give_the_same_examples(folder, tmp_path):
    archive = tmp_path / "aclImdb_v1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "aclImdb", "aclImdb")
        info = tarfile.TarInfo("aclImdb/README")
        tar.addfile(info, io.BytesIO(b""))
    _, one = read(path=str(folder))
    _, inner = read(path=str(folder / "aclImdb"))
    _, two = read(path=str(archive))
    assert one == two == inner
    assert {s: len(e) for s, e in one.items()} == {"train": 18, "dev": 2, "test": 20}
    for split, examples in one.items():
        for example in examples:
            name, label, _ = example.texts[0].split(" ", 2)
            assert name == ("test" if split == "test" else "train")
            assert example.label == int(label == "pos")
    assert len({e.texts for e in one["train"]} | {e.texts for e in one["dev"]}) == 20


def test_dev_is_a_seeded_share_of_train(folder):
    _, a = read(path=str(folder), dev_share=0.3)
    source, b = read(path=str(folder), dev_share=0.3, split_seed=7)
    assert len(a["dev"]) == len(b["dev"]) == 6 and a["dev"] != b["dev"] and set(a["test"]) == set(b["test"])
    assert source.fingerprint != read(path=str(folder), dev_share=0.3)[0].fingerprint
    _, cut = read(path=str(folder), dev_share=0.3, limits={"train": 4})
    assert cut["train"] == a["train"][:4]


def test_what_cannot_be_read_is_an_error(folder, tmp_path):
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"\x1f\x8b not an archive")
    with pytest.raises(DataError, match="cannot be read"):
        read(path=str(broken))
    with pytest.raises(DataError, match="holds no reviews"):
        open_source({"name": "imdb", "path": str(tmp_path / "aclImdb" / "train")})
    with pytest.raises(DataError, match="does not exist"):
        open_source({"name": "imdb", "path": str(tmp_path / "none.tar")})


@pytest.mark.slow
def test_the_real_archive(testdata):
    _, splits = read(mirror=str(testdata))
    assert {s: Counter(e.label for e in rows).total() for s, rows in splits.items()} == {
        "train": 22_500,
        "dev": 2_500,
        "test": 25_000,
    }
    both = Counter(e.label for s in ("train", "dev") for e in splits[s])
    assert both == Counter(e.label for e in splits["test"]) == {0: 12_500, 1: 12_500}
    words = sum(len(e.texts[0].split()) for e in splits["test"]) / 25_000
    assert 220 < words < 240  # the set's page gives 231 for the 25,000 test reviews by another count
    assert any("<br />" in e.texts[0] for e in splits["dev"])
