"""`make setup` before anything is fetched: what it refuses, with which next step, and when it has nothing to do."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import socket
import sys
import threading
import venv
from collections import namedtuple

import pytest

from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("setup", ROOT / "tasks" / "commands" / "setup.py")


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The script, for a checkout in a folder whose name has a space."""
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    root = tmp_path / "a checkout"
    root.mkdir()
    for name, path in (("ROOT", root), ("VENV", root / ".venv"), ("LOCK", root / "requirements.lock")):
        monkeypatch.setattr(module, name, path)
    for name in ("FAIRSEQ", "PYTHON", "STAMP"):
        path = getattr(module, name)
        monkeypatch.setattr(module, name, root / path.relative_to(ROOT))
    for path in (root / "pyproject.toml", module.LOCK, module.FAIRSEQ):
        path.write_text("uv==1 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(50e9))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    create = venv.create

    def without_pip(folder, **options):  # unpacking pip takes seconds
        create(folder, **{**options, "with_pip": False})
        next(folder.glob("lib/*/site-packages")).joinpath("pip").mkdir()

    monkeypatch.setattr(venv, "create", without_pip)
    for name in ("TORCH", "TORCH_INDEX", "LOCKED"):
        monkeypatch.delenv(name, raising=False)
    return module


def made(setup):
    """A .venv as far as `usable` looks, from other files than today's."""
    assert setup.create() == 0
    setup.STAMP.write_text("\nof yesterday\n")
    assert setup.usable()


def test_the_containers_install_the_packages_that_the_page_names():
    named = re.search(r"`apt-get install (.*)`", (ROOT / "docs" / "start" / "install.md").read_text()).group(1)
    for recipe in ("Dockerfile", "apptainer.def"):
        assert f"--no-install-recommends {named} g++\n" in re.sub(
            r" *\\\n", "\n", (ROOT / "containers" / recipe).read_text()
        )


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0)])
def test_another_python_is_refused_with_the_versions(setup, monkeypatch, version):
    monkeypatch.setattr(setup.sys, "version_info", version)
    assert "Python 3.11 to 3.14 is needed" in setup.first_trouble("")


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 2)])
def test_the_oldest_and_the_newest_python_do(setup, monkeypatch, version):
    monkeypatch.setattr(setup.sys, "version_info", version)
    assert setup.first_trouble("") == ""


def test_debians_missing_package_is_named(setup, monkeypatch):
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"apt-get install python{version}-venv" in setup.first_trouble("")


def test_too_little_disk_is_refused_with_both_numbers(setup, monkeypatch):
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(2e9))
    assert "2.0 GB are free" in setup.first_trouble(
        ""
    ) and "10 are needed for .venv: make room there, or move" in setup.first_trouble("")


def test_what_an_interrupted_setup_left_counts_as_disk(setup, monkeypatch):
    setup.VENV.mkdir()
    with open(setup.VENV / "large", "wb") as file:
        file.truncate(9 * 10**9)
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(2e9))
    assert setup.first_trouble("") == ""


def test_the_cache_needs_room_too(setup, monkeypatch, tmp_path):
    free = {tmp_path: 1e9}
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(free.get(place, 50e9)))
    assert "UV_CACHE_DIR=FOLDER" in setup.first_trouble("")


def test_a_missing_dev_shm_is_told_and_no_obstacle(setup, monkeypatch, capsys):
    """Where /dev/shm cannot be written, creating a semaphore fails like this."""
    made(setup)
    monkeypatch.setattr(setup, "steps", lambda torch: [])
    assert setup.main() == 0 and "/dev/shm" not in capsys.readouterr().out
    setup.LOCK.write_text("uv==2 \\\n    --hash=sha256:0\n")

    def refuse():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("multiprocessing.Lock", refuse)
    assert setup.main() == 0
    assert "Permission denied" in (said := capsys.readouterr().out) and "mount -t tmpfs tmpfs /dev/shm" in said


@pytest.mark.parametrize(("torch", "said"), [("gpu", "TORCH=gpu is unknown"), ("cpu", "needs TORCH_INDEX")])
def test_torch_is_chosen_by_name_and_index(setup, torch, said):
    assert said in setup.first_trouble(torch)


def test_an_environment_of_another_user_is_not_touched(setup, monkeypatch):
    made(setup)
    access = os.access
    monkeypatch.setattr(setup.os, "access", lambda path, mode: path != setup.VENV and access(path, mode))
    assert "belongs to another user" in setup.first_trouble("")


def test_torch_without_cuda_replaces_what_cuda_needs(setup, monkeypatch):
    setup.LOCK.write_text((ROOT / "requirements.lock").read_text())
    monkeypatch.setenv("TORCH_INDEX", "INDEX")
    asked = []
    monkeypatch.setattr(setup, "install", lambda *a, requirements="", **_: asked.append((a, requirements)) or 0)
    for _, work in setup.steps("cpu")[1:]:
        work()
    (first, _), (_, rest) = asked[0], asked[1]
    assert first[:3] == ("--no-deps", "--index-url", "INDEX") and first[3].startswith("torch==")
    assert "\nnumpy==" in rest and not any(
        f"\n{name}" in rest for name in ("torch==", "torchvision==", "nvidia", "triton", "cuda")
    )


def test_nothing_is_done_twice(setup, monkeypatch):
    made(setup)
    ran = []
    monkeypatch.setattr(setup, "steps", lambda torch: [("work", lambda: ran.append(torch) or 0)])
    for _ in range(2):
        assert setup.main() == 0
    assert ran == [""]
    setup.LOCK.write_text("uv==2 \\\n    --hash=sha256:0\n")
    assert setup.main() == 0 and ran == ["", ""]


def test_the_torch_that_was_chosen_stays_chosen(setup, monkeypatch):
    made(setup)
    ran = []
    monkeypatch.setattr(setup, "steps", lambda torch: [("work", lambda: ran.append(torch) or 0)])
    monkeypatch.setenv("TORCH_INDEX", "INDEX")
    monkeypatch.setenv("TORCH", "cpu")
    assert setup.main() == 0
    monkeypatch.delenv("TORCH")
    assert setup.main() == 0 and ran == ["cpu"]


@pytest.mark.parametrize("broken", ["interpreter", "pip", "old fairseq", "moved"])
def test_a_broken_environment_is_made_anew(setup, monkeypatch, broken):
    made(setup)
    (packages,) = setup.VENV.glob("lib/*/site-packages")
    if broken == "interpreter":
        setup.PYTHON.unlink()
        setup.PYTHON.symlink_to("/nowhere/python3")
    elif broken == "pip":
        (packages / "pip").rename(packages / "gone")
    elif broken == "old fairseq":
        (packages / "ve_fairseq-0.12.3.dist-info").mkdir()
    else:
        there = setup.ROOT.rename(setup.ROOT.with_name("moved here"))
        for name in ("LOCK", "FAIRSEQ", "STAMP", "PYTHON", "VENV", "ROOT"):
            monkeypatch.setattr(setup, name, there / getattr(setup, name).relative_to(setup.ROOT))
    assert not setup.healthy()
    monkeypatch.setattr(setup, "steps", lambda torch: [])
    assert setup.main() == 0
    assert setup.healthy()


def test_a_failed_step_is_said_and_leaves_no_mark(setup, monkeypatch, capsys):
    made(setup)
    monkeypatch.setattr(setup, "steps", lambda torch: [("work", lambda: 3)])
    assert setup.main() == 3
    assert "then run `make setup` again" in capsys.readouterr().err and not setup.usable()


@pytest.mark.parametrize("stopped", ["between", "in a step"])
def test_what_an_interrupted_setup_left_is_built_anew(setup, monkeypatch, capsys, stopped):
    def stop():
        (setup.VENV / "half a package").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setenv("TORCH_INDEX", "INDEX")
    monkeypatch.setattr(setup, "steps", lambda torch: [("work", stop)])
    monkeypatch.setenv("TORCH", "cpu")
    assert setup.main() == 130 and "run `make setup` again" in capsys.readouterr().err
    if stopped == "between":
        setup.STAMP.unlink()
    else:
        monkeypatch.delenv("TORCH")  # the choice is kept
    ran = []
    monkeypatch.setattr(setup, "steps", lambda torch: [("work", lambda: ran.append(torch) or 0)])
    assert setup.main() == 0 and ran == ["cpu"]
    assert not (setup.VENV / "half a package").exists() and setup.complete("cpu")


def test_torch_of_an_unfinished_environment_needs_its_index_again(setup):
    made(setup)
    (packages,) = setup.VENV.glob("lib/*/site-packages")
    (packages / "torch-2.dist-info").mkdir()
    assert setup.first_trouble("cpu") == ""
    setup.STAMP.write_text(f"cpu\n{setup.UNFINISHED}\n")
    assert "TORCH_INDEX=ADDRESS" in setup.first_trouble("cpu") and "make clean" in setup.first_trouble("cpu")


def test_two_setups_take_turns(setup, monkeypatch, capsys):
    made(setup)
    other = os.open(setup.ROOT, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)

    def finish():
        setup.STAMP.write_text(f"\n{setup.signature()}\n")
        os.close(other)

    threading.Timer(0.3, finish).start()
    monkeypatch.setattr(setup, "steps", lambda torch: [("work", lambda: 3)])
    assert setup.main() == 0 and "waiting for another" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["UV_DEFAULT_INDEX", "http_proxy"])
def test_an_index_out_of_reach_is_named_before_pip_tries(setup, monkeypatch, capsys, by):
    made(setup)
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(setup, "_pip", lambda *_, **__: 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("UV_DEFAULT_INDEX", "http://index.invalid/simple" if by == "http_proxy" else address)
        if by == "http_proxy":
            monkeypatch.setenv(by, address)
        assert setup.unreachable() == ""
    assert "127.0.0.1 cannot be reached" in setup.unreachable()
    assert setup.main() == 1
    told = capsys.readouterr()
    assert "127.0.0.1 cannot be reached" in told.err and "pip installs instead" not in told.out


def test_the_lock_is_read_whole(setup):
    found = setup.blocks((ROOT / "requirements.lock").read_text())
    assert {"torch", "numpy", "uv", "hydra-core"} <= set(found) and "ve-fairseq" not in found
    assert all("--hash=sha256:" in text for text in found.values())
    two = setup.blocks("a==1 ; x \\\n    --hash=sha256:0\na==2 ; y \\\n    --hash=sha256:1\n")
    assert two["a"].count("==") == 2
