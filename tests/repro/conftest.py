"""Cells of the family in fake_family.py."""

import copy
import errno
import os

import fake_family  # registers itself as a family
import pytest
import yaml
from made_report import reported  # noqa: F401 a fixture
from made_table import made  # noqa: F401 a fixture

from repro import cell as cells
from repro.plan import Tools
from repro.plan.experiment import read
from repro.store import Store

BASE = {
    "task": {"name": "fake", "family": "none", "scores": ["score"]},
    "data": {"name": "invented", "content": "a"},
    "encode": {"vocabulary": 10},
    "decode": {"beam": 1},
    "model": {"name": "none", "hidden_dim": 4},
    "optim": {"name": "none", "lr": 1.0},
    "schedule": {"name": "none"},
    "mapping": {"name": "softmax", "lam": 0.0, "at": {}, "grid": {"lam": [0.0, 0.5]}},
    "train": {"max_epochs": 1, "best_metric": "score"},
    "seed": 1,
    "runtime": {"device": "cpu", "threads": 1, "workers": 1, "verbose": False},
    "logger": {"name": "csv"},
    "launcher": {"name": "local"},
    "paths": {"outputs": "o", "data": "d"},
    "plugins": [],
    "profile": {"name": "demo"},
}
MODULE = "fake_family"


def nest(changes: dict) -> dict:
    """{"a.b": 1} laid over the base configuration."""
    config = copy.deepcopy(BASE)
    for key, value in changes.items():
        *path, last = key.split(".")
        node = config
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return config


def compose(overrides, user=()):
    """Hydra's part, played by splitting at the equals sign; `bad=...` is an error."""
    if any(o.startswith("bad") for o in overrides):
        raise ValueError("no such key: bad")
    short = {"mapping": "mapping.name", "profile": "profile.name"}
    pairs = ((k.lstrip("+"), yaml.safe_load(v)) for k, v in (o.split("=", 1) for o in overrides))
    config = nest({short.get(k, k): v for k, v in pairs})
    return config | {"plugins": [config["plugins"]] if isinstance(config["plugins"], str) else config["plugins"]}


def with_data(config, name):
    return {**config, "data": {"name": name, "content": name}}


@pytest.fixture(scope="session")
def config():
    return lambda **changes: nest({k.replace("__", "."): v for k, v in changes.items()})


@pytest.fixture(scope="session")
def cell(config):
    """`cell(task__behaviour="raise")`: a prepared cell; `tests`: names of further test sets."""

    def make(tests=(), **changes):
        one = config(**changes)
        return cells.prepare(cells.Cell(one, MODULE, further={name: with_data(one, name)["data"] for name in tests}))

    return make


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "outputs")


@pytest.fixture
def trained(cell, store):
    """`trained(mapping__lam=0.5, seed=2)`: a finished cell of the fake family in the store."""

    def make(tests=(), **changes):
        one = cell(tests, **changes)
        assert cells.run(one, store).state == "done"
        return one

    return make


@pytest.fixture
def entry(store):
    return store.entry("toy", "softmax", "abc")


@pytest.fixture
def full():
    """Stands for any call that a full disk refuses."""

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return refuse


@pytest.fixture
def tools():
    return Tools(compose, lambda config: MODULE, with_data, unavailable=(fake_family.DataMissing,))


COLUMN = {"grid": "g", "select": {"metric": "dev/score"}}
PAGE = {
    "title": "A table",
    "rows": [
        {"label": "plain", "published": "plain", "mapping": "softmax"},
        {"label": "tuned", "published": "tuned", "mapping": "sparsegen_lin", "grids": {"g": {"lam": [-1.0, 0.0, 0.5]}}},
    ],
    "columns": {
        "a": COLUMN | {"label": "A", "show": [{"metric": "test/score", "label": "score"}]},
        "b": COLUMN | {"label": "B", "overrides": ["task.shift=5"], "show": [{"metric": "test/score", "label": "s"}]},
    },
    "profiles": {
        "demo": {"columns": ["a", "b"], "seeds": [1, 2]},
        "paper": {"columns": ["a"], "seeds": [1], "comparable": True},
    },
}


@pytest.fixture
def page():
    return copy.deepcopy(PAGE)


@pytest.fixture
def experiment(page):
    """`experiment(change)`: the experiment of `PAGE` after `change(page)`."""

    def make(change=lambda page: None, profile="demo"):
        change(page)
        return read(page, "fake", profile)

    return make
