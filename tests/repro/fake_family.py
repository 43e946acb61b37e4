"""A family without a model: what it measures is a function of its configuration. For tests of the machinery around families."""

import hashlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch

from repro import plan as plans
from repro import protocol
from repro.files import write_json
from repro.protocol import Evaluation, Metric, Prepared, TestSet, Training

protocol.register(__name__)  # in this process: a name in a config.yaml alone would not do
RECIPE = (1, 1)
PRELOAD = ("torch", "safetensors.torch", "sparse_attention", "fake_family")
EVALUATION_KEYS = ("decode", "task.scores", "task.deviations")
METRICS = {
    m.name: m
    for m in (
        Metric("score", "points", 1, 1, 1.0, "fake|v1", "mean"),
        Metric("other", "points", 1, 2, None, "fake|v1", None),
        Metric("loss", "nats", -1, 3, None, "", None),
        Metric("last_gain", "%", 0, 1, None, "", None),
        Metric("best_epoch", "epoch", 0, 0, None, "", None),
        Metric("accuracy", "%", 1, 2, None, "", None),
        Metric("bleu", "BLEU points", 1, 2, 1.0, "sig|v1", "bleu"),
        Metric("rouge1_f", "%", 1, 2, 0.7, "sig", "mean"),
        Metric("attention_zeros", "share", 0, 2, None, "", None),
        Metric("attention_support", "tokens", 0, 1, None, "", "mean"),
    )
}
BASELINES = {"constant": {"score": 1.5, "text": "the same"}}


def planned(experiments, tools, overrides=(), **runtime):
    """The plans of experiments, whose cells have the options `runtime`."""
    outlined = plans.outline(experiments, tools, overrides)
    for cell in (cell for one in outlined for cell in one.slots):
        cell.config["runtime"].update(runtime)
    return plans.prepared(outlined, tools)


class DataMissing(Exception):
    """Stands for the data error of a real family."""


def told(text) -> tuple[str, ...]:
    return (text,) if text else ()


def sha256(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def prepare(config, progress) -> Prepared:
    data = config["data"]
    if data.get("missing"):
        raise DataMissing("it is behind a licence")
    if data.get("trace"):
        with open(data["trace"], "a") as file:
            file.write(f"{os.getpid()} prepared {data['content']}\n")
    facts = {"name": "fake", "provenance": "invented", "sizes": {"train": 5}}
    facts |= {"sha256": "0123456789abcdef", "notes": ["a note"]}
    test = None if data.get("testless") else _test("test", data)
    return Prepared(sha256(data["content"]), data.get("folder", "encoded"), facts, told(data.get("shortfalls")), test)


def prepare_test(config, encoding: Path, progress) -> TestSet:
    return _test(config["data"]["name"], config["data"])


def _test(name: str, data) -> TestSet:
    baselines = {system: {f"{name}/{k}": v for k, v in values.items()} for system, values in BASELINES.items()}
    content, short = sha256(data.get("test", "t")), told(data.get("test_shortfalls"))
    facts = {"name": name, "provenance": "invented", "sizes": {"test": 3}}
    return TestSet(name, content, "encoded", facts, short, baselines)


def value(config) -> float:
    """The score of a configuration: 10 lam + seed / 10 + column."""
    return 10.0 * config["mapping"].get("lam", 0.0) + config["seed"] / 10 + config["task"].get("shift", 0.0)


def train(config, prepared, folder: Path, monitor) -> Training:
    behaviour = config["task"].get("behaviour", "measure")
    if config["mapping"].get("only") not in (None, config["seed"]):
        behaviour = "measure"
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    with (checkpoints / "runs").open("a") as file:
        file.write(f"{os.getpid()}\n")
    monitor.stage("training", 0.5, loss=1.0)
    if behaviour == "raise":
        raise RuntimeError("the cat sat on the keyboard")
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "exit":
        os._exit(3)
    if behaviour == "hang":
        time.sleep(60)
    if behaviour == "look":
        (folder / "device").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))
        time.sleep(config["task"].get("seconds", 0.5))
    if behaviour == "recover" and not (checkpoints / "half").exists():
        (checkpoints / "half").write_text("half way")
        os.kill(os.getpid(), signal.SIGKILL)
    score = value(config)
    gain = 1.0 if behaviour == "learning" else -1.0
    monitor.curve([{"epoch": n + 1.0, "dev/score": score + n * gain} for n in range(3)])
    monitor.note("measured")
    (folder / "weights.safetensors").write_text(f"{score}")
    (folder / "encoding").mkdir(exist_ok=True)
    (folder / "encoding" / "dict.txt").write_text("word 1\n")
    other = {"nothing": {}, "not a number": {"dev/loss": float("nan"), "dev/score": score}}
    return Training(other.get(behaviour, {"dev/score": score, "best_epoch": 1.0}))


def evaluate(config, folder: Path, test: TestSet, monitor) -> Evaluation:
    behaviour = config["task"].get("behaviour")
    (folder / "checkpoints").mkdir(exist_ok=True)  # an imported cell has none
    with (folder / "checkpoints" / "runs").open("a") as file:
        file.write(f"{os.getpid()} {test.name}\n")
    if behaviour == "raise in evaluation" and not (folder / "checkpoints" / "cured").exists():
        raise RuntimeError("the dog ate the test set")
    monitor.stage("decoding", 0.5)
    # Selection must look at dev only: the test score falls as the dev score rises.
    score = 50.0 - float((folder / "weights.safetensors").read_text()) + config["decode"]["beam"] - 1
    rows = [{"index": i, "sentence": {"score": score + (-1) ** i}} for i in range(12)]
    name = "elsewhere" if behaviour == "wrong set" else test.name
    other = float("nan") if behaviour == "half a number" else score / 2
    scores, answers = {f"{name}/score": score, f"{name}/other": other}, {"answers.json": f"[{score}]".encode()}
    return Evaluation(scores, {f"{name}/score": "fake|v2"}, rows, {"p": torch.eye(2)}, answers)


def ran(cell, store) -> list[tuple[str, str]]:
    """(process, "train" or the test set) of each training and evaluation of a cell."""
    lines = cell.entry(store).path("checkpoints/runs").read_text().splitlines()
    return [(process, test or "train") for process, _, test in (line.partition(" ") for line in lines)]


def runs(cell, store) -> list[str]:
    return [what for _, what in ran(cell, store)]


def cured(cell):
    """The same cell without its behaviour, which its identity must not see here."""
    config = {**cell.config, "task": {**cell.config["task"], "behaviour": "measure"}}
    return replace(cell, config=config, known_id=cell.training_id)


def keep(store, cell, training, scores, records=(), arrays=b"", curve="", recipe=RECIPE, **provenance) -> None:
    """A finished cell that nobody trained; None for no `scores`: no evaluation."""
    entry = cell.entry(store)
    for path in (entry, cell.evaluation(store, cell.tests[0])):
        write_json(path.path("provenance.json"), {"code": {"commit": "cafe", "dirty": False}, **provenance})
    facts = {"facts": dict(cell.prepared.facts), "seconds": 9.0}
    write_json(entry.path("metrics.json"), {"metrics": training, "recipe": recipe[0], **facts})
    write_json(entry.path("config.yaml"), {"module": __name__})
    if curve:
        entry.path("curves.csv").write_text(curve)
    entry.finish()
    for test in cell.tests if scores is not None else ():
        level = cell.evaluation(store, test)
        level.write_predictions(records)
        if arrays:
            level.path("attention.safetensors").write_bytes(arrays)
        of_test = {"facts": dict(test.facts), "baselines": dict(test.baselines), "metrics": scores, "recipe": recipe[1]}
        write_json(level.path("metrics.json"), of_test)
        level.finish()
