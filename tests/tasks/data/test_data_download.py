"""Downloads against a real server on this machine, honest and not."""

import hashlib
import http.server
import os
import tarfile
import threading

import pytest

from tasks.data import DataError, NullProgress
from tasks.data.acquire.archives import unpack
from tasks.data.acquire.download import download

BODY = bytes(range(256)) * 2000
SHA = hashlib.sha256(BODY).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves BODY; `cut` closes the connection after so many bytes; `ranges` tells whether parts can be asked for."""

    cut = None
    ranges = True
    asked: list


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(BODY):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        self.wfile.write(BODY[start : self.server.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def url(server, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return f"http://127.0.0.1:{server.server_port}/data.bin"


def test_a_download_is_verified_and_kept(server, url, tmp_path):
    path = download(url, tmp_path / "data.bin", NullProgress(), SHA, len(BODY))
    assert path.read_bytes() == BODY
    download(url, path, NullProgress(), SHA)
    assert server.asked == [None]


def test_a_broken_download_leaves_no_file_and_is_resumed(server, url, tmp_path):
    path = tmp_path / "data.bin"
    server.cut = 100_000
    with pytest.raises(DataError, match="truncated") as caught:
        download(url, path, NullProgress(), SHA)
    assert "data.bin" in caught.value.what
    assert f"{len(BODY):,}" in caught.value.where and "100,000" in caught.value.where
    assert not path.exists()
    server.cut = None
    assert download(url, path, NullProgress(), SHA).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-"]


def test_a_server_without_ranges_starts_over(server, url, tmp_path):
    server.ranges = False
    (tmp_path / "data.bin.part").write_bytes(b"something else")
    assert download(url, tmp_path / "data.bin", NullProgress(), SHA).read_bytes() == BODY


def test_wrong_content_is_refused_and_removed(url, tmp_path):
    with pytest.raises(DataError, match="damaged") as caught:
        download(url, tmp_path / "data.bin", NullProgress(), "0" * 64)
    assert SHA in caught.value.where and "0" * 64 in caught.value.where
    assert not (tmp_path / "data.bin").exists() and not (tmp_path / "data.bin.part").exists()


def test_a_part_that_is_already_complete_is_used(url, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY)
    assert download(url, tmp_path / "data.bin", NullProgress(), SHA).read_bytes() == BODY


def test_a_damaged_copy_in_the_cache_is_named(url, tmp_path):
    (tmp_path / "data.bin").write_bytes(BODY[:-1] + b"?")
    with pytest.raises(DataError, match="damaged") as caught:
        download(url, tmp_path / "data.bin", NullProgress(), SHA)
    assert "delete" in caught.value.next_step


def test_an_unreachable_server_is_a_data_error(server, url, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError, match="could not be fetched") as caught:
        download(url, tmp_path / "data.bin", NullProgress(), SHA, timeout=2)
    assert url in caught.value.where


def test_a_full_disk_while_downloading(url, tmp_path):
    os.symlink("/dev/full", tmp_path / "data.bin.part")
    with pytest.raises(DataError, match="disk is full"):
        download(url, tmp_path / "data.bin", NullProgress(), SHA)
    assert not (tmp_path / "data.bin").exists()


def test_a_truncated_archive_leaves_no_folder(tmp_path):
    (tmp_path / "text").write_bytes(os.urandom(50_000))
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        tar.add(tmp_path / "text", "text")
    whole = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "b.tgz").write_bytes(whole[:20_000])
    with pytest.raises(DataError, match=r"b\.tgz: the archive is damaged"):
        unpack(tmp_path / "b.tgz", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    unpack(tmp_path / "a.tgz", tmp_path / "a")
    assert (tmp_path / "a" / "text").stat().st_size == 50_000
