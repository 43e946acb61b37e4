"""One writer a folder: of many claimants one wins, the dead lose what they held, the living keep it."""

import json
import multiprocessing as mp
import os
import socket
import subprocess
import threading
import time

import pytest

from repro.store import locks
from repro.store.locks import Busy, owner

FORK = mp.get_context("fork")


def held(entry, **changes) -> None:
    """Leave a claim of this machine, with `changes`."""
    entry.folder.mkdir(parents=True, exist_ok=True)
    entry.path("claim").write_text(json.dumps(owner() | changes))


def dead_pid() -> int:
    process = FORK.Process(target=int)
    process.start()
    process.join()
    return process.pid


def compete(entry, barrier, results):
    barrier.wait()
    try:
        with entry.locked():
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
    seen_by_both = locks.look(entry.path("claim"))
    with entry.locked():
        locks._take_away(entry.path("claim"), seen_by_both)
        assert json.loads(entry.path("claim").read_text())["pid"] == os.getpid()
    assert list(entry.folder.glob("claim*")) == []


def test_successor_that_died_on_the_way_is_passed_over(entry):
    held(entry, pid=dead_pid(), token="of-the-dead")
    taking = entry.path("claim.stale.of-the-dead.0")
    taking.touch()
    with pytest.raises(Busy, match="keep taking"), entry.locked():
        pass
    os.utime(taking, (0, 0))
    with entry.locked():
        assert entry.state() != "lost"
    assert list(entry.folder.glob("claim*")) == []


def test_claim_made_between_looking_and_taking_stays(entry):
    """Its owner gave up in this moment, and the next one is there already: another file, though as unreadable as the first."""
    entry.folder.mkdir(parents=True)
    claim = entry.path("claim")
    claim.touch()
    seen = locks.look(claim)
    entry.path("next").touch()
    os.replace(entry.path("next"), claim)
    locks._take_away(claim, seen)
    assert claim.exists()


def test_claim_appears_whole(entry, monkeypatch):
    """Whoever looks between the making of a claim and its owner's next step reads who it is."""
    link, seen = os.link, []

    def linked(draft, claim):
        link(draft, claim)
        seen.append(locks.look(claim).holder["pid"])

    monkeypatch.setattr(os, "link", linked)
    with entry.locked():
        assert seen == [os.getpid()]


def test_claim_whose_making_was_answered_twice_is_ours(entry, monkeypatch):
    """NFS: the server made the link, its answer got lost, and the second attempt is told that there is one."""
    link = os.link

    def answered_late(draft, claim):
        link(draft, claim)
        raise FileExistsError(17, "File exists", str(claim))

    monkeypatch.setattr(os, "link", answered_late)
    with entry.locked():
        assert entry.busy()
    assert list(entry.folder.iterdir()) == []


def test_file_system_without_links_is_named(entry, monkeypatch):
    def refuse(draft, claim):
        raise PermissionError(1, "Operation not permitted", str(claim))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(locks.StoreError, match="Operation not permitted"), entry.locked():
        pass


PIDS = (None, "x", True, 0, -1, 2**70, [1], 1.5)  # no processes
OTHERS = [None, {"host": "elsewhere"}, {"boot": "before"}, {"namespace": "pid:[1]"}, {"namespace": None}]


@pytest.mark.parametrize("other", [*OTHERS, *({"pid": pid, "token": ["../no/name*"]} for pid in PIDS)], ids=str)
def test_owner_that_cannot_be_asked_for_is_judged_by_its_heartbeat(entry, other):
    """Another machine may be called alike, and the containers of a host share its boot: a number is another process there.

    The owner of an empty claim (None) is between creating and writing it, or died there.
    """
    held(entry, **{"pid": dead_pid(), "token": "theirs"} | (other or {}))
    claim, seconds, host = entry.path("claim"), locks.STALE_SECONDS, (other or {}).get("host", socket.gethostname())
    if other is None:
        claim.write_bytes(b"")
        seconds, host = locks.HEARTBEAT_SECONDS, r"\?"
    before = claim.read_bytes()
    with pytest.raises(Busy, match=f"on {host} is working on"), entry.locked():
        pass
    assert entry.busy() and claim.read_bytes() == before
    os.utime(claim, (time.time() - seconds - 5,) * 2)
    assert not entry.busy()
    with entry.locked():
        assert json.loads(claim.read_text()).items() >= {"pid": os.getpid(), "host": socket.gethostname()}.items()
    assert list(entry.folder.glob("claim*")) == []


def test_machine_without_these_facts_asks_for_nobody(entry, monkeypatch):
    monkeypatch.setattr(locks, "_here", lambda: {"host": "mac", "boot": None, "namespace": None})
    held(entry, pid=dead_pid())
    assert entry.busy()


def test_owner_that_was_away_for_too_long_stops_without_writing(entry, monkeypatch):
    """Its machine slept; a successor has the folder by now."""
    from repro import signals

    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    with pytest.raises(signals.Stopped, match="was taken over"), signals.listening(), entry.locked() as check:
        check()
        entry.path("claim").write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "theirs"}))
        with pytest.raises(Busy, match="was taken over"):
            check()
        time.sleep(10)
    assert signals.asked().save is False
    assert json.loads(entry.path("claim").read_text())["token"] == "theirs"


@pytest.mark.parametrize("how", ["gone", "another process has its number"])
def test_claim_of_a_dead_process_is_taken_over_and_counts_as_lost_before(entry, how):
    entry.set_status("running")
    held(entry, **({"pid": dead_pid()} if how == "gone" else {"start": "1"}))
    assert entry.state() == "lost"
    with entry.locked():
        assert json.loads(entry.path("claim").read_text())["pid"] == os.getpid()
        assert entry.state() == "running"
    assert not entry.path("claim").exists()


def test_zombie_is_dead(entry):
    """A killed child that its parent has not waited for still has a pid."""
    process = subprocess.Popen(["sleep", "60"])
    held(entry, **owner(process.pid))
    with pytest.raises(Busy, match=str(process.pid)), entry.locked():
        pass
    process.kill()
    time.sleep(0.3)  # not waited for
    with entry.locked():
        pass
    process.wait()


def test_heartbeat_touches_the_claim(entry, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    with entry.locked():
        claim = entry.path("claim")
        os.utime(claim, (0, 0))
        end = time.monotonic() + 5
        while claim.stat().st_mtime == 0 and time.monotonic() < end:
            time.sleep(0.02)
        assert time.time() - claim.stat().st_mtime < 60


@pytest.mark.parametrize("beating", [False, True])
def test_a_claim_from_the_future_blocks_only_while_it_is_touched(entry, monkeypatch, beating):
    """A clock that was years ahead left its time there."""
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.2)
    held(entry, boot="another")
    claim, future = entry.path("claim"), time.time() + 3e8
    os.utime(claim, (future, future))
    assert not entry.busy()
    if beating:
        threading.Timer(0.1, os.utime, [claim]).start()
        with pytest.raises(Busy), entry.locked():
            pass
    else:
        with entry.locked():
            pass


def test_ages_are_taken_by_the_clock_of_the_file_system(entry, monkeypatch):
    held(entry, host="elsewhere")
    monkeypatch.setattr(time, "time", lambda: 0.0)  # ours is decades behind
    assert entry.busy() and abs(locks.now(entry.folder) - entry.path("claim").stat().st_mtime) < 60
    assert sorted(p.name for p in entry.folder.iterdir()) == ["claim"]
