"""The private apt: archives against dpkg-deb, lists in every compression, errors; one real fetch."""

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import time

import pytest

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.acquire import apt as apt_module
from tasks.data.acquire.apt import PrivateApt, extract_deb


def _tar(files, mode):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    return stream.getvalue()


def _deb(path, files):
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar(
            {"./control": b"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"}, "w:gz"
        ),
        "data.tar.xz": _tar(files, "w:xz"),
    }
    body = b"!<arch>\n"
    for name, data in members.items():
        body += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    path.write_bytes(body)


FILES = {"./usr/share/a.txt": b"one", "./usr/share/b/c.txt": b"two" * 999}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")
def test_a_package_is_extracted_and_a_truncated_one_is_named(tmp_path):
    _deb(tmp_path / "x.deb", FILES)
    extract_deb(tmp_path / "x.deb", tmp_path / "out")
    assert (tmp_path / "out/usr/share/b/c.txt").read_bytes() == FILES["./usr/share/b/c.txt"]
    (tmp_path / "y.deb").write_bytes((tmp_path / "x.deb").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"y\.deb is damaged"):
        extract_deb(tmp_path / "y.deb", tmp_path / "out")


def test_without_apt_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="no apt-get") as caught:
        PrivateApt(tmp_path, NullProgress())
    assert "Debian or Ubuntu" in caught.value.next_step


def _compressors():
    yield "", lambda data: data
    yield ".gz", gzip.compress
    yield ".xz", lzma.compress
    yield ".bz2", bz2.compress
    if shutil.which("lz4"):
        yield ".lz4", lambda data: subprocess.run(["lz4", "-c"], input=data, capture_output=True, check=True).stdout


@pytest.mark.parametrize("suffix, compress", list(_compressors()))
def test_lists_are_read_in_every_compression(tmp_path, suffix, compress):
    folder = tmp_path / "apt/lists"
    folder.mkdir(parents=True)
    text = "Package: a\nDescription-en: é\n\nPackage: b\nDescription-en: c\n\n"
    (folder / f"mirror_main_i18n_Translation-en{suffix}").write_bytes(compress(text.encode()))
    (folder / f"mirror_main_i18n_Translation-fr{suffix}").write_bytes(compress(b"Package: z\n"))
    apt = PrivateApt.__new__(PrivateApt)
    apt.folder = tmp_path / "apt"
    assert [stanza.split("\n")[0] for stanza in apt.stanzas("Translation-en")] == ["Package: a", "Package: b"]


def _fake_apt(tmp_path, monkeypatch, script, mirror=""):
    """An apt-get that does what `script` says, first on PATH; its sources name a mirror of Debian, or none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apt-get").write_text(f"#!/bin/sh\nif [ $1 = indextargets ]; then echo {mirror} main; exit; fi\n{script}")
    (folder / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_unreachable_sources(tmp_path, monkeypatch):
    # apt-get update ends well even when it fetched nothing
    _fake_apt(tmp_path, monkeypatch, "echo 'W: Failed to fetch http://example.invalid  Temporary failure'; exit 0\n")
    with pytest.raises(DataError, match="could not fetch the package lists") as caught:
        PrivateApt(tmp_path / "cache", NullProgress()).update()
    assert "Temporary failure" in caught.value.where


def test_a_failed_update_is_not_tried_again_at_once(tmp_path, monkeypatch):
    _fake_apt(tmp_path, monkeypatch, f"echo called >> {tmp_path}/calls; echo 'W: no route'\n")
    monkeypatch.setattr(apt_module, "KEYRING", tmp_path / "no keys")
    apt = PrivateApt(tmp_path / "cache", NullProgress())
    for _ in range(3):
        with pytest.raises(DataUnavailable, match="no route"):
            apt.update()
    assert (tmp_path / "calls").read_text() == "called\n"
    old = time.time() - apt_module.RETRY_SECONDS - 1
    os.utime(tmp_path / "cache/apt/unreachable", (old, old))
    with pytest.raises(DataUnavailable):
        apt.update()
    assert (tmp_path / "calls").read_text() == "called\ncalled\n"


@pytest.mark.parametrize("readable", [True, False])
def test_every_machine_reads_the_same_release_or_says_that_it_cannot(tmp_path, monkeypatch, readable):
    (tmp_path / "keys").touch()
    monkeypatch.setattr(apt_module, "KEYRING", tmp_path / "keys")
    _fake_apt(
        tmp_path,
        monkeypatch,
        'set_to() { sed -n "s/^$1 \\"\\(.*\\)\\";/\\1/p" "$APT_CONFIG"; }\n'
        "sources=$(set_to Dir::Etc::SourceList); lists=$(set_to Dir::State::lists)\n"
        f'if [ -z "$sources" ]; then echo "Package: own" > "$lists/x_Packages"\n'
        f'elif {str(readable).lower()}; then echo "Package: $(cat "$sources")" > "$lists/x_Packages"\n'
        "else echo 'W: Failed to fetch bookworm'; fi\n",
        mirror="http://here/debian",
    )
    progress = NullProgress()
    said = []
    monkeypatch.setattr(progress, "say", said.append)
    apt = PrivateApt(tmp_path / "cache", progress)
    apt.update()
    (stanza,) = apt.stanzas("Packages")
    if readable:
        assert (
            f"signed-by={tmp_path}/keys" in stanza
            and stanza.endswith("http://here/debian bookworm main\n")
            and len(said) == 1
        )
    else:
        assert stanza == "Package: own\n" and "Failed to fetch bookworm" in said[1] and "will differ" in said[1]


def test_disk_full_during_update(tmp_path, monkeypatch):
    _fake_apt(tmp_path, monkeypatch, "echo 'E: Write error - write (28: No space left on device)'; exit 100\n")
    with pytest.raises(DataError, match="disk is full"):
        PrivateApt(tmp_path / "cache", NullProgress()).update()


def test_the_private_configuration_is_used_and_lists_are_kept(tmp_path, monkeypatch):
    _fake_apt(
        tmp_path,
        monkeypatch,
        'lists=$(sed -n \'s/^Dir::State::lists "\\(.*\\)";/\\1/p\' "$APT_CONFIG")\n'
        'grep -q Acquire::Languages "$APT_CONFIG" && echo "Package: a" > "$lists/x_Packages"\n'
        f"echo called >> {tmp_path}/calls\n",
    )
    apt = PrivateApt(tmp_path / "cache", NullProgress())
    day = apt.update()
    assert apt.update() == day and (tmp_path / "calls").read_text() == "called\n"
    assert list(apt.stanzas("Packages")) == ["Package: a\n"]
