"""Sets of sentence pairs read from a mirror of the published layout."""

from __future__ import annotations

import shutil

import pytest
from made_mirror import CAPTIONS

from tasks.data import DataError, NullProgress
from tasks.data.records import Pair

TEXTS = {"en": "my aunt paints the old clock on the wall behind us", "fr": "ma tante peint la vieille horloge"}
TEXTS |= {"de": "meine Tante malt die alte Uhr an der Wand"}


@pytest.mark.parametrize("source, target", [("fr", "en"), ("en", "fr"), ("de", "en")])
def test_multi30k(source, target, mirror, opened, read):
    node = {"source_lang": source, "target_lang": target, "mirror": str(mirror)}
    found = opened("multi30k", **node)
    splits = found.read(NullProgress())
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [30, 8, 5]
    assert splits["test"][0] == Pair(TEXTS[source], (TEXTS[target],))
    other = opened("multi30k", **node, test_set="test_2018_flickr")
    assert len(other.read(NullProgress())["test"]) == 6
    assert {s for s in splits if found.fingerprint[s] != other.fingerprint[s]} == {"test"}
    short = read("multi30k", **node, max_words={"source": 5}, min_words=4)["train"]
    both = list(zip(CAPTIONS[source], CAPTIONS[target]))[:30]
    assert short == [Pair(s, (t,)) for s, t in both if 4 <= len(s.split()) <= 5 and len(t.split()) >= 4]
    assert 0 < len(short) < 30


def test_a_truncated_mirror_file_and_a_mirror_that_is_not_set_are_named(tmp_path, mirror, opened):
    name = "translation/multi30k/raw/val.fr.gz"
    shutil.copytree(mirror / "translation", tmp_path / "translation")
    whole = (mirror / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:90])
    with pytest.raises(DataError, match=r"val\.fr\.gz is truncated") as caught:
        opened("multi30k", mirror=str(tmp_path))
    assert f"expected {len(whole)} bytes, got 90" in caught.value.where
    with pytest.raises(DataError, match="mirror") as caught:
        opened("reuters21578")
    assert "data.mirror=FOLDER" in caught.value.next_step


def test_scitldr_has_several_references(mirror, read):
    splits = read("scitldr", mirror=str(mirror))
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [8, 4, 4]
    assert splits["test"][1] == Pair("We study a man paints two red boats. It works.", ("On test 1.", "It works."))
