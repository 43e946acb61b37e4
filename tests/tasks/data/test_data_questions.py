"""Questions about images: published formats, damaged files; images from folders and archives and their features; shapes."""

import json
import shutil
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from refusals import refused
from small_vqa2 import picture

from tasks.commands.data import features as command
from tasks.data import DataError, DataUnavailable, NullProgress, features, open_data
from tasks.data.images import Files, ImageInput, Stored, coco_key, decode, decode_all, open_images, path_key
from tasks.data.images import features as stored_features
from tasks.data.read.formats import counting
from tasks.data.records import Question
from tasks.data.sets import shapes
from tasks.data.sets.questions import hold_out, limited, read_vqa2
from tasks.vqa.metrics import baselines

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


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return open_data({"name": "shapes"}, tmp_path_factory.mktemp("cache")).read(QUIET)


def form_of(mask):
    """The form of a shape, from its pixels alone."""
    down, across = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    box = mask[down[0] : down[-1] + 1, across[0] : across[-1] + 1]
    if not box[len(box) // 2, box.shape[1] // 2]:
        return "ring"
    if box.mean() > 0.95:
        return "square"
    widths = box.sum(1)
    if len(set(widths.tolist())) == 2:
        return "cross"
    half = len(widths) // 2
    return "triangle" if widths[-half:].sum() > 1.5 * widths[:half].sum() else "circle"


def test_the_answers_are_those_that_the_pixels_show(splits, opened, tmp_path):
    asked = splits["dev"]
    images = opened("shapes").about["images"](list(dict.fromkeys(q.image for q in asked)), tmp_path, QUIET)
    assert images.grid == (shapes.SIDE, shapes.SIDE) and not images.bad
    for q in asked:
        (picture,) = images.rows(np.array([images.index[q.image]]))
        seen = {tuple(int(v) for v in rgb) for rgb in picture.reshape(-1, 3)} - {(0, 0, 0)}
        assert len(seen) == shapes.SHAPES
        form = q.text.removeprefix("what colour is the ").removesuffix("?")
        (colour,) = [rgb for rgb in seen if form_of((picture == rgb).all(-1)) == form]
        assert shapes.COLOURS[q.answer] == colour and q.answers == (q.answer,)


def test_the_question_alone_says_nothing_about_the_answer(splits):
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [9000, 1500, 3000]
    answers = Counter(q.answer for q in splits["train"])
    assert set(answers) == set(shapes.COLOURS) and max(abs(n - 9000 / 8) for n in answers.values()) < 130
    assert len({q.text for q in splits["train"]}) == len(shapes.FORMS)
    chance = 100 / len(shapes.COLOURS)
    assert all(of["test/accuracy"] < chance + 3 for of in baselines(splits["train"], splits["test"]).values())


def test_pictures_depend_only_on_seed_split_and_number(splits, read):
    assert list(read("shapes", limits={"train": 7})["train"]) == splits["train"][:7]
    other = read("shapes", seed=2)["train"]
    assert [q.answer for q in other[:30]] != [q.answer for q in splits["train"][:30]]
    keys = [f"{split}/{i}" for split in ("train", "dev", "test") for i in range(100)]
    once, again, else_ = ([shapes.draw(shapes.scene(seed, key)).tobytes() for key in keys] for seed in (1, 1, 2))
    assert once == again and len(set(once + else_)) == 600


@pytest.fixture
def made(vqa2_folder, tmp_path, tiny_backbone) -> Stored:
    source, folder = Files([vqa2_folder / "train2014.zip"], coco_key), tmp_path / "set" / "features"
    return features.extract(source, ["3", "7", "0", "99"], tiny_backbone, folder, NullProgress(), batch_size=2)


def test_damage_is_found(made, tmp_path, capsys, tiny_backbone):
    """Of the form by preparing a cell and by training, of the content by --check."""
    folder = tmp_path / "set" / "features"
    path, raw = folder / "features.npy", (folder / "features.npy").read_bytes()
    command(path=folder.parent, check=True)
    assert stored_features(folder).sha256 == made.sha256 and "4 images, 2 images without" in capsys.readouterr().out
    with refused(DataError, says="delete it"):  # nothing is written over
        features.extract(Files([folder.parent], str), ["0"], tiny_backbone, folder, NullProgress())
    path.write_bytes(raw[:-1] + b"?")
    stored_features(folder)
    with refused(DataError, where="its checksums"):
        command(path=folder.parent, check=True)
    for wrong in (raw[:-8], b"\x93NUMPX" + raw[6:]):
        path.write_bytes(wrong)
        with refused(DataError, key="features.npy"):
            ImageInput("features", (2, 3), None, folder)(["3"], tmp_path, NullProgress())
        with refused(DataError, key="features.npy"):
            open_images({"kind": "features", "path": "."}, folder)
    with refused(DataUnavailable, where=str(tmp_path / "c")):
        stored_features(tmp_path / "c")


def test_an_interrupted_extraction_leaves_nothing(made, vqa2_folder, tmp_path, monkeypatch, tiny_backbone):
    monkeypatch.setattr(features, "write_meta", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    source = Files([vqa2_folder / "train2014.zip"], coco_key)
    with pytest.raises(KeyboardInterrupt):
        features.extract(source, ["3"], tiny_backbone, tmp_path / "other" / "features", NullProgress())
    assert not [*(tmp_path / "other").iterdir()]


def test_extracted_features_are_the_networks_own(made, vqa2_folder, tiny_backbone):
    source = Files([vqa2_folder / "train2014.zip"], coco_key)
    assert set(made.bad) == {"7", "99"} and made.grid == (2, 2) and made.channels == 16
    pixels = torch.from_numpy(decode(source.read("0"), (32, 32)).copy()).permute(2, 0, 1).double() / 255
    x = (pixels - torch.tensor(features.MEAN).view(3, 1, 1)) / torch.tensor(features.STD).view(3, 1, 1)
    with torch.no_grad():
        expected = tiny_backbone.net.double()(x.unsqueeze(0)).flatten(2).transpose(1, 2)[0]
    rows = made.rows(np.array([2, 1]))
    assert rows.dtype == np.float16
    np.testing.assert_allclose(rows[0], expected.numpy(), atol=2e-3)
    assert not rows[1].any() and np.abs(rows[0]).max() > 0.1


def test_half_precision_extraction_is_close_to_full_and_marks_what_it_cannot_hold(vqa2_folder, tmp_path, tiny_backbone):
    source, model = Files([vqa2_folder / "val2014"], coco_key), tiny_backbone

    def extracted(place, **options):
        return features.extract(source, ["1000", "1001"], model, tmp_path / place, NullProgress(), **options)

    full, half = extracted("full").rows(np.arange(2)), extracted("half", amp=True).rows(np.arange(2))
    assert np.abs(full.astype(float) - half).max() < 0.02 * np.abs(full).max() and not np.array_equal(full, half)
    with torch.no_grad():
        model.net[2].bias.fill_(1e5)
    store = extracted("large")
    assert set(store.bad) == {"1000", "1001"} and "half precision" in store.bad["1000"]
    assert not store.rows(np.arange(2)).any()


def test_weights_that_are_not_resnets_are_refused(tmp_path, monkeypatch):
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed (the [repro] extra)")
    monkeypatch.setattr(models, "resnet152", models.resnet18)  # which is made sooner
    (tmp_path / "cut.pth").write_bytes(b"PK\x03\x04")
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "other.pth")
    for name, step in (("none", "fetch it again"), ("cut", "fetch the file again"), ("other", "resnet152's file")):
        with refused(DataUnavailable if name == "none" else DataError, says=step):
            features.resnet(str(tmp_path / f"{name}.pth"))


@pytest.mark.slow
def test_resnet_cut_before_its_pooling(tmp_path):
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed (the [repro] extra)")
    net = models.resnet152(weights=None)
    torch.save(net.state_dict(), tmp_path / "w.pth")
    model = features.resnet(str(tmp_path / "w.pth"), 64)
    with torch.no_grad():
        grid = model.net(torch.zeros(1, 3, 64, 64))
        pooled = net.eval().fc(grid.mean((2, 3)))
    assert grid.shape == (1, 2048, 2, 2)
    torch.testing.assert_close(pooled, net(torch.zeros(1, 3, 64, 64)), atol=1e-4, rtol=1e-4)
