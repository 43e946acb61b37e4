"""Loaders on the published formats, on real files where there are any, and on damaged ones; what is counted."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter

import numpy as np
import pytest
from small_vqa2 import picture

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import NullProgress
from tasks.vqa.answers import accuracy
from tasks.vqa.corpus import hold_out, limited, load_corpus, load_images
from tasks.vqa.encode import encode, read_vectors, words_of
from tasks.vqa.images import Files, ImageError, coco_key, decode, decode_all, path_key, stem_key
from tasks.vqa.questions import read_nlvr, read_vqa2

OPTIONS = {"max_tokens": 14, "min_answer_count": 2, "vectors": None}


def test_a_small_vqa2_with_damage_is_read_and_the_damage_counted(data):
    corpus = load_corpus(data)
    assert [len(corpus.splits[s]) for s in ("train", "dev", "test")] == [
        60 - len(corpus.splits["dev"]),
        len(corpus.splits["dev"]),
        24,
    ]
    assert not {q.image for q in corpus.splits["train"]} & {q.image for q in corpus.splits["dev"]}
    progress = NullProgress()
    images = load_images(data, corpus, progress)
    assert set(images.bad) == {"7", "8"}
    assert "decoded" in images.bad["7"] and "no image" in images.bad["8"]
    assert any("2 of 84 images" in line for line in progress.lines)
    encoded = encode(corpus, images, OPTIONS)
    asked = {s: {q.image for q in corpus.splits[s]} for s in ("train", "dev")}
    for split in ("train", "dev"):
        lost = len({"7", "8"} & asked[split])
        assert encoded.counts.get(f"{split} questions with an unreadable image", 0) == lost
    assert not {"7", "8"} & {q.image for q in encoded.parts["train"].questions}  # left out of training
    assert "malevich" not in encoded.answers
    if "5" in asked["train"]:
        assert encoded.counts["train questions without an answer in the vocabulary"] >= 1


def test_soft_targets_are_the_accuracy_each_answer_would_get(encoded):
    part = encoded.parts["train"]
    for q, numbers, scores in zip(part.questions, part.answers, part.scores):
        for n, s in zip(numbers, scores):
            assert s == pytest.approx(accuracy(encoded.answers[n], q.answers))
    assert max(map(len, part.answers)) > 1  # the dissenting colour is in the vocabulary too


def test_words_of_a_question_and_the_longest_one(data):
    assert words_of("What's this T-shirt's colour, and/or size?") == [
        "whats",
        "this",
        "t",
        "shirts",
        "colour",
        "and",
        "or",
        "size",
    ]
    corpus = load_corpus(data)
    encoded = encode(corpus, load_images(data, corpus), OPTIONS | {"max_tokens": 3})
    assert encoded.parts["test"].tokens.shape[1] == 3 and encoded.counts["test questions cut at 3 words"] == 24


def test_real_vqa2_questions_and_annotations(testdata):
    data = {
        "name": "vqa2_subset",
        "mirror": str(testdata),
        "root": "unused",
        "input": "none",
        "limits": {"train": 8000},
    }
    corpus = load_corpus(data)
    assert (
        len(corpus.splits["train"]) == 8000 and len(corpus.splits["test"]) == 2962 and len(corpus.splits["dev"]) == 8977
    )
    assert {len(q.answers) for q in corpus.splits["test"]} == {10}
    assert Counter(q.answer_type for q in corpus.splits["test"]).keys() == {"yes/no", "number", "other"}
    # the annotators' own majority answer is nearly always fully right, and normalisation finds it among the ten
    right = [accuracy(q.answer, q.answers) for q in corpus.splits["dev"]]
    assert np.mean(right) > 0.9 and min(right) > 0
    encoded = encode(corpus, load_images(data, corpus), OPTIONS | {"min_answer_count": 9})
    assert 50 < len(encoded.answers) < 1000 and {"yes", "no", "2", "red"} <= set(encoded.answers[:30])
    assert encoded.counts["test questions without an answer in the vocabulary"] > 0
    with pytest.raises(DataUnavailable, match="without images"):
        load_images(data | {"input": "pixels"}, corpus)


def test_real_nlvr_sentences_and_images(testdata, tmp_path):
    data = {
        "name": "nlvr", "mirror": str(testdata), "root": str(tmp_path), "image_size": [25, 100],
        "limits": {"train": 30, "dev": 10, "test": 20},
    }  # fmt: skip
    corpus = load_corpus(data)
    assert len(corpus.source.keys()) == 989 + 985 + 990
    images = load_images(data, corpus)
    assert images.array.shape[1:] == (25, 100, 3) and not images.bad
    assert len({images.array[i].tobytes() for i in range(len(images.array))}) > 50  # different pictures
    assert {q.answer for q in corpus.splits["train"]} == {"true", "false"}
    again = load_images(data, corpus)
    assert np.array_equal(again.array, images.array) and again.sha256 == images.sha256


def test_every_reader_names_the_file_it_cannot_read(tmp_path):
    path = tmp_path / "questions.json"
    for text, what in (
        ("{", "no JSON"),
        ("[]", "no list 'questions'"),
        ('{"questions": [{"image_id": 1}]}', "has no question, question_id"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=what):
            read_vqa2(path, None, Counter())
    path.write_bytes(gzip.compress(b'{"questions": []}')[:-6])
    with pytest.raises(DataError, match="damaged"):
        read_vqa2(path, None, Counter())
    path.write_text('{"sentence": "x"}\n')
    with pytest.raises(DataError, match="line 1"):
        read_nlvr(path, "dev")
    with pytest.raises(DataUnavailable, match="missing"):
        read_vqa2(tmp_path / "none.json", None, Counter())


def test_questions_without_annotations_are_counted(tmp_path):
    entry = {"image_id": 1, "question": "a?", "question_id": 1}
    (tmp_path / "q").write_text(json.dumps({"questions": [entry, entry | {"question_id": 2}]}))
    note = {"question_id": 1, "answers": [{"answer": "Yes"}] * 10, "answer_type": "yes/no"}
    (tmp_path / "a").write_text(json.dumps({"annotations": [note, note | {"question_id": 9}]}))
    counts: Counter[str] = Counter()
    (found,) = read_vqa2(tmp_path / "q", tmp_path / "a", counts)
    assert found.answer == "yes" and found.answers == ("yes",) * 10
    assert counts == {"questions without an annotation": 1, "annotations without a question": 1}
    (tmp_path / "a").write_text(json.dumps({"annotations": [note | {"answer_type": "colour"}]}))
    with pytest.raises(DataError, match="'colour'"):
        read_vqa2(tmp_path / "q", tmp_path / "a", Counter())


def test_keys_of_images():
    assert coco_key("train2014/COCO_train2014_000000228478.jpg") == "228478" and coco_key("a.txt") is None
    assert stem_key("dev/dev-1373-0-0.png") == "dev-1373-0-0"
    assert path_key("data/train/images/7.png") == "train/7" and path_key("x.json") is None


def test_images_from_tar_zip_and_folder_are_the_same(vqa2_folder, tmp_path):
    key = "1003"
    folder = Files([vqa2_folder / "val2014"], coco_key)
    with tarfile.open(tmp_path / "val.tar", "w") as archive:
        archive.add(vqa2_folder / "val2014", "val2014")
    assert Files([tmp_path / "val.tar"], coco_key).read(key) == folder.read(key)
    assert Files([vqa2_folder / "train2014.zip"], coco_key).read("3")
    with pytest.raises(ImageError, match="no image with key"):
        folder.read("55")
    (tmp_path / "broken.zip").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"broken\.zip is damaged"):
        Files([tmp_path / "broken.zip"], coco_key)
    with pytest.raises(DataUnavailable):
        Files([tmp_path / "absent"], coco_key)
    with pytest.raises(DataError, match="no image"):
        Files([tmp_path], coco_key)


def test_decoding_fails_for_every_kind_of_damage():
    whole = picture("red")
    assert decode(whole, (20, 24)).shape == (20, 24, 3)
    for raw in (b"", b"no image", whole[:60], whole[: len(whole) // 2]):
        with pytest.raises(ImageError, match="decoded"):
            decode(raw, (20, 24))


def test_images_that_cannot_be_read_at_all_are_an_error(data, tmp_path):
    (tmp_path / "000000000001.jpg").write_bytes(b"x")
    source = Files([tmp_path], coco_key)
    with pytest.raises(DataError, match="1 of 1 images"):
        decode_all(source, ["1"], (8, 8), tmp_path / "cache", NullProgress())


def test_a_damaged_pixel_cache_is_made_again(data, tmp_path):
    corpus = load_corpus(data)
    first = np.array(load_images(data, corpus).array)
    (path,) = (tmp_path / "vqa").glob("pixels-*.npy")
    path.write_bytes(path.read_bytes()[:-1000])
    assert np.array_equal(load_images(data, corpus).array, first)


def test_splits_depend_on_the_image_alone():
    from tasks.vqa.questions import Question

    questions = [Question(i, f"image{i // 3}", "q", ("a",), "a", "other") for i in range(600)]
    rest, held = hold_out(questions, 0.1)
    assert 20 < len(held) < 120 and not {q.image for q in rest} & {q.image for q in held}
    assert hold_out(questions[::-1], 0.1)[1] == held[::-1]
    few = hold_out(questions[:9], 1e-6)  # three images: one of them
    assert [len(part) for part in few] == [6, 3] and len({q.image for q in few[1]}) == 1
    small, large = limited(questions, 50), limited(questions, 200)
    assert len(small) == 50 and set(small) <= set(large)


def test_all_mistakes_of_a_request_at_once():
    with pytest.raises(DataError) as caught:
        load_corpus({"name": "vqa", "root": "r", "image": 3, "input": "video", "limits": {"valid": 1}, "dev_share": 0})
    for part in ("'vqa'", "data.image is unknown", "'video'", "valid", "dev_share=0"):
        assert part in str(caught.value)


def test_word_vectors(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("red 1 2 3\nunused 4 5 6\nblue 7 8 9\n")
    counts: Counter[str] = Counter()
    table, digest = read_vectors(path, ["<pad>", "<unk>", "blue", "red"], counts)
    assert (
        table[2].tolist() == [7, 8, 9] and table[3].tolist() == [1, 2, 3] and not table[0].any() and len(digest) == 64
    )
    assert counts["words without a vector"] == 2
    path.write_text("red 1 2 3\nblue 7 8\n")
    with pytest.raises(DataError, match="line 2"):
        read_vectors(path, ["blue", "red"], counts)
    path.write_text("red 1 2 3\nat name@domain.com 7 8 9\n")  # GloVe 840B has words with spaces
    assert read_vectors(path, ["<pad>", "red"], counts)[0].shape == (2, 3)
    with pytest.raises(DataError, match="no word"):
        read_vectors(path, ["cyan"], counts)
    with pytest.raises(DataUnavailable):
        read_vectors(tmp_path / "none", ["cyan"], counts)
