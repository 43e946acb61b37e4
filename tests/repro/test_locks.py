"""One writer a folder: of many claimants one wins, the dead lose what they held, the living keep it."""

import errno
import fcntl
import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import time

import pytest

from repro.errors import StoreError
from repro.store import Entry
from repro.store.locks import Busy

FORK = mp.get_context("fork")
HOLDER = """
import pathlib, sys, time
from repro.errors import StoreError
from repro.store import Entry
with Entry(pathlib.Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(entry):
    """Another process, which holds the lock of `entry`."""
    entry.folder.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, entry.folder], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def compete(entry, barrier, results):
    barrier.wait()
    try:
        with entry.locked():
            results.put("won")
            time.sleep(1.0)
    except Busy:
        results.put("busy")


def test_of_many_claimants_exactly_one_wins(entry):
    barrier, results = FORK.Barrier(4), FORK.Queue()
    processes = [FORK.Process(target=compete, args=(entry, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert sorted(results.get(timeout=5) for _ in processes) == ["busy", "busy", "busy", "won"]
    assert not entry.busy()


def test_owner_keeps_its_lock_and_is_named(entry, holder):
    for _ in range(2):  # looking does not take it away
        assert entry.busy()
        with pytest.raises(Busy, match=f"process {holder.pid} on .* is working on"), entry.locked():
            pass


def test_lock_of_a_killed_process_is_free_at_once_and_counts_as_lost_before(entry, holder):
    """Also of a zombie: a killed child that its parent has not waited for."""
    entry.set_status("running")
    assert entry.state() == "running"
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert entry.state() == "lost" and not entry.busy()
    with entry.locked():
        assert json.loads(entry.path("claim").read_text())["pid"] == os.getpid()


def test_own_lock_is_seen_and_kept(entry):
    """A process would return a POSIX lock by closing any handle of its file."""
    with entry.locked():
        assert entry.busy() and Entry(entry.folder.parent / "." / entry.folder.name).busy()
        with pytest.raises(Busy, match="this process"), entry.locked():
            pass
        barrier, results = FORK.Barrier(1), FORK.Queue()
        process = FORK.Process(target=compete, args=(entry, barrier, results))
        process.start()
        process.join(30)
        assert results.get(timeout=5) == "busy"
    assert not entry.busy() and entry.path("claim").read_bytes() == b""


def test_a_glance_does_not_keep_others_out(entry):
    """A process that only looks has the lock for a moment."""
    entry.folder.mkdir(parents=True)
    entry.path("claim").touch()
    glance = f"import fcntl, sys, time; f = open({str(entry.path('claim'))!r}); fcntl.lockf(f, fcntl.LOCK_SH)"
    glance = [sys.executable, "-c", f"{glance}; print(flush=True); time.sleep(0.08)"]
    process = subprocess.Popen(glance, stdout=subprocess.PIPE)
    process.stdout.readline()
    with entry.locked():
        pass
    process.wait()


def test_folder_that_was_moved_aside_meanwhile_is_not_worked_on(entry, monkeypatch):
    """Another process renamed it between the opening of the file and its lock."""
    take = fcntl.lockf

    def late(file, how):
        entry.folder.rename(entry.folder.with_name("aside"))
        take(file, how)

    monkeypatch.setattr(fcntl, "lockf", late)
    with pytest.raises(Busy, match="moved aside"), entry.locked():
        pass


@pytest.mark.parametrize(
    ("module", "call", "number", "said"),
    [
        (fcntl, "lockf", 37, "claim cannot be written .*told"),
        (os, "open", errno.EACCES, "set paths.outputs to a folder"),
    ],
)
def test_file_system_without_locks_and_folder_that_is_read_only_are_named(
    entry, monkeypatch, module, call, number, said
):
    def refuse(*_):
        raise OSError(number, "told")

    monkeypatch.setattr(module, call, refuse)
    with pytest.raises(StoreError, match=said), entry.locked():
        pass
