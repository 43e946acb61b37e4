"""Sets of sentence pairs read from a mirror: the real files."""

from __future__ import annotations

import pytest

from tasks.data import DataError, NullProgress
from tasks.data.records import Pair

TEXTS = {
    "en": "A man in an orange hat starring at something.",
    "fr": "Un homme avec un chapeau orange regardant quelque chose.",
    "de": "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
}


@pytest.mark.parametrize("source, target", [("fr", "en"), ("en", "fr"), ("de", "en")])
def test_multi30k(source, target, testdata, opened, read):
    node = {"source_lang": source, "target_lang": target, "mirror": str(testdata)}
    found = opened("multi30k", **node)
    splits = found.read(NullProgress())
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [29_000, 1_014, 1_000]
    assert splits["test"][0] == Pair(TEXTS[source], (TEXTS[target],))
    other = opened("multi30k", **node, test_set="test_2018_flickr")
    assert len(other.read(NullProgress())["test"]) == 1_071
    assert {s for s in splits if found.fingerprint[s] != other.fingerprint[s]} == {"test"}
    short = read("multi30k", **node, max_words={"source": 8}, min_words=4)["train"]
    assert max(len(p.source.split()) for p in short) == 8 < max(len(p.references[0].split()) for p in short)


def test_a_truncated_mirror_file_is_named(tmp_path, testdata, opened):
    name = "translation/multi30k/raw/val.fr.gz"
    for path in (testdata / "translation/multi30k/raw").iterdir():
        copy = tmp_path / "translation/multi30k/raw" / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes((testdata / name).read_bytes()[:9000])
    with pytest.raises(DataError, match=r"val\.fr\.gz is truncated") as caught:
        opened("multi30k", mirror=str(tmp_path))
    assert "expected 23,001 bytes, got 9,000" in caught.value.where


def test_a_mirror_set_without_a_mirror_says_which_key_to_set(opened):
    with pytest.raises(DataError, match="mirror") as caught:
        opened("reuters21578")
    assert "data.mirror=FOLDER" in caught.value.next_step


def test_scitldr_has_several_references(testdata, read):
    splits = read("scitldr", mirror=str(testdata))
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [1_992, 619, 618]
    assert max(len(pair.references) for pair in splits["test"]) > 3
