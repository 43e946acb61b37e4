"""Launchers over cells of the fake family: what is begun again, what is not, and which GPU a worker gets. Slurm: tests/slurm."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fake_family
import pytest
import torch
from fake_family import ran

from repro import launch
from repro.errors import StoreError
from repro.launch import launcher, pool, slurm

RUNTIME = {"device": "cpu", "threads": 1, "workers": 2, "devices": "all", "workers_per_device": 1}


def run(cells, store, retries=0, **runtime):
    """(seed -> outcome, notes)."""
    events = list(launch.run(cells, store, {"name": "local", "retries": retries}, RUNTIME | runtime))
    return {e.cell.seed: e.outcome for e in events if e.outcome}, [e.text for e in events if e.kind == "note"]


def test_a_worker_runs_the_plugin_that_the_command_named_and_no_other(cell, store, tmp_path):
    plugin, trace = tmp_path / "own.py", tmp_path / "trace"
    plugin.write_text(f"open({str(trace)!r}, 'a').write('ran ')")
    mine = cell(plugins=[str(plugin)])
    whole = plugin.read_text()
    plugin.write_text(whole.replace("ran", "evil"))
    for _ in range(2):
        ended, _ = run([mine], store)
        assert ended[1].state == "failed" and "has changed since the command named it" in ended[1].error
    plugin.write_text(whole)
    ended, _ = run([mine], store)
    assert ended[1].state == "done" and trace.read_text() == "ran ran ", "in this process and in the worker"


def test_a_killed_cell_is_begun_again_as_often_as_asked_and_one_that_fails_is_not(cell, store):
    ended, notes = run([cell(task__behaviour="recover")], store, retries=1)
    assert ended[1].state == "done" and any("signal 9" in n and "restarted (1 of 1)" in n for n in notes)
    stubborn = cell(seed=2, task__behaviour="kill")
    ended, _ = run([stubborn], store, retries=2)
    assert ended[2].state == "failed" and ended[2].machine and "restarted 2 times" in ended[2].error
    assert len(ran(stubborn, store)) == 3
    assert "run the same command again" in stubborn.entry(store).status()["error"]
    wrong = cell(seed=3, task__behaviour="raise")
    ended, notes = run([wrong], store, retries=3)
    assert "the cat sat" in ended[3].error and not ended[3].machine and len(ran(wrong, store)) == 1


def test_progress_is_read_from_the_status_of_a_cell_anywhere(cell):
    status = {"state": "running", "time": 1e9, "attempt": 2, "job": "7_0"}
    status |= {"stage": "epoch 3/9", "fraction": 0.25, "loss": 1.5}
    event = pool.progress(cell(), status)
    assert (event.kind, event.text, event.fraction, event.stats) == ("stage", "epoch 3/9", 0.25, {"loss": 1.5})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_stops_a_cell_which_is_no_failure_of_its_own(cell, store, number):
    hanging, seen = cell(task__behaviour="hang"), []
    for event in launch.run([hanging], store, {"name": "local", "retries": 0}, RUNTIME):
        seen.append(event)
        if event.kind == "stage":
            os.kill(int(ran(hanging, store)[0][0]), number)
    assert seen[-1].outcome.machine and signal.Signals(number).name in seen[-1].outcome.error
    assert hanging.entry(store).state() == "lost" and not hanging.entry(store).path("claim").read_bytes()


def test_a_signal_to_the_command_stops_its_cells(cell, store):
    hanging = cell(task__behaviour="hang")
    events = launch.run([hanging], store, {"name": "local", "retries": 5}, RUNTIME)
    assert next(events).kind == "stage"
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        list(events)
    assert not hanging.entry(store).busy() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_cell_whose_command_is_gone_stops(cell, store):
    """It would hold its machine for nobody, and the same command would wait for it."""
    slow, here = cell(task__behaviour="look", task__seconds=3.0), Path(__file__).parent
    code = COMMAND.format(paths=[str(here.parents[1]), str(here)], runtime=RUNTIME)
    command = subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdin=subprocess.PIPE)
    command.stdin.write(pickle.dumps(slow))
    command.stdin.close()
    until(lambda: slow.entry(store).path("checkpoints/runs").exists())
    command.kill()
    command.wait()
    until(lambda: not slow.entry(store).busy())
    assert slow.entry(store).state() == "lost" and not slow.entry(store).finished()


def until(what, seconds=120.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


COMMAND = """
import sys
sys.path[:0] = {paths}
if __name__ == "__main__":
    import pickle
    from repro import launch
    from repro.store import Store
    cell = pickle.load(sys.stdin.buffer)
    list(launch.run([cell], Store(sys.argv[1]), {{"name": "local"}}, {runtime}))
"""


@pytest.mark.parametrize(
    "asked, processes, expected",
    [
        ({"workers": 2}, 1, ["0", "1"]),
        ({"workers": 8}, 1, ["0", "1", "2", "3"]),
        ({"workers": 6, "workers_per_device": 2}, 1, ["0", "1", "2", "3", "0", "1"]),
        ({"workers": 8}, 2, ["0,1", "2,3"]),
        ({"workers": 2, "devices": "none"}, 1, ["", ""]),
        ({"workers": 2, "device": "cpu"}, 1, [None, None]),
        ({"workers": 2, "device": "cpu", "devices": [3]}, 1, [None, None]),  # there, and not used
        ({"workers": 5}, 4, ["0,1,2,3"]),
        ({"workers": 3}, 5, ["0,1,2,3"]),  # too few for one cell: its training says so
    ],
)
def test_each_worker_has_its_own_gpus(monkeypatch, asked, processes, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    found, said = launcher.places(RUNTIME | {"device": "cuda"} | asked, processes)
    assert found == expected
    assert (said is not None) == (len(expected) < asked["workers"])
    if said:
        assert said.startswith(f"{len(expected)} worker(s), not runtime.workers={asked['workers']}: one for each of ")
        assert "workers_per_device=2" in said and (f" GPU(s) x {processes};" in said) == (processes > 1)


SHARED = [("140000\n90000\n", 32, 8), ("140000\n30000\n", 32, 3), ("9000\n9000\n", 1, 1)]
SHARED += [("140000\n140000\n", 12, 3), ("no driver", 32, 1)]


@pytest.mark.parametrize("told, cores, each", SHARED)
def test_memory_and_cores_decide_how_many_cells_share_a_gpu(monkeypatch, told, cores, each):
    """`auto`: 8 GB of the fullest GPU and 2 of its share of the cores for each; `workers` is not read, on a CPU it is."""
    asked = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-0af")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)})
    monkeypatch.setattr(subprocess, "run", lambda words, **_: asked.append(words) or SimpleNamespace(stdout=told))
    auto = RUNTIME | {"workers_per_device": "auto", "workers": 1}
    found, said = launcher.places(auto | {"device": "cuda"})
    assert found == ["2", "GPU-0af"] * each and asked[0][1] == "--id=2,GPU-0af"
    assert said.startswith(f"{each} cell(s) at a time on each of 2 GPU(s): ") and "runtime.workers_per_device=N" in said
    assert ("nvidia-smi does not tell" in said) == (told == "no driver")
    assert launch.ready({"name": "local"}, auto | {"device": "cuda"}) == (2 * each, said)
    assert launcher.places(auto) == ([None], None)


VISIBLE = [(None, 0, {}, [None] * 3), (None, 2, {}, ["0", "1"]), ("", 9, {}, [None] * 3)]
VISIBLE += [("5,7,GPU-0af", 9, {"devices": [2, 0]}, ["GPU-0af", "5"])]
VISIBLE += [
    ("4,5,6", 9, {"devices": [1, 3, 7]}, r"\[1, 3, 7\].*shows 3 GPU\(s\), so there is no 3; allowed: .* up to 2")
]
VISIBLE += [("", 9, {"device": "cpu", "devices": [0]}, r"allowed: all, none$")]
VISIBLE += [(None, 0, {"devices": [0]}, r"devices=\[0\].*shows 0 GPU")]


@pytest.mark.parametrize("named, count, asked, expected", VISIBLE)
def test_numbers_count_among_the_gpus_that_are_visible(monkeypatch, named, count, asked, expected):
    few = {"workers": 3, "device": "auto"}  # as a caller writes it that knows neither devices nor workers_per_device
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(StoreError, match=expected) if isinstance(expected, str) else contextlib.nullcontext():
        assert launcher.places(few | asked)[0] == expected


def test_workers_see_their_gpu_alone(cell, store, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    cells = [cell(seed=s, task__behaviour="look", task__seconds=1.5) for s in (1, 2, 3, 4)]
    ended, _ = run(cells, store, device="cuda", devices=[0, 2], workers=8)
    assert {o.state for o in ended.values()} == {"done"}
    seen = [one.entry(store).path("device").read_text() for one in cells]
    assert set(seen) == {"4", "6"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6"


def test_one_cell_runs_in_a_process_of_its_own_if_its_gpus_are_chosen(cell, store):
    apart = cell(runtime__devices="none", runtime__workers=1)
    assert launch.run_one(apart, store, lambda event: None).state == "done"
    assert ran(apart, store)[0][0] != str(os.getpid())


def test_slurm_without_a_controller_names_the_other_launcher(tmp_path, monkeypatch):
    command = tmp_path / "sinfo"
    command.write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(StoreError, match=r"sinfo --version failed: no controller; .* set launcher=local$"):
        slurm.here()


def test_a_job_runs_the_cell_that_was_submitted(cell, store, tmp_path, monkeypatch):
    plugin, trace = tmp_path / "own.py", tmp_path / "trace"
    plugin.write_text(f"open({str(trace)!r}, 'a').write('ran ')")
    asked = [cell(["further"], seed=seed, plugins=[str(plugin)], runtime__device="auto") for seed in (1, 2, 3)]
    asked.append(cell(task__behaviour="raise", runtime__device="cpu"))
    jobs = [pickle.loads(pickle.dumps(slurm.Element(one, store, 1, None))) for one in asked]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    jobs[0]()
    assert asked[0].done(store) and asked[0].entry(store).status()["job"] == "7" and trace.read_text()
    with pytest.raises(SystemExit, match=r"^1$"):
        jobs[3]()
    assert "the cat sat" in asked[3].entry(store).status()["error"]
    with monkeypatch.context() as patch:
        patch.setattr(fake_family, "RECIPE", (9, 1))
        with pytest.raises(SystemExit, match="its recipe or a plugin has changed since it was submitted"):
            jobs[1]()
    plugin.write_text("changed = True")
    with pytest.raises(SystemExit, match="its recipe or a plugin has changed"):
        jobs[2]()
    assert [one.entry(store).state() for one in asked] == ["done", "failed", "failed", "failed"]
