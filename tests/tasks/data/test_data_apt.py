"""The private apt: archives against dpkg-deb, lists in every compression, errors."""

import bz2
import gzip
import lzma
import shutil
import subprocess

import pytest
from packed import tar

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.acquire import apt as apt_module
from tasks.data.acquire.apt import PrivateApt, extract_deb

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


@pytest.fixture
def fake_apt(tmp_path, monkeypatch):
    """`fake_apt(script, mirror)`: a private apt; its apt-get runs `script`, its sources name a Debian mirror or none."""
    (tmp_path / "keys").touch()
    monkeypatch.setattr(apt_module, "KEYRING", tmp_path / "keys")

    def make(script, mirror="http://here/debian", progress=None):
        folder = tmp_path / "bin"
        folder.mkdir()
        targets = f"if [ $1 = indextargets ]; then echo {mirror} main; exit; fi"
        (folder / "apt-get").write_text(f"#!/bin/sh\n{targets}\n{script}")
        (folder / "apt-get").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return PrivateApt(tmp_path / "cache", progress or NullProgress())

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
    assert said in caught.value.where


def test_every_machine_reads_the_same_release_by_a_private_configuration_once(fake_apt, tmp_path):
    script = """
set_to() { sed -n "s/^$1 \\"\\(.*\\)\\";/\\1/p" "$APT_CONFIG"; }
grep -q Acquire::Languages "$APT_CONFIG" || exit 1
echo "Package: $(cat "$(set_to Dir::Etc::SourceList)")" > "$(set_to Dir::State::lists)/x_Packages"
echo called >> calls
"""
    progress = NullProgress()
    apt = fake_apt(script.replace("calls", f"{tmp_path}/calls"), progress=progress)
    assert apt.update() == apt.update() and (tmp_path / "calls").read_text() == "called\n"
    (stanza,) = apt.stanzas("Packages")
    assert f"signed-by={tmp_path}/keys" in stanza and stanza.endswith("http://here/debian bookworm main\n")
    assert len(progress.lines) == 1


def test_disk_full_during_update(fake_apt):
    with pytest.raises(DataError, match="disk is full"):
        fake_apt("echo 'E: Write error - write (28: No space left on device)'; exit 100\n").update()
