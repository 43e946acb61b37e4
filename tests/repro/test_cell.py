"""Running a cell never raises, never repeats, never loses a failure; training and evaluation are apart."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import fake_family
import pytest
import yaml
from fake_family import cured, runs
from refusals import refused

from repro import cell as cells
from repro import files, plugins
from repro.errors import StoreError
from repro.store import Damaged


def test_plugins_are_loaded_once_and_by_their_content(tmp_path):
    plugin, trace = tmp_path / "plugin.py", tmp_path / "trace"
    plugin.write_text(f"open({str(trace)!r}, 'a').write('loaded ')")
    plugins.load([str(plugin)])
    plugins.load([str(plugin), str(plugin)])
    plugins.load(pinned := plugins.pinned([str(plugin)]))
    assert trace.read_text() == "loaded "
    plugin.write_text(plugin.read_text() + "  # and more")
    assert plugins.pinned([str(plugin)]) == pinned, "as it ran"
    with pytest.raises(ValueError, match=r"plugin\.py") as caught:
        plugins.load(pinned)
    assert caught.value.__cause__ is None, "it was not run"
    assert trace.read_text() == "loaded "


@pytest.mark.parametrize(
    "content, error",
    [(None, FileNotFoundError), ("import nowhere_at_all", ModuleNotFoundError), ("1/0", ZeroDivisionError)],
)
def test_a_broken_plugin_is_named_and_fails_its_cell(cell, store, tmp_path, content, error):
    plugin = tmp_path / "broken.py"
    if content is not None:
        plugin.write_text(content)
    for _ in range(2):  # a failed import must not count as loaded
        with pytest.raises(ValueError, match=error.__name__) as caught:
            plugins.load([str(plugin)])
        assert type(caught.value.__cause__) is error and str(plugin) in str(caught.value)
    outcome = cells.run(replace(cell(), config=cell().config | {"plugins": [str(plugin)]}), store)
    assert outcome.state == "failed" and error.__name__ in outcome.error


def test_a_finished_cell_has_everything(cell, store):
    said = []
    mine = cell(tests=["further"])
    outcome = cells.run(mine, store, forward=lambda *message: said.append(message))
    entry, found = mine.entry(store), mine.results(store)
    assert outcome.state == "done" and entry.state() == mine.state(store) == "done"
    assert found.metrics == {
        "dev/score": 0.1, "best_epoch": 1.0, "test/score": 49.9, "test/other": 24.95, "further/score": 49.9, "further/other": 24.95,
    }  # fmt: skip
    assert found.facts["provenance"] == "invented"
    level = found.evaluations["further"]
    assert [r["index"] for r in level.predictions()] == list(range(12))
    assert json.loads(level.path("answers.json").read_text()) == [49.9]
    assert entry.path("curves.csv").read_text().split() == ["epoch,dev/score", "1,0.1", "2,-0.9", "3,-1.9"]
    page = yaml.safe_load(entry.path("config.yaml").read_text())
    assert page["mapping"] == mine.config["mapping"] and page["module"] == "fake_family"
    record = json.loads(entry.path("provenance.json").read_text())
    assert record["seed"] == 1 and record["data_sha256"] == mine.prepared.sha256
    assert record["kernels"] and "locked" in record
    precision = mine.config["train"].get("precision", False)
    assert {"device": "cpu", "precision": precision}.items() <= record["machine"].items()
    assert record["packages"]["torch"] and record["code"].get("commit", "outside a checkout")
    from safetensors.torch import load_file

    assert load_file(level.path("attention.safetensors"))["p"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert "measured" in entry.path("log.txt").read_text() and not entry.path("claim").read_bytes()
    assert ("stage", "training", 0.425, {"loss": 1.0}) in said and ("note", "measured") in said
    fractions = [m[2] for m in said if m[0] == "stage"]
    assert fractions == sorted(fractions) and fractions[-1] < 1
    training = json.loads(entry.path("manifest.json").read_text())
    assert set(training["files"]) == {
        "config.yaml", "weights.safetensors", "encoding/dict.txt", "metrics.json", "curves.csv", "provenance.json",
    }  # fmt: skip
    assert "answers.json" in json.loads(level.path("manifest.json").read_text())["files"]


@pytest.mark.parametrize(
    "changes", [{"decode__beam": 3}, {"task__scores": ["other"]}, {"data__test": "moved"}, {"tests": ["further"]}]
)
def test_another_evaluation_of_a_finished_training_runs_without_training(cell, store, changes):
    cells.run(cell(), store)
    other = cell(**changes)
    assert not other.done(store) and other.state(store) == "queued"
    assert cells.run(other, store).state == "done"
    assert runs(cell(), store) == ["train", "test", "further" if "tests" in changes else "test"]
    assert cell().results(store).metrics["test/score"] == 49.9, "the first evaluation is still there"
    if "decode__beam" in changes:
        assert other.results(store).metrics["test/score"] == 51.9
    assert cells.run(other, store).state == "skipped"


def test_a_failed_evaluation_does_not_lose_the_training(cell, store):
    mine = cell(task__behaviour="raise in evaluation")
    outcome = cells.run(mine, store)
    entry = mine.entry(store)
    assert outcome.state == "failed" and "ate the test set" in outcome.error and mine.state(store) == "failed"
    assert entry.finished() and mine.results(store) is None
    (entry.path("checkpoints") / "cured").touch()
    assert cells.run(mine, store).state == "done" and runs(mine, store) == ["train", "test", "test"]


def test_a_failure_is_recorded_with_its_traceback_and_tried_again(cell, store):
    failing = cell(task__behaviour="raise")
    entry = failing.entry(store)
    for _ in range(2):
        outcome = cells.run(failing, store)
        assert outcome.state == "failed" and entry.state() == failing.state(store) == "failed"
        assert outcome.error.startswith("RuntimeError: the cat sat on the keyboard")
    status = entry.status()
    assert status["error"] == "RuntimeError: the cat sat on the keyboard" == outcome.reason
    assert "fake_family.py" in status["traceback"] and 'raise RuntimeError("the cat' in status["traceback"]
    assert not entry.path("claim").read_bytes() and not entry.finished() and runs(failing, store) == ["train", "train"]
    assert cells.run(cured(failing), store).state == "done"
    assert json.loads(entry.path("provenance.json").read_text())["attempt"] == 3


WRONG = {"nothing": "returned no metrics", "wrong set": "every name must start with test/"}
WRONG |= {"not a number": "dev/loss: nan; lower optim.lr"}


@pytest.mark.parametrize("behaviour, said", WRONG.items())
def test_a_family_that_measures_nothing_or_something_else_is_told(cell, store, behaviour, said):
    outcome = cells.run(cell(task__behaviour=behaviour), store)
    assert outcome.state == "failed" and said in outcome.error


def test_a_score_that_is_not_a_number_is_told(cell, store):
    notes = []
    outcome = cells.run(cell(task__behaviour="half a number"), store, forward=lambda kind, *said: notes.append(said))
    assert outcome.state == "done" and ("test/other: nan; tables cannot show its mean",) in notes


def test_a_disk_that_fills_up_at_any_write_leaves_finished_cells_whole(cell, store, monkeypatch, full):
    """It has room for the first `seed - 1` writes of a cell, so for the first cell not even the failure can be recorded."""
    real, room = os.fsync, []

    def fsync(handle):
        if not room:
            full()
        room.pop()
        real(handle)

    for seed in range(1, 20):
        room[:] = [True] * (seed - 1)
        mine = cell(seed=seed)
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", fsync)
            outcome = cells.run(mine, store)
        if not room and outcome.state != "done":
            assert outcome.state == "failed" and outcome.error.startswith("StoreError: the disk is full: ")
            assert seed > 1 or "could not be recorded" in outcome.error
        assert not [p for p in store.root.rglob(".*") if p.is_file()]
        assert cells.run(mine, store).state in ("done", "skipped")
        assert mine.results(store).metrics["test/score"] == pytest.approx(50 - seed / 10)
        assert all(cell(seed=finished).done(store) for finished in range(1, seed))
    assert room and seed > 10, "there are more writes than this test tries"


def test_names_that_leave_the_store_are_refused_before_the_data_are_prepared(cell):
    with refused(StoreError, key="name", value="../../x"):
        cell(task__name="../../x", data__missing=True)


WAYS = [("weights.safetensors", "x"), ("config.yaml", "[]"), ("encoding/dict.txt", "gone")]
WAYS += [("metrics.json", how) for how in ("{}", "[]", "gone", "x")]
# a manifest that is gone is no damage: without one it is not finished
WAYS += [("manifest.json", how) for how in ("{}", "[]", "x")]


@pytest.mark.parametrize("name, how", WAYS)
def test_a_damaged_training_is_named_moved_aside_and_trained_again(cell, store, name, how):
    cells.run(cell(), store)
    entry = cell().entry(store)
    entry.path(name).unlink() if how == "gone" else entry.path(name).write_text(how)
    with pytest.raises(Damaged, match=name.replace(".", r"\.")) as caught:
        cell().results(store)
    assert str(entry.folder) in str(caught.value) and cell().state(store) == "damaged"
    assert cells.run(cell(seed=2), store).state == "done", "one bad cell does not stop the others"
    assert cells.run(cell(), store).state == "done" and cell().done(store)
    aside = entry.folder.with_name(f"{entry.folder.name}.damaged-1")
    assert (aside / "evaluations").is_dir() and (aside / "checkpoints" / "runs").is_file()
    assert not (aside / "claim").read_bytes()
    assert {e.folder.name for e in store} == {cell().training_id, cell(seed=2).training_id}
    assert "was damaged and is now in" in entry.path("log.txt").read_text()


def test_a_second_damage_has_the_next_number(cell, store):
    for _ in range(2):
        cells.run(cell(), store)
        cell().entry(store).path("weights.safetensors").write_text("nonsense")
    cells.run(cell(), store)
    folder = cell().entry(store).folder
    names = [f"{folder.name}{end}" for end in ("", ".damaged-1", ".damaged-2")]
    assert sorted(p.name for p in folder.parent.iterdir()) == names


@pytest.mark.parametrize("name", ["metrics.json", "predictions.jsonl.gz", "attention.safetensors", "answers.json"])
def test_a_damaged_evaluation_is_evaluated_again_without_training(cell, store, name):
    cells.run(cell(), store)
    level = cell().evaluation(store, cell().tests[0])
    level.path(name).write_bytes(b"\x1f\x8b broken")
    with pytest.raises(Damaged, match=name):
        cell().results(store)
    assert cells.run(cell(), store).state == "done" and cell().done(store)
    assert runs(cell(), store) == ["train", "test", "test"]
    assert level.folder.with_name(f"{level.folder.name}.damaged-1").is_dir()


def test_an_evaluation_that_was_killed_leaves_no_old_files_behind(cell, store):
    mine = cell()
    level = mine.evaluation(store, mine.tests[0])
    level.folder.mkdir(parents=True)
    level.path("leftover").write_text("of a killed process")
    cells.run(mine, store)
    assert not level.path("leftover").exists() and level.damage() is None


def test_a_finished_training_is_evaluated_without_its_data_or_recipe(cell, store, monkeypatch):
    cells.run(cell(), store)
    folder = cell().entry(store).folder
    monkeypatch.setattr(fake_family, "RECIPE", (7, 1))
    monkeypatch.setattr(fake_family, "prepare", None)
    again = cells.finished(folder)
    test = fake_family.prepare_test({"data": {"name": "later", "test": "l"}}, folder / "encoding", None)
    again = replace(again, tests=(test,), further={"later": {"name": "later"}})
    assert cells.run(again, store).state == "done"
    assert again.results(store).metrics["later/score"] == 49.9 and again.results(store).folder == folder
    shutil.rmtree(folder / "encoding")
    with pytest.raises(Damaged, match=r"encoding/dict\.txt"):
        cells.finished(folder)
