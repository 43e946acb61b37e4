"""Downloads from a real server on this machine, wheels by pip, packages by a private apt: verified, resumed, refused."""

import hashlib
import os
import shutil
import zipfile

import pytest
from hub_stand_in import serving
from packed import tar

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.acquire import apt as apt_module
from tasks.data.acquire.apt import PrivateApt, extract_deb
from tasks.data.acquire.download import download
from tasks.data.acquire.sources import fetch_wheel

BODY = bytes(range(256)) * 2000
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        server.files["data.bin"] = BODY
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


def test_a_broken_download_leaves_no_file_and_is_resumed(server, get, tmp_path):
    url = "http://127.0.0.1:9/data.bin"  # nothing listens there
    with pytest.raises(DataError, match="could not be fetched") as caught:
        download(url, tmp_path / "data.bin", NullProgress(), SHA)
    assert url in caught.value.why
    server.cut = 100_000
    with pytest.raises(DataError, match=r"data\.bin is truncated") as caught:
        get()
    assert f"{len(BODY):,}" in caught.value.why and "100,000" in caught.value.why
    assert not (tmp_path / "data.bin").exists()
    server.cut = None
    assert get() == BODY
    assert ranges(server) == [None, "bytes=100000-"]


def test_a_full_disk_while_downloading(get, tmp_path):
    os.symlink("/dev/full", tmp_path / "data.bin.part")
    with pytest.raises(DataError, match="disk is full"):
        get()
    assert not (tmp_path / "data.bin").exists()


PARTS = {"nothing": (None, True), "no ranges": (b"something else", False), "complete": (BODY, True)}


@pytest.mark.parametrize("part, partly", PARTS.values(), ids=PARTS)
def test_a_part_is_started_over_or_used_and_a_download_is_kept(server, get, part, partly):
    server.partly = partly
    assert get(part=part) == get(size=len(BODY)) == BODY
    assert len(server.asked) == 1  # verified and kept


def test_wrong_content_is_refused_and_removed(get, tmp_path):
    with pytest.raises(DataError, match="damaged") as caught:
        get("0" * 64)
    assert SHA in caught.value.why and "0" * 64 in caught.value.why
    assert not (tmp_path / "data.bin").exists() and not (tmp_path / "data.bin.part").exists()
    (tmp_path / "data.bin").write_bytes(BODY[:-1] + b"?")  # a damaged copy in the cache
    with pytest.raises(DataError, match="damaged") as caught:
        get()
    assert "delete" in caught.value.next_step


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
    def fetched(version="1.5", **more):
        return fetch_wheel({"package": "toy-text", "version": version} | more, tmp_path / "cache", NullProgress())

    wheel = index / "toy_text-1.5-py3-none-any.whl"
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(DataError, match="whl is damaged") as caught:
        fetched(sha256="f" * 64)
    assert good in caught.value.why
    assert not (tmp_path / "cache/wheels/toy-text-1.5").exists()
    folder = fetched(sha256=good)
    assert (folder / "toy_text/data/rows.csv").read_text() == "a,b\n1,2\n"
    wheel.unlink()
    assert fetched() == folder
    with pytest.raises(DataError, match=r"could not fetch toy-text==2\.0") as caught:
        fetched("2.0")
    assert "network" in caught.value.next_step
    assert [path for path in (tmp_path / "cache/wheels").iterdir() if path.is_dir()] == [folder]


CONTROL = "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")
def test_a_package_is_extracted_and_a_truncated_one_is_named(tmp_path):
    text, whole = b"two" * 999, b"!<arch>\n"
    for name, raw in {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tar({"./control": CONTROL}, "w:gz"),
        "data.tar.xz": tar({"./usr/share/a.txt": b"one", "./usr/share/b/c.txt": text}, "w:xz"),
    }.items():
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(raw):<10}`\n"
        whole += head.encode() + raw + b"\n" * (len(raw) % 2)
    (tmp_path / "x.deb").write_bytes(whole)
    extract_deb(tmp_path / "x.deb", tmp_path / "out")
    assert (tmp_path / "out/usr/share/b/c.txt").read_bytes() == text
    (tmp_path / "y.deb").write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"y\.deb is damaged"):
        extract_deb(tmp_path / "y.deb", tmp_path / "out")


@pytest.fixture
def fake_apt(tmp_path, monkeypatch):
    """`fake_apt(script, mirror)`: a private apt; its apt-get runs `script`, its sources name a Debian mirror or none."""
    (tmp_path / "keys").touch()
    monkeypatch.setattr(apt_module, "KEYRING", tmp_path / "keys")

    def make(script, mirror="http://here/debian", progress=None, cache="cache"):
        (folder := tmp_path / "bin").mkdir(exist_ok=True)
        targets = f"if [ $1 = indextargets ]; then echo {mirror} main; exit; fi"
        (folder / "apt-get").write_text(f"#!/bin/sh\n{targets}\n{script}")
        (folder / "apt-get").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return PrivateApt(tmp_path / cache, progress or NullProgress())

    return make


MIRRORS = [("", True, "name no Debian mirror"), ("http://x/debian", False, "there is no ")]
MIRRORS += [("http://x/debian", True, "no route")]


@pytest.mark.parametrize("mirror, keys, said", MIRRORS)
def test_a_release_that_cannot_be_read_is_told(fake_apt, tmp_path, monkeypatch, mirror, keys, said):
    # apt-get update ends well even when it fetched nothing
    apt = fake_apt("echo 'W: Failed to fetch http://x.invalid  no route'; exit 0\n", mirror)
    monkeypatch.setattr(apt_module, "KEYRING", tmp_path / ("keys" if keys else "none"))
    with pytest.raises(DataUnavailable) as caught:
        apt.update()
    assert said in caught.value.why


def test_every_machine_reads_the_same_release_by_a_private_configuration_once(fake_apt, tmp_path, monkeypatch):
    script = """
set_to() { sed -n "s/^$1 \\"\\(.*\\)\\";/\\1/p" "$APT_CONFIG"; }
grep -q Acquire::Languages "$APT_CONFIG" || exit 1
lists="$(set_to Dir::State::lists)"
echo "Package: $(cat "$(set_to Dir::Etc::SourceList)")" > "$lists/x_Packages"
printf 'Package: é\\n\\nPackage: b\\n\\n' > "$lists/x_Translation-en"
touch "$lists/y_Translation-en"
echo called >> calls
"""
    progress = NullProgress()
    apt = fake_apt(script.replace("calls", f"{tmp_path}/calls"), progress=progress)
    assert apt.update() == apt.update() and (tmp_path / "calls").read_text() == "called\n"
    assert [*apt.stanzas("Translation-en")] == ["Package: é", "Package: b"]
    (stanza,) = apt.stanzas("Packages")
    assert f"signed-by={tmp_path}/keys" in stanza and stanza.endswith("http://here/debian bookworm main\n")
    assert len(progress.lines) == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="no apt-get") as caught:
        PrivateApt(tmp_path, NullProgress())
    assert "Debian or Ubuntu" in caught.value.next_step
    with pytest.raises(DataError, match="disk is full"):
        fake_apt("echo 'E: Write error - write (28: No space left on device)'; exit 100\n", cache="other").update()
