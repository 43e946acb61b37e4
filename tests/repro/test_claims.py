"""One writer a folder: of many claimants one wins, the dead lose what they held, the living keep it."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from sparse_attention.repro import claims
from sparse_attention.repro.claims import Busy, owner

FORK = mp.get_context("fork")


@pytest.fixture
def entry(store):
    return store.entry("toy", "softmax", "abc")


def held(entry, **changes) -> None:
    """Leave a claim of this machine, with `changes`."""
    entry.folder.mkdir(parents=True, exist_ok=True)
    entry.path("claim").write_text(json.dumps(owner() | changes))


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
        held(entry, pid=dead_pid())
    barrier, results = FORK.Barrier(4), FORK.Queue()
    processes = [FORK.Process(target=compete, args=(entry, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert sorted(results.get(timeout=5) for _ in processes) == ["busy", "busy", "busy", "won"]
    assert list(entry.folder.glob("claim*")) == []


def test_late_successor_leaves_the_claim_that_another_made_since(entry):
    """Both saw the same dead process; the slower one still holds what it read then."""
    held(entry, pid=dead_pid())
    seen_by_both = json.loads(entry.path("claim").read_text())
    with entry.claimed():
        claims._take_away(entry.path("claim"), seen_by_both)
        assert json.loads(entry.path("claim").read_text())["pid"] == os.getpid()
    assert list(entry.folder.glob("claim*")) == []


def test_successor_that_died_on_the_way_is_passed_over(entry):
    held(entry, pid=dead_pid(), token="of-the-dead")
    taking = entry.path("claim.stale.of-the-dead")
    taking.touch()
    with pytest.raises(Busy, match="keep claiming"), entry.claimed():
        pass
    os.utime(taking, (0, 0))
    with entry.claimed():
        assert entry.state() != "lost"


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


def test_claim_of_a_dead_process_is_taken_over_and_counts_as_lost_before(entry):
    entry.set_status("running")
    held(entry, pid=dead_pid())
    assert entry.state() == "lost"
    with entry.claimed():
        assert json.loads(entry.path("claim").read_text())["pid"] == os.getpid()
        assert entry.state() == "running"
    assert not entry.path("claim").exists()


def test_zombie_is_dead(entry):
    """A killed child that its parent has not waited for still has a pid."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held(entry, **owner(process.pid))
    with pytest.raises(Busy, match=str(process.pid)), entry.claimed():
        pass
    process.kill()
    time.sleep(0.3)  # not waited for
    with entry.claimed():
        pass
    process.wait()


def test_claim_of_another_machine_is_judged_by_its_heartbeat(entry):
    claim = entry.path("claim")
    held(entry, host="elsewhere", token="theirs")
    with pytest.raises(Busy, match="elsewhere"), entry.claimed():
        pass
    assert json.loads(claim.read_text())["token"] == "theirs"
    old = time.time() - claims.STALE_SECONDS - 5
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
    old = time.time() - claims.HEARTBEAT_SECONDS - 5
    os.utime(claim, (old, old))
    with entry.claimed():
        pass


def test_heartbeat_touches_the_claim(entry, monkeypatch):
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.05)
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


def test_another_process_with_the_number_of_the_dead_one_does_not_keep_its_claim(entry):
    held(entry, start="1")
    with entry.claimed():
        pass


def test_this_machine_before_its_last_start_is_judged_by_its_heartbeat(entry):
    held(entry, boot="before", pid=dead_pid())
    assert entry.busy(), "it may be another machine that is called alike"
    old = time.time() - claims.STALE_SECONDS - 5
    os.utime(entry.path("claim"), (old, old))
    with entry.claimed():
        pass


@pytest.mark.parametrize("beating", [False, True])
def test_a_claim_from_the_future_blocks_only_while_it_is_touched(entry, monkeypatch, beating):
    """A clock that was years ahead left its time there."""
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.2)
    held(entry, boot="another")
    claim, future = entry.path("claim"), time.time() + 3e8
    os.utime(claim, (future, future))
    assert not entry.busy()
    if beating:
        threading.Timer(0.1, os.utime, [claim]).start()
        with pytest.raises(Busy), entry.claimed():
            pass
    else:
        with entry.claimed():
            pass


def test_ages_are_taken_by_the_clock_of_the_file_system(entry, monkeypatch):
    held(entry, host="elsewhere")
    monkeypatch.setattr(time, "time", lambda: 0.0)  # ours is decades behind
    assert entry.busy() and abs(claims.now(entry.folder) - entry.path("claim").stat().st_mtime) < 60
    assert sorted(p.name for p in entry.folder.iterdir()) == ["claim"]
