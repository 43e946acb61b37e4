"""Questions as numbers: what is counted, what a cell keeps, what a training's identity depends on."""

import json
import shutil
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data import DataError, DataUnavailable, NullProgress, open_data
from tasks.data.records import Question
from tasks.data.sets.questions import normalized
from tasks.data.symbols import FIRST, PAD, UNK, frequent
from tasks.vqa import encode, metrics, predict
from tasks.vqa.options import Encode

QUIET = NullProgress()


def test_damage_is_left_out_of_training_and_targets_are_the_accuracy_each_answer_would_get(node, cache, encoded):
    records = open_data(node, cache).read(QUIET)
    asked = {s: {q.image for q in records[s]} for s in ("train", "dev")}
    for split in ("train", "dev"):
        lost = len({"7", "8"} & asked[split])
        assert encoded.counts.get(f"{split} questions with an unreadable image", 0) == lost
    assert not {"7", "8"} & {q.image for q in encoded.splits["train"].questions}
    assert len(encoded.splits["dev"]) == len(records["dev"]) and encoded.splits["dev"].questions == list(records["dev"])
    assert "malevich" not in encoded.answers
    part = encoded.splits["train"]
    for q, row in zip(part.questions, predict.targets_of(encoded, part, range(len(part)))):
        assert row.tolist() == pytest.approx([encode.accuracy(a, q.answers) for a in encoded.answers])
    assert max(part.answers.lengths) > 1  # the dissenting colour is in the vocabulary too
    if "5" in asked["train"]:
        assert encoded.counts["train questions without an answer in the vocabulary"] >= 1


def test_words_have_the_numbers_of_the_dictionary(encoded, encoded_test, node, cache):
    found = " ".join(encode.words_of("What's this T-shirt's colour, and/or size?"))
    assert found == "whats this t shirts colour and or size"
    lines = (encoded.folder / "dict.txt").read_text().splitlines()
    counted = Counter(w for q in encoded.splits["train"].questions for w in encode.words_of(q.text))
    assert [line.split() for line in lines] == [[w, str(counted[w])] for w in encoded.words]
    assert encoded.word_count == len(lines) + FIRST and frequent({"b": 2, "a": 2, "c": 1}, 2) == ["a", "b"]
    part = encoded_test.splits["test"]
    for q, row in zip(part.questions, (part.tokens[i] for i in range(len(part)))):
        said = [encoded.words[n - FIRST] if n != UNK else None for n in row]
        assert said == [w if w in encoded.words else None for w in encode.words_of(q.text)]
    data = open_data(node, cache)
    short = encode.encode(data, Encode(min_answer_count=2, max_tokens=3), cache, QUIET)
    test = encode.encode_test(data, short.folder, cache, QUIET)
    assert max(test.splits["test"].tokens.lengths) == 3 and test.counts["test questions cut at 3 words"] == 24


def test_the_identity_follows_options_and_content_but_not_the_test_set(node, cache, encoded, encoded_test):
    def made(**changed):
        data = open_data(node | {"limits": {"test": changed.pop("test", None)}}, cache)
        first = encode.encode(data, Encode(min_answer_count=2, **changed), cache, QUIET)
        return first.sha256, encode.encode_test(data, first.folder, cache, QUIET).sha256

    assert made() == (encoded.sha256, encoded_test.sha256)
    train, test = made(test=5)
    assert train == encoded.sha256 and test != encoded_test.sha256
    train, test = made(max_tokens=13)
    assert train != encoded.sha256 and test != encoded_test.sha256


def test_what_a_cell_keeps_is_enough_to_encode_and_to_build_the_model(node, cache, encoded, encoded_test, tmp_path):
    encode.keep_encoding(encoded.folder, tmp_path / "kept")
    kept = encode.open_encoded(tmp_path / "kept")
    assert not kept.splits and kept.image_spec == encoded.image_spec == encode.ImageSpec("pixels", (32, 32), 3)
    assert (kept.words, kept.answers, kept.options) == (encoded.words, encoded.answers, encoded.options)
    again = encode.encode_test(open_data(node, cache), tmp_path / "kept", cache, QUIET)
    assert again.folder == encoded_test.folder
    moved = shutil.copytree(cache, tmp_path / "cache")
    there, rows = encode.open_encoded(moved / encoded.folder.relative_to(cache)).images, np.arange(3)
    assert Path(there.array.filename).is_relative_to(moved)  # images are opened by path
    assert np.array_equal(encoded.images.rows(rows), there.rows(rows)) and there.rows(rows).any()
    lines = (encoded_test.folder / "test.questions.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["question_id"] == encoded_test.splits["test"].questions[0].question_id == 10_000
    assert "pixels" in encode.shortfalls(Encode(vectors="glove.txt"), kept.image_spec)[0]
    (short,) = encode.shortfalls(Encode(), encode.ImageSpec("features", (14, 14), 2048))
    assert short == "random word vectors instead of GloVe"
    with pytest.raises(DataError, match="not a folder of encoded data"):
        encode.open_encoded(tmp_path)


def test_features_are_read_from_their_store_and_missing_ones_counted(vqa2_folder, tmp_path, tiny_backbone):
    from tasks.data import features

    folder = tmp_path / "set"
    shutil.copytree(vqa2_folder, folder)
    node = {"name": "vqa2", "path": str(folder), "input": "features", "dev_share": 0.2}
    records = open_data(node | {"input": "pixels"}, tmp_path).read(QUIET)
    keys = list(dict.fromkeys(q.image for split in ("train", "dev", "test") for q in records[split]))
    source = open_data(node | {"input": "pixels"}, tmp_path).about["images"].source
    there = keys[:7] + keys[14:]
    features.extract(source, there, tiny_backbone, folder / "features", QUIET)
    found = encode.encode(open_data(node, tmp_path), Encode(min_answer_count=2), tmp_path, QUIET)
    lost = set(keys[7:14]) | {"7", "8"}
    for split in ("train", "dev"):
        count = sum(q.image in lost for q in records[split])
        assert found.counts.get(f"{split} questions with an unreadable image", 0) == count
    assert found.counts["train questions with an unreadable image"] >= 7
    assert found.image_spec == encode.ImageSpec("features", (2, 2), 16)
    assert found.images.rows(np.array([0])).shape == (1, 4, 16)


def test_vectors_to_start_from_and_answers_that_are_left(node, cache, tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("square 1 2 3\nunused 4 5 6\nblue 7 8 9\n")
    table, missing = encode.starting_vectors(path, ["blue", "square", "cube"], QUIET)
    assert table[FIRST].tolist() == [7, 8, 9] and table[FIRST + 1].tolist() == [1, 2, 3]
    assert not table[PAD].any() and missing == 1
    data, options = open_data(node, cache), Encode(min_answer_count=2, vectors=str(path))
    found = encode.encode(data, options, cache, QUIET)
    assert found.vectors[FIRST + found.words.index("square")].tolist() == [1, 2, 3]
    path.write_text("square 1 2 4\n")
    assert encode.encode(data, options, cache, QUIET).sha256 != found.sha256
    with pytest.raises(DataUnavailable, match="none is missing"):
        encode.encode(data, Encode(vectors=str(tmp_path / "none")), cache, QUIET)
    with pytest.raises(DataError, match=r"lower encode\.min_answer_count"):
        encode.encode(data, Encode(min_answer_count=1000), cache, QUIET)
    data = open_data(node | {"input": "none"}, tmp_path)  # questions alone
    found = encode.encode(data, Encode(min_answer_count=2), tmp_path, QUIET)
    test = encode.encode_test(data, found.folder, tmp_path, QUIET)
    assert found.image_spec.grid == (2, 2) and len(test.splits["test"]) == 24


def test_a_batch_holds_each_image_once_and_an_unreadable_one_is_black(encoded, encoded_test, monkeypatch):
    part = encoded.splits["train"]
    inputs = predict.inputs_of(encoded, part, [0, 5, 0, 9])
    assert len(inputs["images"]) == 3 and inputs["images"].shape[1:] == (32, 32, 3)
    for row, i in enumerate([0, 5, 0, 9]):
        pixels = inputs["images"][inputs["image_of"][row]].numpy()
        assert np.array_equal(pixels, encoded.images.rows(part.image[[i]])[0])
        words = [encoded.words[t - FIRST] for t in inputs["tokens"][row] if t != PAD]
        assert words == part.questions[i].text.lower().replace("?", "").split()
    part = encoded_test.splits["test"]
    monkeypatch.setattr(part, "image", np.where(np.arange(len(part)) == 3, -1, part.image))
    inputs = predict.inputs_of(encoded_test, part, [2, 3])
    assert [bool(inputs["images"][at].any()) for at in inputs["image_of"]] == [True, False]


def test_order_is_new_each_epoch_the_same_when_resumed_and_keeps_images_together():
    image = np.arange(60) // 3
    orders = [predict.order(image, 1, epoch, True) for epoch in (1, 2, 1)]
    assert np.array_equal(orders[0], orders[2]) and not np.array_equal(orders[0], orders[1])
    assert np.array_equal(np.sort(orders[1]), np.arange(60))
    assert 1 + np.count_nonzero(np.diff(image[orders[0]])) == 20
    loose = predict.order(image, 1, 1, False)
    assert np.array_equal(np.sort(loose), np.arange(60)) and np.count_nonzero(np.diff(image[loose])) > 40


def test_answers_from_a_file_are_a_models_answers_in_its_order(node, cache, tmp_path):
    data, path = open_data(node, cache), tmp_path / "answer_dict.json"
    plain = encode.encode(data, Encode(min_answer_count=2), cache, QUIET)
    names = [*reversed(plain.answers[:3]), "malevich"]
    of_mcan = [{name: i for i, name in enumerate(names)}, {str(i): name for i, name in enumerate(names)}]
    for content in (names, [dict(sorted(of_mcan[0].items())), of_mcan[1]]):
        path.write_text(json.dumps(content), encoding="utf-8")
        found = encode.encode(data, Encode(min_answer_count=1000, answers=str(path)), cache, QUIET)
        assert found.answers == names and found.sha256 != plain.sha256
        for q, row, scores in zip(*(getattr(found.splits["dev"], k) for k in ("questions", "answers", "scores"))):
            assert {names[i]: pytest.approx(s, abs=1e-6) for i, s in zip(row, scores)} == {
                a: s for a, s in encode.soft_scores(q.answers).items() if a in names and s > 0
            }
    path.rename(path.with_name("moved.json"))  # a test set needs the kept answers alone
    assert encode.encode_test(data, found.folder, cache, QUIET).answers == names
    with pytest.raises(DataUnavailable, match="is missing"):
        encode.read_answers(path)
    for wrong in '{} [] ["a",1] ["a",""] ["a","a"] [{"a":0,"b":2},{}] [{"a":0,"b":"c"},{}]'.split():
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(DataError, match="no list of answers"):
            encode.read_answers(path)


def by_definition(answer: str, answers: list[str]) -> float:
    """Antol et al. 2015: mean over all subsets of nine annotators of min(agreeing / 3, 1)."""
    subsets = list(combinations(range(len(answers)), len(answers) - 1))
    return sum(min(sum(answers[i] == answer for i in s) / 3, 1) for s in subsets) / len(subsets)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=10, max_size=10), st.sampled_from("abcde"))
def test_accuracy_is_the_definition(answers, answer):
    """With ten annotators, it has five values."""
    assert encode.accuracy(answer, answers) == pytest.approx(by_definition(answer, answers))
    assert encode.accuracy(answer, answers) == pytest.approx(min(0.3 * answers.count(answer), 1), abs=1e-9)
    assert encode.soft_scores(["red"]) == {"red": 1.0}


NORMALISED = [("The Dog.", "dog"), ("two", "2"), ("Dont know", "don't know"), ("t-shirt", "t shirt")]
NORMALISED += [("1,000", "1000"), ("3.5", "3.5"), ("yes!", "yes"), ("  A\nred car ", "red car"), ("it's", "it's")]
NORMALISED += [("none", "0"), ("its", "its"), ("5.", "5"), ("couldnt've", "couldn't've"), ("shes", "shes")]
NORMALISED += [("twas", "'twas")]


@pytest.mark.parametrize(("raw", "expected"), NORMALISED)
def test_normalisation(raw, expected):
    assert normalized(raw) == expected
    assert normalized(expected) == expected


def question(answer: str, kind: str, text: str = "q") -> Question:
    return Question(0, "i", text, (answer,), answer, kind)


def test_scores_by_type_and_baselines_that_know_the_question_only():
    questions = [question("yes", "yes/no"), question("no", "yes/no"), question("3", "number"), question("dog", "other")]
    values = metrics.score(questions, ["yes", "yes", "3", "cat"])
    assert values == {"accuracy": 50.0, "accuracy_yes_no": 50.0, "accuracy_number": 100.0, "accuracy_other": 0.0}
    with pytest.raises(ValueError, match="zip"):
        metrics.score(questions, ["a"] * 3)
    train = [question("no", "yes/no", "Is it red?")] * 3 + [question("red", "other", "Colour?")] * 2
    test = [question("no", "yes/no", "is it red?"), question("red", "other", "colour?")]
    found = metrics.baselines(train, test)
    assert found["most frequent answer"]["test/accuracy"] == 50.0
    assert found["question only (its most frequent answer)"]["test/accuracy"] == 100.0
