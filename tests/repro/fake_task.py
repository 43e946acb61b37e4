"""A task without a model: what it measures is a function of its configuration. For tests of the machinery around tasks."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import torch

from sparse_attention.repro.protocol import Prepared, Result

PRELOAD = ("torch", "safetensors.torch", "sparse_attention", "fake_task")
BASELINES = {"constant": {"test/score": 1.5, "test/text": "the same"}}


class DataMissing(Exception):
    """Stands for the data error of a real task."""


def prepare(config, progress) -> Prepared:
    data = config["task"].get("data") or {}
    if data.get("missing"):
        raise DataMissing("it is behind a licence")
    facts = {
        "name": "fake",
        "provenance": "invented",
        "pairs": {"test": 3},
        "sha256": "0123456789abcdef",
        "notes": ["a note"],
    }
    return Prepared(hashlib.sha256(str(data.get("content")).encode()).hexdigest(), facts, BASELINES)


def value(config) -> float:
    """The score of a configuration: 10 lam + seed / 10 + column."""
    mapping, task = config["mapping"], config["task"]
    return 10.0 * mapping.get("lam", 0.0) + config["seed"] / 10 + task.get("shift", 0.0)


def run(config, prepared, folder: Path, monitor) -> Result:
    behaviour = config["task"].get("behaviour", "measure")
    if config["mapping"].get("only") not in (None, config["seed"]):
        behaviour = "measure"
    with folder.joinpath("runs").open("a") as file:
        file.write(f"{os.getpid()}\n")
    monitor.stage("working", 0.5, loss=1.0)
    if behaviour == "raise":
        raise RuntimeError("the cat sat on the keyboard")
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "exit":
        os._exit(3)
    if behaviour == "hang":
        time.sleep(60)
    if behaviour == "slow":
        time.sleep(config["task"].get("seconds", 1.0))
    if behaviour == "recover" and not folder.joinpath("checkpoint").exists():
        folder.joinpath("checkpoint").write_text("half way")
        os.kill(os.getpid(), signal.SIGKILL)
    score = value(config)
    # Selection must look at dev only: the test score falls as the dev score rises.
    metrics = {"dev/score": score, "test/score": 50.0 - score, "test/other": score / 2}
    monitor.curve([{"epoch": 1.0, "dev/score": score}])
    monitor.note("measured")
    rows = [{"set": "test", "index": i, "sentence": {"score": 50.0 - score + (-1) ** i}} for i in range(12)]
    return Result(metrics, {"test/score": "fake|v1"}, rows, {"p": torch.eye(2)})
