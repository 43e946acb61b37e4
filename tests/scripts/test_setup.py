"""`make setup`: what it refuses, with which next step; what it installs, from where; when it has nothing to do."""

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import threading
import venv
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("setup", ROOT / "scripts" / "setup.py")
LOCK = "torch==2 \\\n    --hash=sha256:0\ntriton==3 \\\n    --hash=sha256:0\nnumpy==2 ; x \\\n    --hash=sha256:0\n"
LOCKS = {"pyproject.toml": "", "requirements.lock": LOCK, "requirements-fairseq.lock": "fairseq-fixed==1"}
LOCKS["requirements-dev.lock"] = "uv==1 \\\n    --hash=sha256:0\nruff==1 \\\n    --hash=sha256:0\n"


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The script, for a checkout in a folder whose name has a space; `asked` has what it would have installed."""
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    module.asked, module.has_uv = [], True
    place(module, monkeypatch, tmp_path / "a checkout")
    module.ROOT.mkdir()
    for name, text in LOCKS.items():
        (module.ROOT / name).write_text(text)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(50e9))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    run = subprocess.run

    def quick(command, **options):
        if command[1:3] == ["-m", "venv"]:  # unpacking pip takes seconds
            venv.create(command[3], symlinks=True)
            package = next(Path(command[3]).glob("lib/*/site-packages")) / "pip"
            package.mkdir()
            (package / "__init__.py").touch()
            if module.has_uv:
                module.UV.touch()
        elif command[1] == "-c":
            return run(command, **options)

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": quick}))
    monkeypatch.setattr(module, "pip", lambda *a, lock="", **e: module.asked.append((" ".join(a), lock, e)))
    for name in ("TORCH", "FAIRSEQ_WHEEL"):
        monkeypatch.delenv(name, raising=False)
    return module


def place(module, monkeypatch, root):
    monkeypatch.setattr(module, "ROOT", root)
    for name, path in (("VENV", ""), ("PYTHON", "bin/python"), ("UV", "bin/uv")):
        monkeypatch.setattr(module, name, root / ".venv" / path)


def build(module, *groups, **failing):
    """What `main` asks to be installed; `failing`: text in what is asked -> the exception that it ends with."""

    def pip(*arguments, lock="", **environment):
        told = " ".join([*arguments, lock])
        for words, error in failing.items():
            if words in told:
                raise error
        module.asked.append((" ".join(arguments), lock, environment))

    module.pip, module.asked = pip, []
    module.main(["run", *groups])
    return module.asked


FAILED = subprocess.CalledProcessError(2, "uv")


def test_the_containers_install_the_packages_that_the_page_names():
    named = re.search(r"`apt-get install (.*)`", (ROOT / "docs" / "start" / "install.md").read_text()).group(1)
    for recipe in ("Dockerfile", "apptainer.def"):
        text = re.sub(r" *\\\n", "\n", (ROOT / "containers" / recipe).read_text())
        assert f"--no-install-recommends {named} g++\n" in text


@pytest.mark.parametrize(
    "version, refused", [((3, 10, 13), True), ((3, 11, 0), False), ((3, 14, 2), False), ((3, 15, 0), True)]
)
def test_pythons(setup, monkeypatch, version, refused):
    monkeypatch.setattr(setup.sys, "version_info", version)
    assert ("Python 3.11 to 3.14 is needed" in setup.first_trouble("")) is refused


def test_what_a_machine_lacks_is_named_with_the_next_step(setup, monkeypatch, tmp_path):
    assert setup.first_trouble("") == "" and "TORCH=gpu is unknown" in setup.first_trouble("gpu")
    access = os.access
    with monkeypatch.context() as patch:
        patch.setattr(setup.os, "access", lambda path, mode: path != setup.ROOT and access(path, mode))
        assert "clone the repository to a folder of your own" in setup.first_trouble("")
    with monkeypatch.context() as patch:
        patch.setattr(setup.importlib.util, "find_spec", lambda name: None)
        assert f"apt-get install python3.{sys.version_info[1]}-venv" in setup.first_trouble("")
    free = {setup.ROOT: 2e9}
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(free.get(place, 50e9)))
    told = setup.first_trouble("")
    assert "2.0 GB are free" in told and "10 are needed" in told and "move this folder" in told
    setup.VENV.mkdir()  # what an interrupted set-up left counts
    with open(setup.VENV / "large", "wb") as file:
        file.truncate(9 * 10**9)
    assert setup.first_trouble("") == ""
    free[tmp_path] = 0.1e9
    assert "UV_CACHE_DIR=FOLDER" in setup.first_trouble("")


def test_groups_are_added_and_nothing_is_done_twice(setup):
    assert [lock for _, lock, _ in build(setup)] == [LOCK, "fairseq-fixed==1", ""]
    assert build(setup) == []
    (developers,) = build(setup, "dev")
    assert developers[1].startswith("uv==1") and build(setup, "dev") == build(setup) == []
    (setup.ROOT / "requirements-dev.lock").write_text("uv==2")
    assert build(setup) == [] and len(build(setup, "dev")) == 1


def test_torch_without_cuda_replaces_what_cuda_needs_and_stays_chosen(setup, monkeypatch):
    monkeypatch.setenv("TORCH", "cpu")
    first, rest, *_ = build(setup)
    assert first[0] == "--no-deps --torch-backend cpu torch==2" and rest[1] == LOCK[LOCK.index("numpy") :]
    monkeypatch.delenv("TORCH")
    assert build(setup) == []
    setup.VENV.joinpath(".run").write_text("of yesterday")
    assert "--torch-backend cpu" in build(setup)[0][0]
    real = re.sub(setup.PINNED.format(setup.OF_TORCH), "", (ROOT / "requirements.lock").read_text(), flags=re.M)
    assert "\nnumpy==" in real and not re.search("^(torch|nvidia|triton|cuda)", real, re.M) and "hash" in real


def test_uv_is_this_machines_or_the_locked_one_by_pip(setup, monkeypatch):
    setup.has_uv = False
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    assert build(setup)[0][1] == "uv==1 \\\n    --hash=sha256:0\n"
    monkeypatch.setattr(setup.shutil, "which", lambda name: f"/usr/bin/{name}")
    setup.VENV.joinpath(".run").write_text("of yesterday")
    assert build(setup)[0][1] == LOCK


@pytest.mark.parametrize("broken", ["interpreter", "pip", "another fairseq", "moved"])
def test_a_broken_environment_is_made_anew(setup, monkeypatch, broken):
    build(setup, "dev")
    (packages,) = setup.VENV.glob("lib/*/site-packages")
    if broken == "interpreter":
        setup.PYTHON.unlink()
        setup.PYTHON.symlink_to("/nowhere/python3")
    elif broken == "pip":
        (packages / "pip").rename(packages / "gone")
    elif broken == "another fairseq":
        (packages / "ve_fairseq-0.12.3.dist-info").mkdir()
        assert build(setup, "dev") == []  # the second source is as good, until something changes
        (setup.ROOT / "requirements.lock").write_text(LOCK.replace("numpy==2", "numpy==3"))
    else:
        place(setup, monkeypatch, setup.ROOT.rename(setup.ROOT.with_name("moved here")))
    (packages / "left over").mkdir() if broken not in ("moved",) else None
    assert len(build(setup, "dev")) == 4 and setup.healthy()
    assert not list(setup.VENV.glob("lib/*/site-packages/left over"))


@pytest.mark.parametrize("error", [FAILED, KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["numpy", "-e", "ruff"])
def test_what_an_unfinished_setup_left_is_built_anew(setup, monkeypatch, error, step):
    monkeypatch.setenv("TORCH", "cpu")
    with pytest.raises(type(error)):
        build(setup, "dev", **{step: error})
    (setup.VENV / "half a package").mkdir()
    monkeypatch.delenv("TORCH")  # the choice is kept
    assert "--torch-backend cpu" in build(setup, "dev")[0][0] and not (setup.VENV / "half a package").exists()


def test_two_setups_take_turns(setup, capsys):
    build(setup)
    stamp = setup.VENV / ".run"
    done = stamp.read_text()
    stamp.write_text("of yesterday")
    other = os.open(setup.ROOT / "pyproject.toml", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    threading.Timer(0.3, lambda: (stamp.write_text(done), os.close(other))).start()
    assert build(setup) == [] and "waiting for another" in capsys.readouterr().out


def test_fairseq_has_a_second_source(setup, monkeypatch, tmp_path):
    absent = {"fairseq-fixed": FAILED}
    monkeypatch.setattr(setup.sys, "version_info", (3, 12, 1))
    assert build(setup, **absent)[1][1].startswith("ve-fairseq==0.12.3 \\\n    --hash=sha256:")
    for version, said in (((3, 13, 0), "FAIRSEQ_WHEEL=FOLDER"), ((3, 12, 0), "has no wheel of fairseq")):
        setup.VENV.joinpath(".run").write_text("of yesterday")
        monkeypatch.setattr(setup.sys, "version_info", version)
        with pytest.raises(SystemExit, match=said):
            build(setup, **absent)
        monkeypatch.setenv("FAIRSEQ_WHEEL", str(tmp_path))
    wheel = tmp_path / "fairseq_fixed-0.12.3.1-py3-none-any.whl"
    wheel.touch()
    assert build(setup, **absent)[1][0].endswith(str(wheel))


@pytest.mark.parametrize("stopped, status, said", [(2, 1, "PIP_INDEX_URL=ADDRESS"), (130, 130, "interrupted")])
def test_a_failed_step_and_ctrl_c_end_with_the_next_step(tmp_path, stopped, status, said):
    """The script itself, with a uv that fails, and a venv without pip, which takes seconds to make."""
    (tmp_path / "scripts").mkdir()
    locks = (f"requirements{kind}.lock" for kind in ("", "-dev", "-fairseq"))
    for name in ("scripts/setup.py", "pyproject.toml", *locks):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\nkill -INT $PPID; sleep 1\n" if stopped == 130 else "#!/bin/sh\nexit 2\n")
    uv.chmod(0o755)
    (tmp_path / "venv.py").write_text(
        "import os, sys\nos.makedirs(sys.argv[1] + '/bin')\nos.symlink(sys.executable, sys.argv[1] + '/bin/python')\n"
    )
    environment = os.environ | {"PATH": f"{uv.parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, tmp_path / "scripts" / "setup.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == status and said in done.stderr and "run `make setup` again" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and (tmp_path / ".venv" / ".run").read_text() == "unfinished"
