"""Folders of cells: never half-written, one writer each, clear errors when the disk says no."""

from __future__ import annotations

import errno
import json
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from repro import files
from repro.files import write_atomic, write_json
from repro.store import Damaged, Store, StoreError

FORK = mp.get_context("fork")


@pytest.fixture
def entry(store):
    return store.entry("toy", "softmax", "abc")


def leftovers(folder) -> list[str]:
    return sorted(p.name for p in folder.rglob(".*"))


# ---- what a disk says


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.ENOSPC, "no space left while writing here; finished cells are safe. Free some space"),
        (errno.EDQUOT, "no space left while writing here"),
        (errno.EACCES, "here cannot be written (told); set paths.outputs to a folder you can write to"),
        (errno.EROFS, "here cannot be written (told); set paths.outputs to a folder you can write to"),
        (errno.EIO, "here cannot be written (told)"),
    ],
)
def test_each_error_of_a_disk_has_its_next_step(number, step):
    said = str(files.explain(OSError(number, "told"), Path("here")))
    assert said.startswith(step) and ("set paths.outputs" in said) == ("set paths.outputs" in step)


# ---- atomic writes


def test_write_replaces_whole_files_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert sorted(p.name for p in path.parent.iterdir()) == ["file"]


def test_readers_never_see_a_part(tmp_path):
    path = tmp_path / "file"
    sizes = [10, 2_000_000]
    write_atomic(path, b"x" * sizes[0])

    def write_forever():
        for i in range(10_000):
            write_atomic(path, b"x" * sizes[i % 2])

    writer = FORK.Process(target=write_forever)
    writer.start()
    seen = set()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        seen.add(len(path.read_bytes()))
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    seen.add(len(path.read_bytes()))
    assert seen <= set(sizes)
    assert len(seen) == 2, "the writer did not get to write; the test shows nothing"


def finish(level, metrics) -> None:
    write_json(level.path("metrics.json"), metrics)
    level.finish()


def test_a_killed_writer_leaves_no_half_manifest(entry):
    """Killed between write and rename: the cell is not done, and the next run can finish it."""
    write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 1.0}})

    def die_before_rename():
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        entry.finish()

    process = FORK.Process(target=die_before_rename)
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    assert entry.read() is None and entry.state() == "queued"
    finish(entry, {"metrics": {"dev/score": 2.0}})
    assert entry.read() == {"metrics": {"dev/score": 2.0}} and entry.state() == "done"


@pytest.mark.parametrize("content", ['{"state": "runn', "", "[]", "{}", "null", "3"])
def test_an_unreadable_status_counts_as_absent(entry, content):
    entry.folder.mkdir(parents=True)
    entry.path("status.json").write_text(content)
    assert entry.state() == "queued" and entry.status() == {"state": "queued"}


def test_a_manifest_lists_its_own_level_alone(entry):
    for name in (
        "encoding/dict.txt",
        "checkpoints/last.pt",
        "evaluations/e/metrics.json",
        "log.txt",
        "claim",
        ".hidden",
        "logs/events",
    ):
        write_atomic(entry.path(name), b"x")
    entry.set_status("running")
    finish(entry, {"metrics": {"a": 1.0}})
    assert set(json.loads(entry.path("manifest.json").read_text())["files"]) == {"encoding/dict.txt", "metrics.json"}
    for name in ("checkpoints/last.pt", "log.txt", "evaluations/e/metrics.json"):
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


def test_predictions_survive_and_are_byte_identical_for_equal_content(entry):
    level = entry.evaluation("e")
    records = [{"output": "été “x”", "index": 0}, {"output": "", "index": 1}]
    level.write_predictions(records)
    first = level.path("predictions.jsonl.gz").read_bytes()
    time.sleep(1.1)  # gzip would write the time in seconds
    level.write_predictions(iter(records))
    assert level.predictions() == records
    assert level.path("predictions.jsonl.gz").read_bytes() == first
    assert entry.evaluation("other").predictions() == []
    level.path("predictions.jsonl.gz").write_bytes(first[:-9])
    with pytest.raises(Damaged, match="predictions"):
        level.predictions()


def test_iteration_finds_every_cell(store):
    for mapping in ("softmax", "sparsemax"):
        write_atomic(store.entry("toy", mapping, "x1").path("config.yaml"), b"a: 1")
    write_atomic(store.entry("toy", "softmax", "x1.damaged-1").path("config.yaml"), b"a: 1")
    assert sorted(e.folder.parent.name for e in store) == ["softmax", "sparsemax"]
    assert list(Store(store.root / "nowhere")) == []


@pytest.mark.parametrize("name", ["../../x", "..", ".", "", "a/b", "/etc", ".hidden", "a\0b", "x" * 300, None])
def test_a_name_never_leaves_the_store(store, name):
    for names in ((name, "softmax", "abc"), ("toy", name, "abc"), ("toy", "softmax", name)):
        with pytest.raises(StoreError, match="cannot name a folder of the store"):
            store.entry(*names)


# ---- the disk says no


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_full_disk_is_explained_and_keeps_the_old_file(entry, monkeypatch, step):
    write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 1.0}})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if step == "open":
            patch.setattr(files, "open", full, raising=False)
        else:
            patch.setattr(files.os, step, full)
        with pytest.raises(StoreError, match="no space left") as caught:
            write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 2.0}})
    assert "metrics.json" in str(caught.value)
    assert "run the same command again" in str(caught.value)
    assert json.loads(entry.path("metrics.json").read_text()) == {"metrics": {"dev/score": 1.0}}
    assert leftovers(entry.folder) == []


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB, in a mount namespace of a child: `small_disk(code)` runs Python there."""

    def run(code: str) -> subprocess.CompletedProcess:
        folder = tmp_path / "disk"
        folder.mkdir(exist_ok=True)
        inner = f'mount -t tmpfs -o size=256k none "{folder}" && exec "{sys.executable}" -c "$CODE" "{folder}"'
        return subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", inner], capture_output=True, text=True, timeout=120,
            env=os.environ | {"CODE": code, "PYTHONPATH": os.pathsep.join([str(p) for p in sys.path if p])}, check=False,
        )  # fmt: skip

    try:
        probe = run("print('up')")
    except FileNotFoundError:
        pytest.skip("no unshare command here")
    if probe.stdout.strip() != "up":
        pytest.skip(f"no private file systems here: {probe.stderr.strip()[:200]}")
    return run


def test_full_file_system(small_disk):
    code = """
import sys
from pathlib import Path
from repro.store import Store, StoreError, write_json
entry = Store(sys.argv[1]).entry("toy", "softmax", "abc")
write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 1.0}})
Path(sys.argv[1], "ballast").write_bytes(b"x" * 180_000)
try:
    entry.evaluation("e").write_predictions({"output": __import__("os").urandom(50).hex()} for _ in range(5000))
except StoreError as error:
    print("StoreError", error)
print(entry.path("metrics.json").read_text().split(), sorted(p.name for p in entry.folder.rglob("*")))
"""
    done = small_disk(code)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.strip().splitlines()
    assert first.startswith("StoreError no space left while writing")
    assert last == """['{', '"metrics":', '{', '"dev/score":', '1.0', '}', '}'] ['e', 'evaluations', 'metrics.json']"""


def as_nobody(work) -> str:
    """Run `work` in a child without root's right to write everywhere; returns what it returns."""
    receiver, sender = FORK.Pipe(duplex=False)

    def child():
        if os.getuid() == 0:
            os.setgroups([])
            os.setuid(65534)
        sender.send(work())

    process = FORK.Process(target=child)
    process.start()
    sender.close()
    answer = receiver.recv()
    process.join()
    return answer


@pytest.fixture
def locked():
    """A folder that everybody may read and nobody may write; not below tmp_path, whose parents are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_read_only_folder_says_what_to_set(locked):
    entry = Store(locked).entry("toy", "softmax", "abc")

    def attempt() -> str:
        said = []
        for work in (lambda: write_json(entry.path("status.json"), {}), lambda: entry.locked().__enter__()):
            try:
                work()
                said.append("nothing happened")
            except StoreError as error:
                said.append(str(error))
        return "\n".join([*said, entry.state()])

    write, claim, state = as_nobody(attempt).splitlines()
    for said in (write, claim):
        assert "cannot be written" in said
        assert "set paths.outputs" in said
        assert str(locked) in said
    assert state == "queued"
