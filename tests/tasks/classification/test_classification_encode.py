"""Encoding against reference rules, tiny texts by hand, vector files, damage to the cache, further test sets."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.cells import classification
from tasks.classification import encode as module
from tasks.classification.encode import encode, encode_test, keep_encoding, open_encoded, wordpunct, wordpunct_br
from tasks.classification.options import Encode
from tasks.data import DataError, DataSet
from tasks.data.read.vectors import counted_vectors
from tasks.data.records import Example
from tasks.data.symbols import EOS, FIRST, PAD, UNK

TEXTS = {"train": [("a b b", 0), ("b c!", 1), ("", 1)], "dev": [("b d", 0)], "test": [("d zebra b", 1)]}


def dataset(texts=TEXTS, name: str = "tiny", version: str = "1", classes=("no", "yes"), fields=("text",)) -> DataSet:
    def examples(progress):
        marked = frozenset({"b"})
        return {s: [Example((text,) * len(fields), n, marked) for text, n in rows] for s, rows in texts.items()}

    fingerprint = {split: f"{split} {version}" for split in texts}
    about = {"classes": list(classes), "fields": list(fields)}
    return DataSet(name, "texts", fingerprint, examples, "by hand", about=about)


def encoded(tmp_path, texts=TEXTS, **options):
    return encode(dataset(texts), Encode(**{"min_count": 1, **options}), tmp_path)


def ids(found, split: str) -> list[list[int]]:
    return [row.tolist() for row in found.splits[split].fields[0]]


@given(st.text(alphabet=st.sampled_from("ab ,.<>/br'\n"), max_size=40))
def test_words_are_cut_as_wordpunct_does_and_no_character_is_lost(text):
    assert "".join(wordpunct(text)) == "".join(text.split())
    if not re.search(r"<\s*br", text):
        assert wordpunct_br(text) == wordpunct(text)
    words = ["Don", "'", "t", "stop", "...", "(", "it", "'", "s", "4", ".", "5", "/", "5", ")!"]
    assert wordpunct("Don't stop... (it's 4.5/5)!") == words
    assert wordpunct_br("good.<br /><br>bad<BR/>end") == ["good", ".", "<br>", "<br>", "bad", "<br>", "end"]


MARKED = [("हिन्दी है ।", 5), ("می\u200cبیند .", 7), ("cafe\u0301 !", 5), ("今天 好", 3), ("_a² ½", 4)]


@pytest.mark.parametrize("words, characters", MARKED)
def test_marks_stay_in_their_words(words, characters):
    text = words if characters < 5 else words.replace(" ।", "।").replace(" .", ".").replace(" !", "!")
    assert wordpunct(text) == words.split() and "".join(module.characters(text)) == "".join(text.split())
    assert len(module.characters(text)) == characters


@pytest.mark.parametrize("subword, pieces", [("char", list("今天很好")), ("sentencepiece", ["今天", "很", "好"])])
def test_texts_without_spaces_have_subwords(tmp_path, subword, pieces):
    texts = {s: [("今天很好", 0), ("明天很好", 1), ("今天不行", 0), ("明天", 1)] * 9 for s in ("train", "dev", "test")}
    found = encoded(tmp_path, texts, subword=subword)
    assert len(found.vocabulary) > 5 and found.sha256 != encoded(tmp_path, texts).sha256
    tokens = found.splits["train"].tokens[0][0]
    assert [t.strip("\u2581") for t in tokens if t != "\u2581"] == pieces
    keep_encoding(found.folder, tmp_path / "cell")
    for folder in (found.folder, tmp_path / "cell"):
        test = encode_test(dataset(texts), folder, tmp_path / folder.name)
        assert test.splits["test"].tokens[0][0] == tokens and ids(test, "test") == ids(found, "train")
    again = encode_test(dataset(texts, "other"), test.folder, tmp_path)  # a test set's folder is an encoding too
    assert ids(again, "test") == ids(found, "train")


def test_ids_vocabulary_and_unknown_words_also_of_the_test_split_which_is_encoded_apart(tmp_path):
    found = encoded(tmp_path, tokenizer="wordpunct")
    assert found.vocabulary == ["b", "!", "<empty>", "a", "c"]  # by count, then by name
    b, a, c, mark = (found.vocabulary.index(w) + FIRST for w in "bac!")
    assert ids(found, "train")[:2] == [[a, b, b], [b, c, mark]] and ids(found, "dev") == [[b, UNK]]
    assert (found.folder / "dict.txt").read_text().splitlines()[:2] == ["b 3", "! 1"]
    assert sorted([PAD, UNK, EOS, *range(FIRST, found.size)]) == list(range(1, found.size))
    assert found.report["labels"] == [1, 2] and found.report["unknown"]["dev.text"] == 0.5
    assert set(found.splits) == {"train", "dev"}
    test = encode_test(dataset(), found.folder, tmp_path)
    assert ids(test, "test") == [[UNK, UNK, b]] and test.vocabulary == found.vocabulary
    assert test.splits["test"].tokens[0][0] == ["d", "zebra", "b"]
    assert test.splits["test"].marked[0].tolist() == [False, False, True]
    assert test.report["unknown"]["test.text"] == pytest.approx(2 / 3, abs=1e-3)


def test_what_is_kept_of_an_encoding_encodes_further_test_sets(tmp_path):
    found = encoded(tmp_path, vectors="ppmi", vector_dim=2)
    assert found.vectors.shape == (len(found.vocabulary), 2) and np.isfinite(found.vectors).all()
    keep_encoding(found.folder, tmp_path / "cell")
    kept = open_encoded(tmp_path / "cell")
    assert not kept.splits and kept.vocabulary == found.vocabulary and kept.options == found.options
    assert np.array_equal(kept.vectors, found.vectors)
    other = {"test": [("b a", 0), ("c", 1)]}  # its classes stand in another order
    test = encode_test(dataset(other, "other", classes=("yes", "no")), tmp_path / "cell", tmp_path)
    assert test.splits["test"].labels.tolist() == [1, 0] and test.classes == ["no", "yes"]
    for texts, more, said in (
        (other, {"classes": ("no", "maybe")}, "the model knows the classes no, yes"),
        (other, {"fields": ("premise", "hypothesis")}, "reads text"),
        ({"train": [("a", 0)]}, {}, "no test examples"),
    ):
        with pytest.raises(DataError, match=said):
            encode_test(dataset(texts, said, **more), tmp_path / "cell", tmp_path)
    with pytest.raises(DataError, match=r"'data\.classes=\[no,yes\]' 'data\.drop=\[maybe\]'"):
        encode_test(dataset(other, "table", classes=("no", "maybe")), tmp_path / "cell", tmp_path)


def test_the_hash_follows_texts_and_options_not_the_test_set_or_the_place(tmp_path):
    one, other = (encode(dataset(TEXTS | {"test": [(text, 0)]}), Encode(min_count=1), tmp_path) for text in ("x", "y"))
    assert one.folder == other.folder and one.sha256 == other.sha256
    versions = [dataset(TEXTS | {"test": [(text, 0)]}, version=text) for text in ("x", "y")]
    first, second = (encode_test(data, one.folder, tmp_path) for data in versions)
    assert first.sha256 != second.sha256
    elsewhere = [encode(data, Encode(min_count=1), tmp_path / data.fingerprint["dev"]) for data in versions]
    assert {found.sha256 for found in elsewhere} == {one.sha256}
    changed = encoded(tmp_path / "other", TEXTS | {"dev": [("b e", 0)]})
    counted = [encoded(tmp_path, vectors="ppmi", vector_dim=dim) for dim in (1, 2)]
    assert len({one.sha256, changed.sha256, *(found.sha256 for found in counted)}) == 4
    assert one.vectors is None and encoded(tmp_path, vector_dim=7).sha256 == one.sha256


def test_an_empty_text_has_one_token_and_words_are_limited_and_special_ones_unknown(tmp_path):
    assert [len(row) for row in ids(encoded(tmp_path), "train")] == [3, 2, 1]
    found = encoded(tmp_path, min_count=2, max_tokens=2)
    assert found.vocabulary == ["b"]  # "a b", "b c!", "": b twice, the others once
    assert [len(row) for row in ids(found, "train")] == [2, 2, 1]
    assert encoded(tmp_path, vocab_size=1).vocabulary == ["b"]
    texts = {"train": [("</s> a <unk>", 0)], "dev": [("<pad> a", 0)]}
    strange = encode(dataset(texts, "strange"), Encode(min_count=1), tmp_path)
    assert strange.vocabulary == ["a"] and ids(strange, "dev") == [[UNK, FIRST]]


def test_pretrained_vectors(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("zebra 1 2 3\na 4 5 6\nunused 7 8 9\na 0 0 0\n. . . 1 1 1\n")
    found = encoded(tmp_path, vectors=str(file), min_count=2)
    assert found.vocabulary == ["b", "a"]  # a is rare and has a vector; zebra is in no training text
    assert found.vectors.tolist() == [[4, 5, 6]]
    assert module.shortfalls(found.options, found) == ["a file of 5 word vectors of 3 dimensions instead of GloVe 840B"]
    # the table's footer has the coverage, and a warning if most words have no vector
    told = "pretrained word vectors for 1 of 2 words, trained further"
    assert classification._vectors({"model": {"fixed_vectors": False}}, found) == told
    found.vocabulary.append("c")
    said = "pretrained word vectors for 1 of 3 words, fixed; WARNING: few words have one"
    assert classification._vectors({"model": {"fixed_vectors": True}}, found).startswith(said)
    file.write_text("a 4 5 7\n" * 2)
    again = encoded(tmp_path, vectors=str(file), min_count=2)
    assert again.vectors.tolist() == [[4, 5, 7]] and again.sha256 != found.sha256
    for content, said in (("other 1 2 3\n", "no word of the texts"), ("b x y z\n", "line 1")):
        file.write_text(content)
        with pytest.raises(DataError, match=said):
            encoded(tmp_path, vectors=str(file))
    with pytest.raises(DataError, match="missing"):
        encoded(tmp_path, vectors=str(tmp_path / "none.txt"))
    found = encoded(tmp_path)  # only GloVe 840B is no shortfall
    assert module.shortfalls(found.options, found) == ["random word vectors instead of GloVe 840B"]
    assert "counted in the training texts" in module.shortfalls(Encode(vectors="ppmi"), found)[0]
    for words, dim, wrong in ((2_196_017, 300, False), (2_196_017, 100, True), (400_000, 300, True)):
        found.report["vector_file"] = [words, dim]
        assert bool(module.shortfalls(Encode(vectors="glove.txt"), found)) == wrong


def test_counted_vectors_tell_words_in_the_same_places_from_others(tmp_path):
    rng = np.random.default_rng(0)
    animals, colours = ("cat", "dog", "fox"), ("red", "blue", "green")
    texts = [["the", rng.choice(animals), "ran", "and", "saw", "a", rng.choice(colours), "ball"] for _ in range(300)]
    words = [*animals, *colours, "the", "ran", "ball"]
    vectors = counted_vectors(texts, words, 4)
    assert vectors.shape == (9, 4) and vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(lengths, 0.35 * 2, rtol=1e-5)
    cosine = vectors @ vectors.T / np.outer(lengths, lengths)
    for group in (slice(0, 3), slice(3, 6)):
        assert cosine[group, group].min() > 0.95
    assert cosine[:3, 3:6].max() < 0.5
    again = counted_vectors(texts + texts, words, 4)  # equal texts count once
    np.testing.assert_allclose(again @ again.T, vectors @ vectors.T, atol=1e-5)
    alone = counted_vectors([*texts, ["alone"]], [*words, "alone"], 4)
    assert not alone[-1].any() and alone[:-1].any(1).all()  # no neighbours: no direction
    with pytest.raises(DataError, match="no two words stand near"):
        counted_vectors([["a"], ["b"], []], words, 4)
    with pytest.raises(DataError, match="9 words are too few for 9 dimensions"):
        counted_vectors(texts, words, 9)
