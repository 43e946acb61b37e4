"""What is recorded about the code leaves the repository alone and never stops a cell."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata

import pytest

from repro.store import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text("a = 1\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_commit_and_changes(checkout):
    assert not (found := provenance.code_version())["dirty"]
    (checkout / "code.py").write_text("a = 2\n")
    assert provenance.code_version() == found | {"dirty": True}


def test_the_index_is_not_written(checkout):
    """A cell may be killed while git has its lock: then nobody could commit any more."""
    os.utime(checkout / "code.py", (1, 1))  # git would note that it is unchanged after all
    before = (checkout / ".git" / "index").read_bytes()
    assert not provenance.code_version()["dirty"]
    assert (checkout / ".git" / "index").read_bytes() == before


def test_a_git_that_hangs_stops_nothing(checkout, monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(provenance.subprocess, "run", hang)
    assert provenance.code_version() == {}


def test_packages_that_are_not_those_of_the_lock_are_named(tmp_path, monkeypatch):
    lock = tmp_path / "lock.txt"
    lock.write_text(
        f"torch=={metadata.version('torch')}\nnumpy==0.0.1\nno-such_package==1.0 ; python_version > '3'\nof-others==1.0 ; python_version < '3'\n"
    )
    monkeypatch.setattr(provenance, "LOCKS", (lock,))
    assert provenance.unlocked.__wrapped__() == ("numpy", "no-such_package")


def test_the_instruction_set_is_recorded():
    import torch

    assert provenance.collect()["machine"]["cpu"].endswith(f", {torch.backends.cpu.get_cpu_capability()}")
