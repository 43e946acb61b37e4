"""Folders of cells: never half-written, one writer each, clear errors when the disk says no."""

from __future__ import annotations

import errno
import json
import multiprocessing as mp
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sparse_attention.repro import store as stores
from sparse_attention.repro.store import Busy, Store, StoreError, write_atomic, write_json

FORK = mp.get_context("fork")


@pytest.fixture
def entry(store):
    return store.entry("toy", "softmax", "abc")


def leftovers(folder) -> list[str]:
    return sorted(p.name for p in folder.rglob(".*"))


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


def test_a_killed_writer_leaves_no_half_metrics(entry):
    """Killed between write and rename: the cell is not done, and the next run can finish it."""

    def die_before_rename():
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 1.0}})

    process = FORK.Process(target=die_before_rename)
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    assert entry.metrics() is None
    assert entry.state() == "queued"
    write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 2.0}})
    assert entry.metrics() == {"metrics": {"dev/score": 2.0}}


def test_unreadable_json_counts_as_absent(entry):
    entry.folder.mkdir(parents=True)
    entry.path("metrics.json").write_text('{"metrics": {"dev')
    entry.path("status.json").write_text("")
    assert entry.metrics() is None
    assert entry.state() == "queued"


def test_predictions_survive_and_are_byte_identical_for_equal_content(entry):
    records = [{"output": "été “x”", "index": 0}, {"output": "", "index": 1}]
    entry.write_predictions(records)
    first = entry.path("predictions.jsonl.gz").read_bytes()
    time.sleep(1.1)  # gzip would write the time in seconds
    entry.write_predictions(iter(records))
    assert entry.predictions() == records
    assert entry.path("predictions.jsonl.gz").read_bytes() == first
    assert Store(entry.folder).entry("a", "b", "c").predictions() == []


def test_iteration_finds_every_cell(store):
    for mapping in ("softmax", "sparsemax"):
        write_atomic(store.entry("toy", mapping, "x1").path("config.yaml"), b"a: 1")
    assert sorted(e.folder.parent.name for e in store) == ["softmax", "sparsemax"]
    assert list(Store(store.root / "nowhere")) == []


# ---- claims


def compete(entry, barrier, results):
    barrier.wait()
    try:
        with entry.claimed():
            results.put("won")
            time.sleep(1.0)
    except Busy:
        results.put("busy")


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_claimants_exactly_one_wins(entry, stale):
    if stale:  # all of them first have to take a dead process's claim away
        entry.folder.mkdir(parents=True)
        entry.path("claim").write_text(json.dumps({"host": socket.gethostname(), "pid": dead_pid(), "token": "old"}))
    barrier, results = FORK.Barrier(4), FORK.Queue()
    processes = [FORK.Process(target=compete, args=(entry, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert sorted(results.get(timeout=5) for _ in processes) == ["busy", "busy", "busy", "won"]
    assert list(entry.folder.glob("claim*")) == []


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


def test_claim_of_a_dead_process_is_taken_over_and_counts_as_lost_before(entry):
    entry.set_status("running")
    entry.path("claim").write_text(json.dumps({"host": socket.gethostname(), "pid": dead_pid(), "token": "old"}))
    assert entry.state() == "lost"
    with entry.claimed():
        assert json.loads(entry.path("claim").read_text())["pid"] == os.getpid()
        assert entry.state() == "running"
    assert not entry.path("claim").exists()


def test_zombie_is_dead(entry):
    """A killed child that its parent has not waited for still has a pid."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    entry.folder.mkdir(parents=True)
    entry.path("claim").write_text(json.dumps({"host": socket.gethostname(), "pid": process.pid, "token": "old"}))
    with pytest.raises(Busy, match=str(process.pid)), entry.claimed():
        pass
    process.kill()
    time.sleep(0.3)  # not waited for
    with entry.claimed():
        pass
    process.wait()


def test_claim_of_another_machine_is_judged_by_its_heartbeat(entry):
    entry.folder.mkdir(parents=True)
    claim = entry.path("claim")
    claim.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "theirs"}))
    with pytest.raises(Busy, match="elsewhere"), entry.claimed():
        pass
    assert json.loads(claim.read_text())["token"] == "theirs"
    old = time.time() - stores.STALE_SECONDS - 5
    os.utime(claim, (old, old))
    with entry.claimed():
        assert json.loads(claim.read_text())["host"] == socket.gethostname()


def test_empty_claim_is_respected_while_young(entry):
    """Its writer is between creating and writing it, or died there."""
    entry.folder.mkdir(parents=True)
    claim = entry.path("claim")
    claim.touch()
    with pytest.raises(Busy), entry.claimed():
        pass
    old = time.time() - stores.HEARTBEAT_SECONDS - 5
    os.utime(claim, (old, old))
    with entry.claimed():
        pass


def test_heartbeat_touches_the_claim(entry, monkeypatch):
    monkeypatch.setattr(stores, "HEARTBEAT_SECONDS", 0.05)
    with entry.claimed():
        claim = entry.path("claim")
        os.utime(claim, (0, 0))
        end = time.monotonic() + 5
        while claim.stat().st_mtime == 0 and time.monotonic() < end:
            time.sleep(0.02)
        assert time.time() - claim.stat().st_mtime < 60


def test_an_owner_whose_claim_was_taken_does_not_remove_the_successors(entry):
    with entry.claimed():
        entry.path("claim").write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "theirs"}))
    assert json.loads(entry.path("claim").read_text())["token"] == "theirs"


# ---- the disk says no


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_full_disk_is_explained_and_keeps_the_old_file(entry, monkeypatch, step):
    write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 1.0}})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if step == "open":
            patch.setattr(stores, "open", full, raising=False)
        else:
            patch.setattr(stores.os, step, full)
        with pytest.raises(StoreError, match="no space left") as caught:
            write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 2.0}})
    assert "metrics.json" in str(caught.value)
    assert "run the same command again" in str(caught.value)
    assert entry.metrics() == {"metrics": {"dev/score": 1.0}}
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
from sparse_attention.repro.store import Store, StoreError, write_json
entry = Store(sys.argv[1]).entry("toy", "softmax", "abc")
write_json(entry.path("metrics.json"), {"metrics": {"dev/score": 1.0}})
Path(sys.argv[1], "ballast").write_bytes(b"x" * 180_000)
try:
    entry.write_predictions({"output": __import__("os").urandom(50).hex()} for _ in range(5000))
except StoreError as error:
    print("StoreError", error)
print(entry.metrics(), entry.predictions(), sorted(p.name for p in entry.folder.iterdir()))
"""
    done = small_disk(code)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.strip().splitlines()
    assert first.startswith("StoreError no space left while writing")
    assert last == "{'metrics': {'dev/score': 1.0}} [] ['metrics.json']"


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
        for work in (lambda: write_json(entry.path("status.json"), {}), lambda: entry.claimed().__enter__()):
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
