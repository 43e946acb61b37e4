"""What makes a cell the same cell, and that running one never raises, never repeats and never loses a failure."""

from __future__ import annotations

import csv
import errno
import json
import os

import pytest
import yaml

from sparse_attention.repro import cell as cells
from sparse_attention.repro import store as stores
from sparse_attention.repro.cell import identity


@pytest.fixture
def base(config):
    return identity(config(), "data")


# ---- identity


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2}, {"mapping__lam": 0.1}, {"mapping__name": "sparsemax"}, {"mapping__new": 1}, {"train__max_epochs": 2},
        {"optim__lr": 0.5}, {"model__hidden_dim": 8}, {"task__recipe": 2}, {"task__name": "other"}, {"task__data__content": "b"},
        {"task__data__source_lang": "fr"}, {"task__decode": {"beam": 3}},
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_whatever_changes_the_numbers_changes_the_cell(config, base, changes):
    assert identity(config(**changes), "data") != base


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime__threads": 8}, {"runtime__workers": 7}, {"runtime__device": "cuda"}, {"logger": {"name": "wandb", "project": "x"}},
        {"paths__outputs": "elsewhere"}, {"paths__data": "elsewhere"}, {"task__data__root": "elsewhere"},
        {"task__data__mirror": "elsewhere"}, {"task__data__path": "elsewhere"}, {"task__data__fallback": "toy"},
        {"grid": {"mapping.lam": [1, 2]}}, {"profile__name": "cpu"}, {"experiment": "table 2"}, {"hydra": {"job": 3}},
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_where_and_how_it_runs_does_not(config, base, changes):
    assert identity(config(**changes), "data") == base


def test_the_data_count_by_their_hash(config, base):
    assert identity(config(), "other data") != base


def test_order_of_keys_does_not_count(config, base):
    reversed_config = dict(reversed(list(config().items())))
    reversed_config["task"] = dict(reversed(list(reversed_config["task"].items())))
    assert identity(reversed_config, "data") == base


def test_a_plugin_counts_by_its_content_not_its_place(config, base, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = tmp_path / "a" / "mine.py", tmp_path / "b" / "named.py"
    one.write_text("x = 1")
    other.write_text("x = 1")
    first = identity(config(plugins=[str(one)]), "data")
    assert first != base
    assert identity(config(plugins=[str(other)]), "data") == first
    other.write_text("x = 2")
    assert identity(config(plugins=[str(other)]), "data") != first


def test_a_vector_file_counts_by_its_name_not_its_place(config):
    first = identity(config(task__encode={"vectors": "/a/glove.txt"}), "data")
    assert identity(config(task__encode={"vectors": "elsewhere/glove.txt"}), "data") == first
    assert first != identity(config(task__encode={"vectors": "ppmi"}), "data")
    assert first != identity(config(task__encode={"vectors": None}), "data")


def test_a_configuration_read_back_is_the_same_cell(config):
    assert identity(config(), "data") == identity(json.loads(json.dumps(config())), "data")
    assert len(identity(config(), "data")) == 16


# ---- plugins


def test_plugins_are_loaded_once(tmp_path):
    plugin, trace = tmp_path / "plugin.py", tmp_path / "trace"
    plugin.write_text(f"open({str(trace)!r}, 'a').write('loaded ')")
    cells.load_plugins([str(plugin)])
    cells.load_plugins([str(plugin), str(plugin)])
    assert trace.read_text() == "loaded "


@pytest.mark.parametrize(
    "content, said", [(None, "FileNotFoundError"), ("import nowhere_at_all", "nowhere_at_all"), ("1/0", "ZeroDivision")]
)
def test_a_broken_plugin_is_named(tmp_path, content, said):
    plugin = tmp_path / "broken.py"
    if content is not None:
        plugin.write_text(content)
    for _ in range(2):  # a failed import must not count as loaded
        with pytest.raises(ValueError, match=said) as caught:
            cells.load_plugins([str(plugin)])
        assert str(plugin) in str(caught.value)


# ---- running


def test_a_finished_cell_has_everything(cell, store):
    said = []
    outcome = cells.run(cell(), store, forward=lambda *message: said.append(message))
    entry = cell().entry(store)
    assert outcome.state == "done" and entry.state() == "done"
    assert entry.metrics()["metrics"] == {"dev/score": 0.1, "test/score": 49.9, "test/other": 0.05}
    assert entry.metrics()["baselines"] == {"constant": {"test/score": 1.5, "test/text": "the same"}}
    assert [r["index"] for r in entry.predictions()] == list(range(12))
    assert list(csv.DictReader(entry.path("curves.csv").open())) == [{"epoch": "1", "dev/score": "0.1"}]
    assert yaml.safe_load(entry.path("config.yaml").read_text())["mapping"] == {"name": "softmax", "lam": 0.0}
    record = json.loads(entry.path("provenance.json").read_text())
    assert record["seed"] == 1 and record["data_sha256"] == cell().prepared.sha256
    assert record["packages"]["torch"] and record["code"].get("commit", "outside a checkout")
    from safetensors.torch import load_file

    assert load_file(entry.path("attention.safetensors"))["p"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert "measured" in entry.path("log.txt").read_text()
    assert not entry.path("claim").exists()
    assert ("stage", "working", 0.5, {"loss": 1.0}) in said and ("note", "measured") in said


def test_a_finished_cell_is_never_run_again(cell, store):
    cells.run(cell(), store)
    folder = cell().entry(store).folder
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    outcome = cells.run(cell(runtime__threads=4), store)
    assert outcome.state == "skipped"
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
    assert len((folder / "runs").read_text().splitlines()) == 1


def test_a_failure_is_recorded_with_its_traceback(cell, store):
    failing = cell(task__behaviour="raise")
    outcome = cells.run(failing, store)
    entry = failing.entry(store)
    assert outcome.state == "failed" and entry.state() == "failed"
    assert outcome.error.startswith("RuntimeError: the cat sat on the keyboard")
    status = entry.status()
    assert status["error"] == "RuntimeError: the cat sat on the keyboard"
    assert "fake_task.py" in status["traceback"] and 'raise RuntimeError("the cat' in status["traceback"]
    assert not entry.path("claim").exists() and not entry.path("metrics.json").exists()


def test_a_failed_cell_is_tried_again_and_attempts_are_counted(cell, store):
    failing = cell(task__behaviour="raise")
    for _ in range(2):
        assert cells.run(failing, store).state == "failed"
    entry = failing.entry(store)
    assert len(entry.path("runs").read_text().splitlines()) == 2
    cured = cells.Cell(
        {**failing.config, "task": {**failing.config["task"], "behaviour": "measure"}},
        failing.prepared,
        failing.cell_id,
    )
    assert cells.run(cured, store).state == "done"
    assert json.loads(entry.path("provenance.json").read_text())["attempt"] == 3


def test_a_cell_somebody_else_runs_is_busy(cell, store):
    mine = cell()
    with mine.entry(store).claimed():
        outcome = cells.run(mine, store)
    assert outcome.state == "busy"
    assert str(os.getpid()) in outcome.error
    assert mine.entry(store).metrics() is None


class Logger:
    def __init__(self, broken=()):
        self.broken, self.ended = broken, []

    def curve(self, rows):
        if "curve" in self.broken:
            raise RuntimeError("no network")

    def finish(self, metrics, state):
        self.ended.append((metrics, state))
        if "finish" in self.broken:
            raise RuntimeError("no network")


@pytest.mark.parametrize("behaviour, state", [("measure", "done"), ("raise", "failed")])
def test_loggers_hear_the_end(cell, store, behaviour, state):
    logger = Logger()
    cells.run(cell(task__behaviour=behaviour), store, loggers=lambda _: [logger])
    assert [s for _, s in logger.ended] == [state]
    assert bool(logger.ended[0][0]) == (state == "done")


@pytest.mark.parametrize("behaviour", ["measure", "raise"])
def test_a_logger_that_fails_at_the_end_does_not_make_run_raise(cell, store, behaviour):
    outcome = cells.run(cell(task__behaviour=behaviour), store, loggers=lambda _: [Logger(["finish"])])
    if behaviour == "raise":
        assert outcome.state == "failed" and "cat" in outcome.error
    else:  # the numbers are there: a logger's trouble does not take them away
        assert cell(task__behaviour=behaviour).entry(store).metrics() is not None


def test_a_broken_plugin_fails_the_cell(cell, store, tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("1/0")
    outcome = cells.run(cell(plugins=[str(bad)]), store)
    assert outcome.state == "failed" and "ZeroDivision" in outcome.error


def test_full_disk_fails_clearly_and_leaves_the_store_whole(cell, store, monkeypatch):
    """The disk fills up while the predictions are written; afterwards the same call finishes the cell."""
    cells.run(cell(seed=7), store)
    real = os.replace

    def full(source, target):
        if "predictions" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(stores.os, "replace", full)
        outcome = cells.run(cell(), store)
    entry = cell().entry(store)
    assert outcome.state == "failed"
    assert outcome.error.startswith("StoreError: no space left while writing")
    assert entry.state() == "failed" and entry.metrics() is None
    assert not [p for p in entry.folder.iterdir() if p.name.startswith(".")]
    assert cell(seed=7).entry(store).metrics() is not None
    assert cells.run(cell(), store).state == "done"


def test_run_reports_a_disk_that_takes_nothing(cell, store, monkeypatch):
    """Not even the failure can be recorded."""

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(stores, "open", full, raising=False)
        outcome = cells.run(cell(), store)
    assert outcome.state == "failed"
    assert outcome.error.startswith("StoreError: no space left")
    assert "could not be recorded" in outcome.error
    assert cells.run(cell(), store).state == "done"
