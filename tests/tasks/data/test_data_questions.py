"""Questions about images: published formats, real files where there are any, damaged ones; images from folders and archives."""

import json
import shutil
import zipfile

import numpy as np
import pytest
from refusals import refused
from small_vqa2 import picture

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.images import Files, coco_key, decode, decode_all, open_images, path_key
from tasks.data.read.formats import counting
from tasks.data.records import Question
from tasks.data.sets.questions import hold_out, limited, read_vqa2

QUIET = NullProgress()


@pytest.fixture
def small(vqa2_folder):
    """Options of the small set."""
    return {"path": str(vqa2_folder), "input": "pixels", "image_size": [32, 32], "dev_share": 0.2}


def keys_of(splits):
    return list(dict.fromkeys(q.image for part in splits.values() for q in part))


def test_a_small_vqa2_with_damaged_images(opened, small, tmp_path):
    found = opened("vqa2", **small)
    splits, progress = found.read(QUIET), NullProgress()
    assert len(splits["train"]) + len(splits["dev"]) == 60 and len(splits["test"]) == 24 and splits["dev"]
    assert not {q.image for q in splits["train"]} & {q.image for q in splits["dev"]}
    images = found.about["images"](keys_of(splits), tmp_path, progress)
    assert set(images.bad) == {"7", "8"} and "decoded" in images.bad["7"] and "no image" in images.bad["8"]
    assert any("2 of 84 images" in line for line in progress.lines)
    again = open_images({"kind": images.kind, "path": images.path}, tmp_path / "encoded" / "x")
    first = images.rows(np.arange(84))
    assert np.array_equal(again.rows(np.arange(84)), first) and again.index == images.index
    (path,) = (tmp_path / "encoded").glob("pixels-*/*.npy")
    path.write_bytes(path.read_bytes()[:-1000])
    with refused(DataUnavailable, where=str(path.parent)):  # a damaged cache is made again
        open_images({"kind": "pixels", "path": f"../{path.parent.name}"}, tmp_path / "encoded" / "x")
    assert np.array_equal(found.about["images"](keys_of(splits), tmp_path, QUIET).rows(np.arange(84)), first)
    assert "60 of 443,757 training questions" in found.shortfalls
    assert any("scored on val" in s for s in found.shortfalls)
    blank = opened("vqa2", **small | {"input": "none"}).about["images"](["1", "2"], tmp_path, QUIET)
    assert not blank.rows(np.array([0, 0])).any()
    assert not open_images({"kind": "features", "path": blank.path}, tmp_path).rows(np.array([0])).any()
    with refused(DataUnavailable, where=f"{small['path']}/features"):
        opened("vqa2", **small | {"input": "features"}).about["images"](["1"], tmp_path, QUIET)


def test_train_of_vqa2_does_not_depend_on_val(opened, small, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(small["path"], folder)
    before = opened("vqa2", **small | {"path": str(folder)})
    (name,) = folder.glob("v2_mscoco_val*")
    name.write_text(name.read_text() + " ")
    after = opened("vqa2", **small | {"path": str(folder)})
    assert {s for s in ("train", "dev", "test") if before.fingerprint[s] != after.fingerprint[s]} == {"test"}
    name.unlink()
    with refused(DataUnavailable, key=name.name):
        opened("vqa2", **small | {"path": str(folder)})


def test_questions_and_annotations_without_the_other_are_counted(tmp_path):
    entry = {"image_id": 1, "question": "a?", "question_id": 1}
    (tmp_path / "q").write_text(json.dumps({"questions": [entry, entry | {"question_id": 2}]}))
    note = {"question_id": 1, "answers": [{"answer": "Yes"}] * 10, "answer_type": "yes/no"}
    (tmp_path / "a").write_text(json.dumps({"annotations": [note, note | {"question_id": 9}]}))
    with counting() as counts:
        (found,) = read_vqa2(tmp_path / "q", tmp_path / "a")
    assert found.answer == "yes" and found.answers == ("yes",) * 10
    assert counts == {"questions without an annotation left out": 1, "annotations without a question left out": 1}


def test_images_from_zip_and_folder_are_the_same(vqa2_folder, tmp_path):
    assert coco_key("train2014/COCO_train2014_000000228478.jpg") == "228478" and coco_key("a.txt") is None
    assert path_key("data/train/images/7.png") == "train/7" and path_key("x.json") is None
    folder = Files([vqa2_folder / "val2014"], coco_key)
    with zipfile.ZipFile(tmp_path / "val.zip", "w") as archive:
        for path in (vqa2_folder / "val2014").iterdir():
            archive.write(path, f"val2014/{path.name}")
    assert Files([tmp_path / "val.zip"], coco_key).read("1003") == folder.read("1003")
    with pytest.raises(DataError):
        folder.read("55")
    with refused(DataUnavailable):
        Files([tmp_path / "absent"], coco_key)
    with refused(DataError, key="data.path", value=[tmp_path]):
        Files([tmp_path], coco_key)


def test_decoding_fails_for_every_kind_of_damage(tmp_path):
    whole = picture("red")
    assert decode(whole, (20, 24)).shape == (20, 24, 3)
    for raw in (b"", b"no image", whole[:60], whole[: len(whole) // 2]):
        with pytest.raises(DataError):
            decode(raw, (20, 24))
    (tmp_path / "000000000001.jpg").write_bytes(b"x")
    with refused(DataError, value=1):  # of all images
        decode_all(Files([tmp_path], coco_key), ["1"], (8, 8), tmp_path / "cache", QUIET)


def test_splits_depend_on_the_image_alone():
    questions = [Question(i, f"image{i // 3}", "q", ("a",), "a", "other") for i in range(600)]
    rest, held = hold_out(questions, 0.1)
    assert 20 < len(held) < 120 and not {q.image for q in rest} & {q.image for q in held}
    assert hold_out(questions[::-1], 0.1)[1] == held[::-1]
    few = hold_out(questions[:9], 1e-6)  # three images: one of them
    assert [len(part) for part in few] == [6, 3] and len({q.image for q in few[1]}) == 1
    small, large = limited(questions, 50), limited(questions, 200)
    assert len(small) == 50 and set(small) <= set(large)
