"""Encoding against nltk-like reference rules, tiny texts by hand, vector files, damage to the cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.classification.corpus import Example, Source, open_source
from tasks.classification.encode import PAD, SEPARATOR, UNK, WORDS, check_options, encode, wordpunct, wordpunct_br
from tasks.data.errors import DataError
from tasks.data.vectors import counted_vectors

TEXTS = {
    "train": [("a b b", 0), ("b c!", 1), ("", 1)],
    "dev": [("b d", 0)],
    "test": [("d zebra b", 1)],
}


def source(name: str = "tiny", texts=TEXTS, fingerprint: str = "1") -> Source:
    def read(progress):
        return {s: [Example((text,), label, frozenset({"b"})) for text, label in rows] for s, rows in texts.items()}

    return Source(name, fingerprint, read, ("no", "yes"), ("text",), "by hand")


def ids(encoded, split: str) -> list[list[int]]:
    return [encoded.splits[split].fields[0][i].tolist() for i in range(len(encoded.splits[split]))]


def test_words_are_cut_as_wordpunct_does():
    assert wordpunct("Don't stop... (it's 4.5/5)!") == [
        "Don",
        "'",
        "t",
        "stop",
        "...",
        "(",
        "it",
        "'",
        "s",
        "4",
        ".",
        "5",
        "/",
        "5",
        ")!",
    ]
    assert wordpunct_br("good.<br /><br>bad<BR/>end") == ["good", ".", "<br>", "<br>", "bad", "<br>", "end"]


@given(st.text(alphabet=st.sampled_from("ab ,.<>/br'\n"), max_size=40))
def test_no_character_is_lost(text):
    assert "".join(wordpunct(text)) == "".join(text.split())
    assert "".join(wordpunct_br(text)).count("<br>") == "".join(wordpunct_br(text)).count("<br>")
    if "<br" not in text:
        assert wordpunct_br(text) == wordpunct(text)


def test_ids_vocabulary_and_unknown_words(tmp_path):
    found = encode(source(), {"tokenizer": "wordpunct"}, tmp_path)
    assert found.vocab == ["b", "!", "<empty>", "a", "c"]  # by count, then by name
    b, a, c = (found.vocab.index(w) + WORDS for w in "bac")
    assert ids(found, "train")[:2] == [[a, b, b], [b, c, found.vocab.index("!") + WORDS]]
    assert ids(found, "test") == [[UNK, UNK, b]]
    assert len({PAD, UNK, SEPARATOR, *range(WORDS, found.size)}) == found.size
    assert found.splits["test"].tokens[0][0] == ["d", "zebra", "b"]
    assert found.splits["test"].marked[0].tolist() == [False, False, True]
    assert found.report["unknown"]["test.text"] == pytest.approx(2 / 3, abs=1e-3)


def test_an_empty_text_has_one_token(tmp_path):
    assert [len(row) for row in ids(encode(source(), {}, tmp_path), "train")] == [3, 2, 1]


def test_limits_on_words(tmp_path):
    found = encode(source(), {"min_count": 2, "max_tokens": 2}, tmp_path)
    assert found.vocab == ["b"]  # "a b", "b c!", "": b twice, the others once
    assert [len(row) for row in ids(found, "train")] == [2, 2, 1]
    assert encode(source(), {"vocab_size": 1}, tmp_path).vocab == ["b"]


def test_pretrained_vectors(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("zebra 1 2 3\nb 4 5 6\nunused 7 8 9\nb 0 0 0\n. . . 1 1 1\n")
    found = encode(source(), {"vectors": str(file), "min_count": 2}, tmp_path)
    assert found.vocab == ["zebra", "b"]  # zebra is only in test: having a vector is enough; a and c are too rare
    assert found.vectors.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.vector_rows.tolist() == [WORDS, WORDS + 1]
    assert ids(found, "test") == [[UNK, WORDS, WORDS + 1]]
    file.write_text("b 4 5 7\n" * 2)
    again = encode(source(), {"vectors": str(file), "min_count": 2}, tmp_path)
    assert again.vectors.tolist() == [[4, 5, 7]] and again.sha256 != found.sha256


def test_a_vector_file_that_does_not_fit_is_refused(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("other 1 2 3\n")
    with pytest.raises(DataError, match="no word of the texts"):
        encode(source(), {"vectors": str(file)}, tmp_path)
    file.write_text("b x y z\n")
    with pytest.raises(DataError, match="line 1"):
        encode(source(), {"vectors": str(file)}, tmp_path)
    with pytest.raises(DataError, match="missing"):
        encode(source(), {"vectors": str(tmp_path / "none.txt")}, tmp_path)


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
    with pytest.raises(DataError, match="9 words do not give vectors of 9 dimensions"):
        counted_vectors(texts, words, 9)


def test_counted_vectors_in_a_data_set(tmp_path):
    found = encode(source(), {"vectors": "ppmi", "vector_dim": 2, "min_count": 1}, tmp_path)
    assert found.vectors.shape == (len(found.vocab), 2) and np.isfinite(found.vectors).all()
    assert found.vector_rows.tolist() == list(range(WORDS, WORDS + len(found.vocab)))
    assert encode(source(), {"vectors": "ppmi", "vector_dim": 1}, tmp_path).sha256 != found.sha256
    plain = encode(source(), {}, tmp_path)
    assert plain.vectors is None and encode(source(), {"vector_dim": 7}, tmp_path).sha256 == plain.sha256


def test_a_cached_encoding_is_opened_without_reading_and_mended_when_damaged(tmp_path):
    first = encode(source(), {}, tmp_path)

    def refuse(progress):
        raise AssertionError("read again")

    unread = Source("tiny", "1", refuse, ("no", "yes"), ("text",), "by hand")
    assert ids(encode(unread, {}, tmp_path), "train") == ids(first, "train")
    np.save(first.folder / "train.labels.npy", np.array([1, 1, 1]))
    mended = encode(source(), {}, tmp_path)
    assert mended.splits["train"].labels.tolist() == [0, 1, 1] and mended.sha256 == first.sha256


def test_the_hash_follows_the_texts_not_the_place_they_come_from(tmp_path):
    one = encode(source(fingerprint="1"), {}, tmp_path / "a")
    two = encode(source(fingerprint="2"), {}, tmp_path / "b")
    other = encode(source(texts=TEXTS | {"dev": [("b e", 0)]}), {}, tmp_path / "c")
    assert one.sha256 == two.sha256 != other.sha256


def test_mistakes_are_named_together():
    with pytest.raises(DataError) as error:
        check_options({"tokeniser": "x", "tokenizer": "ptb", "max_tokens": 0})
    assert all(word in str(error.value) for word in ("'tokenizer'?", "'ptb'", "max_tokens is 0", "wordpunct"))
    with pytest.raises(DataError) as error:
        open_source({"name": "imbd", "limits": {"valid": 3}, "mirrors": "x"})
    assert all(word in str(error.value) for word in ("'imdb'", "'valid'", "'mirror'"))
