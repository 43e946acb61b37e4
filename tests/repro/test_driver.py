"""`tasks.commands.driver` around cells of the fake family: tables when complete, other processes waited for, Ctrl-C in one sentence."""

from __future__ import annotations

import copy
import csv
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import fake_family
import pytest
import torch
from fake_family import runs

from repro import cell as cells
from repro.plan.experiment import read
from repro.results import archive
from repro.store import Store, sources
from tasks.commands import driver as driving
from tasks.commands import lease as leases
from tasks.commands import records, reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

RUNTIME = {"workers": 2, "threads": 1, "device": "cpu", "devices": "all", "workers_per_device": 1}


@pytest.fixture
def planned(experiment, tools, store):
    """`planned(change, overrides)`: one plan of two rows and one seed, in the store."""

    def make(change=lambda page: None, overrides=()):
        def small(page):
            page["rows"][1].pop("grids", None)
            page["profiles"]["demo"] = {"columns": ["a"], "seeds": [1]}
            change(page)

        return fake_family.planned([experiment(small)], tools, overrides, **RUNTIME)

    return make


def test_a_run_prints_its_table_and_the_next_ones_make_what_is_missing(planned, store, capfd):
    assert reproduce.Driver(planned(), store).run() == 0
    said = capfd.readouterr()
    assert "A table" in said.out and "2 cells run, 0 reused, 0 failed" in said.out
    assert (store.root / "tables" / "fake_demo.md").is_file() and (store.root / "report" / "fake_demo.html").is_file()
    assert said.err.count("done fake: plain, A, seed 1") == said.err.count("done fake: tuned, A, seed 1") == 1
    assert "2 cells: 0 finished before, 2 to run on" in said.err
    assert max(len(line) for line in said.out.splitlines() if str(store.root) not in line) <= 100
    # a further evaluation does not train
    driver = reproduce.Driver(planned(lambda page: page["columns"]["a"].update(evaluate=["duc"])), store)
    assert not driver.done and driver.run() == 0
    assert "2 cells: 0 finished before, 0 to run, 2 to evaluate on" in capfd.readouterr().err
    assert [runs(cell, store) for cell in driver.cells.values()] == [["train", "test", "duc"]] * 2
    # a damaged cell is run again
    cell = next(iter(driver.cells.values()))
    cell.entry(store).path("weights.safetensors").write_text("x")
    assert reproduce.Driver(planned(), store).run() == 0
    said = capfd.readouterr()
    assert "its stored files are damaged" in said.err and "1 cells run, 1 reused, 0 failed" in said.out
    assert reproduce.Driver(planned(), store).run() == 0
    assert "0 cells run, 2 reused, 0 failed" in capfd.readouterr().out


def test_the_first_line_says_how_many_cells_how_long_before_the_data_are_prepared(tmp_path, monkeypatch, capfd):
    assumed = replace(reproduce.ASSUMED, others={"translation_demo": (8_000, 90)}, slowness=lambda: 2.0)
    monkeypatch.setattr(reproduce, "ASSUMED", assumed)
    asked = [f"paths.outputs={tmp_path}", "seeds=1,2", "runtime.workers=2", "train.max_epochs=2"]
    monkeypatch.setattr(reproduce, "prepared", lambda *_: sys.exit("prepared"))
    with pytest.raises(SystemExit, match="prepared"):
        reproduce.main(Request.read(asked, REPRODUCE, ["demo"]))
    assert " ".join(capfd.readouterr().err.split()) == (
        "demo: 6 cells: 0 done, 6 to run; about 18 min of cells (assumed); 9 min with 2 workers. "
        "First the data are prepared"
    )


@pytest.fixture
def begun(page, tools, store):
    """`begun(*changes)`: tables `one`, `two` ..; every change is made to all later ones."""

    def make(*changes, overrides=(), workers=2):
        loaded, now = [], copy.deepcopy(page)
        now["rows"][1].pop("grids", None)
        now["profiles"]["demo"] = {"columns": ["a"], "seeds": [1, 2]}
        for title, change in zip(("one", "two"), changes):
            change(now)
            loaded.append(read({**copy.deepcopy(now), "title": f"Table {title}"}, title, "demo"))
        made = fake_family.planned(loaded, tools, overrides, **RUNTIME | {"workers": workers})
        return reproduce.Driver(made, store)

    return make


def fewer(page):
    page["profiles"]["demo"]["seeds"] = [3]


def test_the_smallest_table_comes_first_and_its_longest_cell(begun, store, capfd, monkeypatch):
    monkeypatch.setattr(reproduce.Driver, "seconds", lambda self, cell: cell.seed)
    driver = begun(lambda page: None, fewer, workers=1)
    driver.done = {next(key for key, cell in driver.cells.items() if cell.seed == 2)}
    order = driver.order({key: cell.seed for key, cell in driver.cells.items() if key not in driver.done})
    assert [driver.cells[key].seed for key in order] == [2, 1, 1, 3, 3]
    driver = begun(*(lambda page, own=own: page["columns"]["a"].update(evaluate=[own]) for own in ("duc", "own")))
    assert driver.run() == 0
    of_both = [runs(cell, store) for cell in driver.cells.values()]
    assert of_both == [["train", "test", "duc", "own"]] * 4, "both are the same cells"
    said = capfd.readouterr()
    assert said.out.index("Table one") < said.out.index("Table two") and "4 cells run, 0 reused, 0 failed" in said.out
    assert "[4/4] done" in said.err
    assert driving.of_threads({"runtime": {"threads": 1}}) == ""
    assert "runtime.threads=2: sums are rounded differently" in driving.of_threads({"runtime": {"threads": 2}})


def test_finished_cells_of_other_code_are_told_once(planned, store, capfd, monkeypatch):
    driver = reproduce.Driver(planned(lambda page: None), store)
    assert driver.run() == 0 and "other code" not in capfd.readouterr().err, "nothing was finished before"
    again = reproduce.Driver(planned(lambda page: None), store)
    assert again.run() == 0 and "other code" not in capfd.readouterr().err, "nothing has changed"
    first = next(iter(again.cells.values()))
    folder, real = first.entry(store).folder, sources.changed

    def changed(made, module, config, today):
        return ["a.py", "b.py"] if config == first.config else real(made, module, config, today)

    monkeypatch.setattr(sources, "changed", changed)
    assert reproduce.Driver(planned(lambda page: None), store).run() == 0
    said = capfd.readouterr().err
    assert said.count("were trained or evaluated by other code") == 1 and "changed: a.py, b.py." in said
    assert f"WARNING: 1 of {len(again.cells)} finished cells" in said and said.count(str(folder)) == 1
    command = re.search(r"trained them: (rm -r .*)", said)[1]
    assert subprocess.run(command, shell=True, check=False).returncode == 0 and not folder.exists()


def test_a_run_without_any_data_is_refused(begun):
    def without(page):
        page["columns"]["a"]["overrides"] = ["data.missing=1"]

    with pytest.raises(compose.ConfigError, match="no column can be run: A: it is behind a licence"):
        begun(without)


def test_this_machine_is_timed_without_a_trace():
    before = torch.get_rng_state()
    assert 0.05 < driving.slowness() < 500 and torch.equal(torch.get_rng_state(), before)


def test_a_failed_cell_fails_the_run_and_not_the_table(planned, store, capfd):
    def change(page):
        page["rows"][1]["overrides"] = ["task.behaviour=raise"]

    assert reproduce.Driver(planned(change), store).run() == 1
    said = capfd.readouterr()
    assert said.err.count("the cat sat on the keyboard") == 1, "an error is printed once"
    assert "FAILED fake: tuned, A, seed 1: RuntimeError: the cat sat" in said.err and "1 failed" in said.out
    table = (store.root / "tables" / "fake_demo.txt").read_text()
    assert ", seed 1 failed: RuntimeError: the cat sat" in table and "Traceback" not in table
    with (store.root / "tables" / "runs_fake_demo.csv").open() as file:
        done, failed = csv.DictReader(file)
    assert (done["column"], done["row"], done["set"], done["state"]) == ("a", "plain", "test", "done")
    assert float(done["score"]) > 0 and (failed["row"], failed["state"], failed["score"]) == ("tuned", "failed", "")
    assert failed["seed"] == "1" and failed["reason"].startswith("RuntimeError: the cat sat")
    assert "tuned: 1 of 1 cells failed" in table


@pytest.mark.parametrize("finishes", [True, False])
def test_a_cell_of_another_process_is_waited_for_and_never_failed(planned, store, capfd, monkeypatch, finishes):
    held, waiting, sleep = threading.Event(), threading.Event(), time.sleep
    monkeypatch.setattr(driving.time, "sleep", lambda seconds: waiting.set() or sleep(0.1))
    driver = reproduce.Driver(planned(), store)
    cell = next(iter(driver.cells.values()))

    def other():
        with cell.entry(store).locked():
            held.set()
            waiting.wait(100)
        if finishes:
            cells.run(cell, store)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    assert driver.run() == 0 and cell.done(store)
    thread.join()
    said = capfd.readouterr()
    assert "waiting for it" in said.err and "0 failed" in said.out


def test_ctrl_c_is_one_sentence_and_130(planned, store, monkeypatch, capfd):
    driver = reproduce.Driver(planned(overrides=["task.behaviour=hang"]), store)
    threading.Timer(3.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    assert driver.run() == 130
    said = capfd.readouterr().err
    assert "Traceback" not in said and said.strip().splitlines()[-1].startswith("stopped with 0 of 2 cells done")


def test_the_profile_gpu_is_refused_without_a_gpu_but_can_be_planned(tmp_path, monkeypatch, capfd):
    """The error says how long it would take there and here; with a GPU, the demo says first what it would take."""
    monkeypatch.delenv("SPARSE_ATTENTION_DEVICE", raising=False)
    monkeypatch.setattr(reproduce, "prepared", lambda *_: sys.exit("prepared"))
    monkeypatch.setattr(reproduce, "ASSUMED", replace(reproduce.ASSUMED, slowness=lambda: 1.0))

    def begin(*words, run=reproduce.main):
        run(Request.read([f"paths.outputs={tmp_path}", *words], REPRODUCE, ["niculae2017_table2"]))

    said = r"needs a GPU.* 7 min of an H200, .*device=cpu 4 h .*slurm_gpu, .*cpu"
    with pytest.raises(compose.ConfigError, match=said):
        begin("profile=gpu")
    with pytest.raises(SystemExit, match="prepared"):
        begin("profile=gpu", "runtime.device=cpu")
    begin("profile=gpu", run=reproduce.plan)
    said = r"6 to run; about 16 min .* 7.0 GPU-minutes with 6 cells at a time on a GPU"
    assert re.search(said, capfd.readouterr().out)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for profile, first in (("demo", "PROFILE=gpu: about 7 minutes here"), ("cpu", "niculae2017_table2: ")):
        with pytest.raises(SystemExit, match="prepared"):
            begin(f"profile={profile}", "launcher=local")
        assert capfd.readouterr().err.startswith(first)


def test_a_lease_begins_what_ends_in_time_and_the_next_one_makes_the_rest(planned, store, tmp_path, monkeypatch, capfd):
    """On another machine, from the records alone: nothing is lost, and nothing is trained twice."""
    two = lambda page: page["profiles"]["demo"].update(seeds=[1, 2])  # noqa: E731
    monkeypatch.setattr(leases.Lease, "seconds", lambda self, cell: 100.0 * cell.seed)
    (plan,), there, folder = planned(two), store, tmp_path / "lease"
    assert leases.Lease([plan], there, ends=time.monotonic() + 150).run() == 0
    said = capfd.readouterr()
    assert "2 of 4 cells end within" in said.err and "2 cells run, 0 reused, 0 failed, 2 not finished" in said.out
    found, lost = archive.collect(plan.slots, there)
    archive.write(records.file_of("fake", "demo", folder), {"arguments": []}, found)
    assert [cell.seed for cell in lost] == [2, 2]
    here = Store(tmp_path / "here")
    (stale,) = planned(two, ["data.content=other"])
    leases.restore(stale, here, folder)
    assert not any(cell.done(here) for cell in stale.slots), "of other data"
    leases.restore(plan, here, folder)
    driver = leases.Lease([plan], here, ends=time.monotonic() + 201)
    assert driver.run() == 0 and "2 cells run, 2 reused, 0 failed" in capfd.readouterr().out
    for cell in plan.slots:
        own, other = (there, here) if cell.seed == 1 else (here, there)
        assert runs(cell, own) == ["train", "test"] and not cell.entry(other).path("checkpoints/runs").exists()
    of_both = [(c.results(here), c.results(there)) for c in plan.slots if c.seed == 1]
    assert of_both and all(a.metrics["test/score"] == b.metrics["test/score"] for a, b in of_both)


def test_when_the_time_is_over_the_cells_save(planned, store, capfd):
    slow = lambda page: page["rows"][0].update(overrides=["task.behaviour=hang"])  # noqa: E731
    assert leases.Lease(planned(slow), store, ends=time.monotonic() + 4).run() == 0
    said = capfd.readouterr()
    assert "2 begin and save what they have" in said.err and "the time is over" in said.err
    assert "not finished" in said.out
