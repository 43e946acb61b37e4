"""The feature store: resumed, checked, read while incomplete; extraction against the network applied by hand."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from refusals import refused

from tasks.data import DataError, DataUnavailable, NullProgress, feature_store, features
from tasks.data.feature_store import FeatureStore, Layout, verified, write
from tasks.data.images import Files, ImageInput, coco_key, decode, open_images

KEYS = tuple("abcdefg")
LAYOUT = Layout("counting", (2, 3), 4, KEYS, shard_size=3)


class Counting:
    """Features that say which key they belong to; counts calls, fails where told."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls, self.fail_at = 0, fail_at

    def __call__(self, keys):
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        self.calls += 1
        return np.stack([np.full((6, 4), KEYS.index(k) + 1.0) for k in keys]), {"b": "damaged"} if "b" in keys else {}


def test_an_interrupted_store_continues_with_what_is_missing(tmp_path):
    first = Counting(fail_at=1)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, LAYOUT, first, NullProgress())
    partly = FeatureStore(tmp_path)
    assert partly.missing == ["shard-00001", "shard-00002"] and set(partly.bad) == {"b", "d", "e", "f", "g"}
    assert partly.rows(np.array([0]))[:, 0, 0].tolist() == [1]
    second, progress = Counting(), NullProgress()
    store = write(tmp_path, LAYOUT, second, progress)
    assert second.calls == 2 and progress.lines == ["1 of 3 shards exist already"]
    assert store.rows(np.array([6, 0, 4, 0])).dtype == np.float16
    assert store.rows(np.array([6, 0, 4, 0]))[:, 5, 3].tolist() == [7, 1, 5, 1]
    assert store.bad == {"b": "damaged"} and store.sha256 != partly.sha256
    third = Counting()
    assert write(tmp_path, LAYOUT, third, NullProgress()).sha256 == store.sha256 and third.calls == 0


def test_damage_is_found(tmp_path):
    """By the store, by preparing a cell and by training."""
    write(tmp_path, LAYOUT, Counting(), NullProgress())
    path = tmp_path / "features.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    FeatureStore(tmp_path)  # its form only
    for read in (
        FeatureStore(tmp_path).check,
        lambda: ImageInput("features", (2, 3), None, tmp_path)(KEYS, tmp_path, NullProgress()),
        lambda: open_images({"kind": "features", "path": "."}, tmp_path),
    ):
        with refused(DataError, key="features.npy", value="shard-00002"):
            read()
    path.write_bytes(raw[:-8])
    with refused(DataError, key="features.npy"):
        FeatureStore(tmp_path)
    path.unlink()  # deleted by hand: computed again
    again = Counting()
    assert not write(tmp_path, LAYOUT, again, NullProgress()).missing and again.calls == 3
    with refused(DataError, key="store.json", value="extractor"):
        write(tmp_path, Layout("other", (2, 3), 4, KEYS, shard_size=3), Counting(), NullProgress())
    with refused(DataUnavailable, where=str(tmp_path / "c")):
        FeatureStore(tmp_path / "c")
    raw = path.read_bytes()
    for wrong in (b"\x93NUMPX" + raw[6:], (2, 3, 2)):
        path.write_bytes(wrong) if isinstance(wrong, bytes) else np.save(path, np.ones(wrong, np.float16))
        with refused(DataError, key="features.npy", value=None if isinstance(wrong, bytes) else wrong):
            FeatureStore(tmp_path)
    for damage in ("{", "[]", "{}", '{"format": 1}', "null", "\ufeffx"):
        (tmp_path / "store.json").write_text(damage)
        with refused(DataError, key="store.json"):
            FeatureStore(tmp_path)


def test_an_array_is_hashed_again_only_when_it_was_touched(tmp_path, monkeypatch):
    write(tmp_path, LAYOUT, Counting(), NullProgress())
    hashed = []
    sha256_of = feature_store._sha256
    monkeypatch.setattr(feature_store, "_sha256", lambda rows: hashed.append(len(rows)) or sha256_of(rows))
    monkeypatch.setattr(feature_store, "SETTLED_NS", -1)  # as if it lay there for long
    array, stamps = tmp_path / "features.npy", tmp_path / feature_store.STAMP
    assert verified(tmp_path).rows(np.array([6, 0]))[:, 0, 0].tolist() == [7, 1]
    assert len(hashed) == 3
    verified(tmp_path)
    assert len(hashed) == 3  # nothing was touched
    array.touch()
    verified(tmp_path)
    assert hashed[3:] == [3, 3, 1]
    raw, before = array.read_bytes(), array.stat()
    array.write_bytes(raw[:-1] + b"?")
    os.utime(array, ns=(before.st_atime_ns, before.st_mtime_ns))  # its old time does not hide it
    with refused(DataError, key="features.npy", value="shard-00002"):
        verified(tmp_path)
    monkeypatch.setattr(feature_store, "SETTLED_NS", 10**12)
    array.write_bytes(raw)
    stamps.unlink()
    verified(tmp_path)
    assert not stamps.exists()  # what was written just now may change within the clock's tick


def test_extracted_features_are_the_networks_own(vqa2_folder, tmp_path):
    source = Files([vqa2_folder / "train2014.zip"], coco_key)
    model = features.backbone("tiny", size=32)
    keys = ["3", "7", "0", "99"]
    store = features.extract(source, keys, model, tmp_path, NullProgress(), batch_size=2, shard_size=2)
    assert set(store.bad) == {"7", "99"} and store.grid == (2, 2) and store.channels == 16
    pixels = torch.from_numpy(decode(source.read("0"), (32, 32)).copy()).permute(2, 0, 1).double() / 255
    x = (pixels - torch.tensor(features.MEAN).view(3, 1, 1)) / torch.tensor(features.STD).view(3, 1, 1)
    with torch.no_grad():
        expected = model.net.double()(x.unsqueeze(0)).flatten(2).transpose(1, 2)[0]
    rows = store.rows(np.array([2, 1]))
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
    for name, step in (("none", "--weights"), ("cut", "fetch the file again"), ("other", "resnet152's file")):
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
