"""Downloads from a real server on this machine: verified, resumed, refused."""

import hashlib
import os

import pytest
from hub_stand_in import serving
from packed import tar

from tasks.data import DataError, NullProgress
from tasks.data.acquire.archives import unpack
from tasks.data.acquire.download import download

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
