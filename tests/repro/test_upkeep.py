"""The store looked after: damage is named, the code is recorded; after a storm every number is the same."""

import os
import subprocess
import zipfile
from importlib import metadata

import pytest
import storm

from repro import cell as cells
from repro.store import provenance
from tasks.commands.store import verify


@pytest.fixture
def made(cell, store):
    """Two finished cells, the second with two evaluations."""
    both = [cell(seed=1), cell(seed=2, tests=["further"])]
    assert [cells.run(c, store).state for c in both] == ["done", "done"]
    return both


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def wrong(store) -> list[str]:
    return [f"{place.rpartition('/')[2]}: {why}" for place, state, why in store.verify() if state == "damaged"]


def test_every_flipped_file_is_named(made, store):
    assert verify(paths_outputs=str(store.root)) == 0 and wrong(store) == []
    assert [state for _, state, _ in store.verify()] == ["done"] * 5  # two trainings, three evaluations
    first, level = made[0].entry(store), made[1].evaluation(store, made[1].tests[1])
    flip(first.path("encoding/dict.txt"))
    flip(level.path("predictions.jsonl.gz"))
    with zipfile.ZipFile(made[1].entry(store).path("checkpoints/last.pt"), "w") as archive:
        archive.writestr("tensor", b"\0" * 1000)
    flip(made[1].entry(store).path("checkpoints/last.pt"))
    said = sorted(wrong(store))
    assert len(said) == 3 and any("encoding/dict.txt is not what was written" in s for s in said)
    assert any("predictions.jsonl.gz is not" in s for s in said) and any(s.startswith("last.pt: ") for s in said)
    assert verify(paths_outputs=str(store.root)) == 1


def test_the_command_says_how_it_ended(made, store, command, capsys, tmp_path):
    where = f"paths.outputs={store.root}"
    assert command("store", "list", where) == 0 and capsys.readouterr().out.splitlines()[-1] == "5 done"
    assert command("store", "verify", where) == 0 and capsys.readouterr().out == "5 done\n"
    flip(made[0].entry(store).path("weights.safetensors"))
    assert command("store", "verify", where) == 1
    assert made[0].training_id in (said := capsys.readouterr().out) and "4 done" in said
    assert command("store", "list", f"paths.outputs={tmp_path / 'none'}") == 2
    assert "there is no store" in capsys.readouterr().err
    assert command("store", "--help") == command("store", "-h") == 0 and command("store") == 2
    assert command("store", "clean") == command("store", "export") == command("store", "list", "what") == 2
    assert os.listdir(store.root) == ["cells"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text("a = 1\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_commit_and_changes_without_writing_the_index(checkout):
    """A cell may be killed while git has its lock: then nobody could commit any more."""
    os.utime(checkout / "code.py", (1, 1))  # git would note that it is unchanged after all
    before = (checkout / ".git" / "index").read_bytes()
    assert not (found := provenance.code_version())["dirty"]
    assert (checkout / ".git" / "index").read_bytes() == before
    (checkout / "code.py").write_text("a = 2\n")
    assert provenance.code_version() == found | {"dirty": True}


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
    provenance.pinned.cache_clear()
    assert provenance.unlocked() == ["numpy", "no-such_package"]
    packages = {name: metadata.version(name) for name in ("sparse-attention", "torch", "numpy")}
    assert provenance.collect()["packages"] == packages, "those that are installed, with their own versions"
    provenance.pinned.cache_clear()


def test_the_instruction_set_is_recorded():
    import torch

    assert provenance.collect()["machine"]["cpu"].endswith(f", {torch.backends.cpu.get_cpu_capability()}")


@pytest.mark.slow
def test_after_a_storm_every_number_is_that_of_an_undisturbed_run(tmp_path):
    assert storm.run(tmp_path, seconds=15, rows=1) == []
