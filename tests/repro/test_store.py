"""Folders of cells: never half-written, one writer each, clear errors when the disk says no."""

import errno
import importlib
import json
import multiprocessing as mp
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from repro import files
from repro.errors import StoreError
from repro.files import write_atomic, write_json
from repro.store import Damaged, Store, provenance, sources

FORK = mp.get_context("fork")


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.ENOSPC, "the disk is full: no space left while writing here; finished cells are safe"),
        (errno.EDQUOT, "your disk quota is used up: no space left while writing here"),
        (errno.EACCES, "here cannot be written (told); set paths.outputs to a folder you can write to"),
        (errno.EROFS, "here cannot be written (told); set paths.outputs to a folder you can write to"),
        (errno.EIO, "here cannot be written (told)"),
    ],
)
def test_each_error_of_a_disk_has_its_next_step(number, step):
    said = str(files.explain(OSError(number, "told"), Path("here")))
    assert said.startswith(step) and ("set paths.outputs" in said) == ("set paths.outputs" in step)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I/O error: No space left on device (os error 28)", "the disk is full"),  # safetensors
        ("I/O error: Disk quota exceeded (os error 122)", "your disk quota is used up"),
        ("65536 requested and 4096 written", "the disk is full"),  # NumPy's OSError, which has no number
        ("I/O error: Permission denied (os error 13)", ""),
    ],
)
def test_a_full_disk_is_recognised_in_the_errors_of_libraries(text, said):
    error = RuntimeError("of the training")
    error.__cause__ = RuntimeError(text)
    assert files.disk_full(error) == said
    with pytest.raises(RuntimeError if said else files.StoreError), files.usable(Path("folder")):  # the folder is fine
        raise error
    if said:
        assert str(files.explain(error, "here")).startswith(f"{said}: no space left while writing here; finished cells")


@pytest.mark.parametrize("write", [np.zeros(1 << 16).tofile, partial(torch.save, torch.zeros(1 << 16))])
def test_a_full_disk_is_an_oserror_to_numpy_without_a_number_and_to_torch(write):
    with pytest.raises(OSError) as caught, open("/dev/full", "wb") as file:
        write(file)
    assert files.disk_full(caught.value) == "the disk is full"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project, as `sources` looks for it; gives a function that writes a file of it."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        for one in (sources._ours, sources._code, sources._text):
            one.cache_clear()

    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    write("sparse_attention/mappings/pairs.py", '@register(\n    "mymax", paper="x")\nfrom mappings import inner')
    for name in ("inner", "other", "_private"):
        write(f"sparse_attention/mappings/{name}.py", "")
    write("tasks/fam/encode.py", "from tasks.base import x\n")
    for path in "fam/models/lstm fam/models/cnn base/search cells/fam cells/base cells/alien alien/x".split():
        write(f"tasks/{path}.py", "")
    for path in ("sparse_attention/kernels/k.cpp", "tests/test_x.py", "docs/x.md", "tasks/fairseq_plugin/alien.py"):
        write(path, "")
    yield write
    write("end", "")


CONFIG = {"mapping": {"name": "mymax"}, "model": {"name": "lstm"}}


def test_the_sources_of_a_cell_are_those_of_its_family_model_and_mapping(project):
    kept = sources.of("tasks.cells.fam", CONFIG)
    own = "mappings/_private mappings/inner mappings/pairs".split()
    families = "tasks/base/search tasks/cells/base tasks/cells/fam tasks/fam/encode tasks/fam/models/lstm".split()
    assert [*kept] == ["sparse_attention/kernels/k.cpp", *(f"sparse_attention/{one}.py" for one in own)] + [
        f"{one}.py" for one in families
    ]

    def changed():
        return sources.changed({"sources": kept}, "tasks.cells.fam", CONFIG)

    for path in ("tests/test_x.py", "docs/x.md", "sparse_attention/mappings/other.py", "tasks/fam/models/cnn.py"):
        project(path, "changed")
    assert changed() == []
    project("sparse_attention/mappings/pairs.py", '@register("mymax")  # new')
    project("tasks/fam/models/lstm.py", "changed")
    assert changed() == ["sparse_attention/mappings/pairs.py", "tasks/fam/models/lstm.py"]


def test_the_modules_that_a_plugin_imports_are_among_its_sources(project, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "mine")
    project("mine/outer_helper.py", "import os\nfrom inner_package import part\n")
    project("mine/inner_package/__init__.py", "")
    project("mine/inner_package/part.py", "import numpy\n")
    project("plug.py", "import outer_helper\nimport torch\n")
    config = CONFIG | {"plugins": [str(tmp_path / "plug.py")]}
    names = ("outer_helper", "inner_package", "inner_package.part")
    try:
        for name in names:
            importlib.import_module(name)
        kept = sources.of("tasks.cells.fam", config)
        assert {one for one in kept if one.startswith("module:")} == {f"module:{name}" for name in names}
        project("mine/inner_package/part.py", "import numpy  # changed\n")
        assert sources.changed({"sources": kept}, "tasks.cells.fam", config) == ["module:inner_package.part"]
    finally:
        for name in names:
            sys.modules.pop(name, None)


def finish(level, metrics) -> None:
    write_json(level.path("metrics.json"), metrics)
    level.finish()


@pytest.mark.parametrize("content", ['{"state": "runn', "", "[]", "{}", "null", "3"])
def test_an_unreadable_status_counts_as_absent(entry, content):
    entry.folder.mkdir(parents=True)
    entry.path("status.json").write_text(content)
    assert entry.state() == "queued" and entry.status() == {"state": "queued"}


def test_a_manifest_lists_its_own_level_alone(entry):
    later = ("checkpoints/last.pt", "log.txt", "evaluations/e/metrics.json")
    for name in ("encoding/dict.txt", "claim", ".hidden", "logs/events", *later):
        write_atomic(entry.path(name), b"x")
    entry.set_status("running")
    finish(entry, {"metrics": {"a": 1.0}})
    assert set(json.loads(entry.path("manifest.json").read_text())["files"]) == {"encoding/dict.txt", "metrics.json"}
    for name in later:
        entry.path(name).write_bytes(b"changed later")
    entry.path("new").write_bytes(b"put there by hand")
    assert entry.damage() is None


@pytest.mark.parametrize("content", ["{}", "[]", '{"metrics": {}}', '{"metrics": [1]}', '{"metrics": null}', "1"])
def test_metrics_without_metrics_are_damage(entry, content):
    write_atomic(entry.path("metrics.json"), content.encode())
    entry.finish()
    with pytest.raises(Damaged, match="holds no metrics"):
        entry.read()


@pytest.mark.parametrize("content", ["{}", "[]", '{"files": []}', '{"files": {}}', '{"fil'])
def test_a_manifest_that_is_none_is_damage(entry, content):
    finish(entry, {"metrics": {"a": 1.0}})
    entry.path("manifest.json").write_text(content)
    assert entry.damage() == "manifest.json is not a manifest"


def test_verdicts_are_cached_until_a_file_changes(entry, monkeypatch):
    write_atomic(entry.path("weights"), b"x" * 1000)
    finish(entry, {"metrics": {"a": 1.0}})
    assert entry.damage() is None
    opened = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: (opened.append(self.name), real(self, *a, **k))[1])
    assert entry.damage() is None and "weights" not in opened
    entry.path("weights").write_bytes(b"y" * 1000)  # the same size
    assert entry.damage() == "weights is not what was written" and "weights" in opened


def test_predictions_survive_and_are_byte_identical_for_equal_content(entry, monkeypatch):
    level = entry.evaluation("e")
    records = [{"output": "été “x”", "index": 0}, {"output": "", "index": 1}]
    level.write_predictions(records)
    first = level.path("predictions.jsonl.gz").read_bytes()
    monkeypatch.setattr(time, "time", lambda: 1e9)  # which gzip would write
    level.write_predictions(iter(records))
    assert level.predictions() == records
    assert level.path("predictions.jsonl.gz").read_bytes() == first
    assert entry.evaluation("other").predictions() == []
    level.path("predictions.jsonl.gz").write_bytes(first[:-9])
    with pytest.raises(Damaged, match="predictions"):
        level.predictions()


@pytest.mark.parametrize("name", ["../../x", "..", ".", "", "a/b", "/etc", ".hidden", "a\0b", "x" * 300, None])
def test_a_name_never_leaves_the_store(store, name):
    for names in ((name, "softmax", "abc"), ("toy", name, "abc"), ("toy", "softmax", name)):
        with pytest.raises(StoreError, match="cannot name a folder of the store"):
            store.entry(*names)


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_full_disk_is_explained_and_keeps_the_old_file(entry, monkeypatch, full, step):
    path = entry.path("metrics.json")
    write_json(path, {"metrics": {"dev/score": 1.0}})
    with monkeypatch.context() as patch:
        patch.setattr(files if step == "open" else files.os, step, full, raising=False)
        with pytest.raises(StoreError, match=r"no space left .*metrics\.json.* run the same command again"):
            write_json(path, {"metrics": {"dev/score": 2.0}})
    assert json.loads(path.read_text()) == {"metrics": {"dev/score": 1.0}}
    assert os.listdir(entry.folder) == ["metrics.json"]


@pytest.fixture
def locked():
    """A folder that everybody may read and nobody may write; not below tmp_path, whose parents are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_read_only_folder_says_what_to_set(locked):
    """Asked in a child that has no right of root's to write everywhere."""
    entry, (receiver, sender) = Store(locked).entry("toy", "softmax", "abc"), FORK.Pipe(duplex=False)

    def attempt():
        if os.getuid() == 0:
            os.setgroups([])
            os.setuid(65534)
        for work in (lambda: write_json(entry.path("status.json"), {}), lambda: entry.locked().__enter__()):
            try:
                sender.send(f"nothing happened: {work()}")
            except StoreError as error:
                sender.send(str(error))
        sender.send(entry.state())

    process = FORK.Process(target=attempt)
    process.start()
    sender.close()
    write, claim, state = (receiver.recv() for _ in range(3))
    process.join()
    for said in (write, claim):
        assert "cannot be written" in said and "set paths.outputs" in said and str(locked) in said
    assert state == "queued"
