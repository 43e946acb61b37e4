"""Features of images: complete or absent, checked; extraction against the network applied by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused

from tasks.commands.data import features as command
from tasks.data import DataError, DataUnavailable, NullProgress, features
from tasks.data.images import Files, ImageInput, Stored, coco_key, decode, open_images
from tasks.data.images import features as opened


@pytest.fixture
def made(vqa2_folder, tmp_path) -> Stored:
    source = Files([vqa2_folder / "train2014.zip"], coco_key)
    keys, tiny, folder = ["3", "7", "0", "99"], features.backbone("tiny", size=32), tmp_path / "set" / "features"
    return features.extract(source, keys, tiny, folder, NullProgress(), batch_size=2)


def test_damage_is_found(made, tmp_path, capsys):
    """Of the form by preparing a cell and by training, of the content by --check."""
    folder = tmp_path / "set" / "features"
    path, raw = folder / "features.npy", (folder / "features.npy").read_bytes()
    command(path=folder.parent, check=True)
    assert opened(folder).sha256 == made.sha256 and "4 images, 2 images without" in capsys.readouterr().out
    with refused(DataError, says="delete it"):  # nothing is written over
        features.extract(Files([folder.parent], str), ["0"], features.backbone("tiny"), folder, NullProgress())
    path.write_bytes(raw[:-1] + b"?")
    opened(folder)
    with refused(DataError, where="its checksums"):
        command(path=folder.parent, check=True)
    for wrong in (raw[:-8], b"\x93NUMPX" + raw[6:]):
        path.write_bytes(wrong)
        with refused(DataError, key="features.npy"):
            ImageInput("features", (2, 3), None, folder)(["3"], tmp_path, NullProgress())
        with refused(DataError, key="features.npy"):
            open_images({"kind": "features", "path": "."}, folder)
    with refused(DataUnavailable, where=str(tmp_path / "c")):
        opened(tmp_path / "c")


def test_an_interrupted_extraction_leaves_nothing(made, vqa2_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "write_meta", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    source, tiny = Files([vqa2_folder / "train2014.zip"], coco_key), features.backbone("tiny", size=32)
    with pytest.raises(KeyboardInterrupt):
        features.extract(source, ["3"], tiny, tmp_path / "other" / "features", NullProgress())
    assert not [*(tmp_path / "other").iterdir()]


def test_extracted_features_are_the_networks_own(made, vqa2_folder):
    source, model = Files([vqa2_folder / "train2014.zip"], coco_key), features.backbone("tiny", size=32)
    assert set(made.bad) == {"7", "99"} and made.grid == (2, 2) and made.channels == 16
    pixels = torch.from_numpy(decode(source.read("0"), (32, 32)).copy()).permute(2, 0, 1).double() / 255
    x = (pixels - torch.tensor(features.MEAN).view(3, 1, 1)) / torch.tensor(features.STD).view(3, 1, 1)
    with torch.no_grad():
        expected = model.net.double()(x.unsqueeze(0)).flatten(2).transpose(1, 2)[0]
    rows = made.rows(np.array([2, 1]))
    assert rows.dtype == np.float16
    np.testing.assert_allclose(rows[0], expected.numpy(), atol=2e-3)
    assert not rows[1].any() and np.abs(rows[0]).max() > 0.1


def test_half_precision_extraction_is_close_to_full_and_marks_what_it_cannot_hold(vqa2_folder, tmp_path):
    source, model = Files([vqa2_folder / "val2014"], coco_key), features.backbone("tiny", size=32)

    def extracted(place, **options):
        return features.extract(source, ["1000", "1001"], model, tmp_path / place, NullProgress(), **options)

    full, half = extracted("full").rows(np.arange(2)), extracted("half", amp=True).rows(np.arange(2))
    assert np.abs(full.astype(float) - half).max() < 0.02 * np.abs(full).max() and not np.array_equal(full, half)
    with torch.no_grad():
        model.net[2].bias.fill_(1e5)
    store = extracted("large")
    assert set(store.bad) == {"1000", "1001"} and "half precision" in store.bad["1000"]
    assert not store.rows(np.arange(2)).any()


def test_unknown_backbones_and_weights_that_are_not_resnets_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="resnet152, tiny"):
        features.backbone("vgg")
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed (the [repro] extra)")
    monkeypatch.setattr(models, "resnet152", models.resnet18)  # which is made sooner
    (tmp_path / "cut.pth").write_bytes(b"PK\x03\x04")
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "other.pth")
    for name, step in (("none", "fetch it again"), ("cut", "fetch the file again"), ("other", "resnet152's file")):
        with refused(DataUnavailable if name == "none" else DataError, says=step):
            features.backbone("resnet152", str(tmp_path / f"{name}.pth"))


@pytest.mark.slow
def test_resnet_cut_before_its_pooling(tmp_path):
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed (the [repro] extra)")
    net = models.resnet152(weights=None)
    torch.save(net.state_dict(), tmp_path / "w.pth")
    model = features.backbone("resnet152", str(tmp_path / "w.pth"), 64)
    with torch.no_grad():
        grid = model.net(torch.zeros(1, 3, 64, 64))
        pooled = net.eval().fc(grid.mean((2, 3)))
    assert grid.shape == (1, 2048, 2, 2)
    torch.testing.assert_close(pooled, net(torch.zeros(1, 3, 64, 64)), atol=1e-4, rtol=1e-4)
