"""Cells of the task in fake_task.py."""

from __future__ import annotations

import copy

import pytest

from sparse_attention.repro import cell as cells
from sparse_attention.repro.store import Store

BASE = {
    "task": {"name": "fake", "entry": "fake_task", "recipe": 1, "data": {"content": "a", "root": "r"}},
    "model": {"name": "none", "hidden_dim": 4},
    "optim": {"name": "none", "lr": 1.0},
    "mapping": {"name": "softmax", "lam": 0.0},
    "train": {"max_epochs": 1},
    "seed": 1,
    "runtime": {"device": "cpu", "precision": "fp32", "threads": 1, "workers": 2, "verbose": False, "data_workers": 0},
    "logger": {"name": "csv"},
    "paths": {"outputs": "o", "data": "d"},
    "plugins": [],
    "grid": {},
    "profile": {"name": "demo"},
}


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


@pytest.fixture
def config():
    return lambda **changes: nest({k.replace("__", "."): v for k, v in changes.items()})


@pytest.fixture
def cell(config):
    """`cell(task__behaviour="raise")`: a prepared cell."""
    return lambda **changes: cells.prepare(config(**changes), None)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "outputs")
