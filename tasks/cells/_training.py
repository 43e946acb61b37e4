"""Functions shared by the cells of several families: data preparation, gradient training and weights."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
from torch import nn

from repro import convergence
from repro.files import write_atomic
from repro.options import read
from repro.protocol import Metric, Monitor, Prepared, TestSet, Training
from tasks.config import models
from tasks.data import DataSet, open_data
from tasks.training.job import Job, set_tf32

log = logging.getLogger(__name__)
Config = Mapping[str, Any]
Test = Callable[..., TestSet]  # of a family: (config, data, encoding, name, progress) -> test set
WEIGHTS, ENCODING = "weights.safetensors", "encoding"
LATER_KEYS = ("train.class_weights", "train.average")
PRELOAD = ("tasks.fairseq_plugin.parts", "tasks.training.processes")  # imported once for all cells of a run
WARNED = 0.1  # share of unknown tokens above which the footer warns
REMEDY = "Raise encode.vocab_size, lower encode.min_count, {}or add training texts."

_MEASURED = [
    Metric("gnorm", "norm", 0, 2, None, "of the gradient, mean over updates"),
    Metric("best_epoch", "epochs", 0, 0, None, "epoch whose model is kept"),
    Metric("last_gain", "%", 0, 1, None, "by how much the last epoch lowered the dev loss"),
    Metric("learned_alpha", "alpha", 0, 2, None, "of entmax where it is learned, mean over layers and heads"),
    Metric("seconds", "s", 0, 0, None, "time of training, without measuring dev"),
    Metric("decode_seconds", "s", 0, 1, None, "time of decoding dev after the best epoch"),
    Metric("epoch_seconds", "s", 0, 1, None, "time of an epoch of training, mean, without measuring dev"),
    Metric("tokens_per_second", "tokens/s", 0, 0, None, "training tokens a second"),
    Metric("examples_per_second", "examples/s", 0, 0, None, "training examples a second"),
    Metric("questions_per_second", "questions/s", 0, 0, None, "training questions a second"),
]
TRAINING = {metric.name: metric for metric in _MEASURED}


class TrainingMonitor:
    """The monitor of a cell, which is also told once that the attention has collapsed."""

    def __init__(self, monitor: Monitor, config: Config) -> None:
        self.config, self.told = config, False
        self.monitor, self.stage, self.note = monitor, monitor.stage, monitor.note

    def curve(self, history: list[dict[str, float]]) -> None:
        self.monitor.curve(history)
        row = history[-1]
        log.info("epoch %d: %s", row["epoch"], ", ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "epoch"))
        if self.told:
            return
        curves = {key: [one.get(key, math.nan) for one in history] for key in row}
        if first := convergence.collapsed(curves, self.config):
            self.told = True
            where = convergence.one_word(row["dev/attention_support"])
            where = f"WARNING: epoch {row['epoch']:.0f}: all attention is {where} of steps since epoch {first}"
            self.note(f"{where}, so the scores get almost no gradient. {convergence.advice(self.config)}")


def train(
    family: str,
    encode: ModuleType,
    metrics: Mapping[str, Metric],
    unit: str,
    count: Callable[[Any], int],
    config: Config,
    prepared: Prepared,
    folder: Path,
    monitor: Monitor,
) -> Training:
    """Train, or resume training, with the fairseq plugin; write the best weights and the encoding to `folder`.

    Args:
        encode: module with the family's `open_encoded` and `keep_encoding`.
        metrics: metrics of the family, which define whether a higher or lower `train.best_metric` is better.
        unit, count: name of the units whose speed is measured, and how many of them a training split has.
    """
    from tasks.fairseq_plugin.parts import Parts
    from tasks.training import processes

    monitor.stage("data", 0.0)
    set_tf32(config)
    parts, better = Parts(family, dict(config), Path(prepared.folder)), metrics[config["train"]["best_metric"]].better
    model, history, best = processes.train(Job(parts, folder, better), TrainingMonitor(monitor, config))
    encode.keep_encoding(prepared.folder, folder / ENCODING)
    save_weights(model, folder)
    last, seconds = history[-1], sum(row["seconds"] for row in history)
    units = len(history) * count(encode.open_encoded(prepared.folder).splits["train"])
    values = {k: v for k, v in best.items() if k.startswith("dev/")} | {"best_epoch": best["epoch"]}
    values |= {k: v for k, v in last.items() if k.startswith("train/") or k == "dev/last_gain"}
    values |= {"train/seconds": seconds, "train/epoch_seconds": seconds / len(history)}
    values[f"train/{unit}_per_second"] = units / max(seconds, 1e-9)
    return Training({k: float(v) for k, v in values.items()})


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights; shared tensors are written once, and equal weights give equal bytes."""
    state = model.state_dict()
    # save_model is not used because it writes the names of shared tensors in an order that differs between processes
    once = [name for name, _ in (*model.named_parameters(), *model.named_buffers()) if name in state]
    write_atomic(folder / WEIGHTS, safetensors.torch.save({name: state[name].contiguous() for name in once}))


def load(
    family: str, encode: ModuleType, config: Config, folder: Path, sizes: Callable[[Any], Sequence[Any]] | None = None
) -> tuple[nn.Module, Any]:
    """Load the plain torch model of a cell, on the configuration's device and in evaluation mode, and its encoding.

    Args:
        sizes: gives the arguments of the family's models, other than options and mappings, from the encoding;
            None if the only one is the encoding itself.
    """
    set_tf32(config)
    kept = encode.open_encoded(folder / ENCODING)
    model = models.build(family, config["model"], config["mapping"], *(sizes(kept) if sizes else (kept,)))
    safetensors.torch.load_model(model, str(folder / WEIGHTS))
    return model.to(config["runtime"]["device"]).eval(), kept


def opened(config: Config, progress: Any = None) -> DataSet:
    """The data set of a configuration; its records are read later."""
    return open_data(config["data"], config["paths"]["data"], progress)


def options_of(family: ModuleType, config: Config, node: str) -> Any:
    """The node `encode` or `decode` as an instance of the family's options class."""
    return read(getattr(family, node.capitalize()), config[node], node)


def prepared(
    config: Config, data: DataSet, encoded: Any, test: Test, progress: Any, short: Sequence[str] = (), **more: Any
) -> Prepared:
    """The encoded train and dev data of `data`, together with its own test set if it has one.

    Args:
        encoded: the encoded train and dev data.
        short: shortfalls of the encoding, in addition to those of the data.
        more: see `facts`.
    """
    subwords = (config.get("encode") or {}).get("subword") not in (None, "none")
    about = facts(data, encoded, subwords=subwords, **more)
    own = test(config, data, encoded, "test", progress) if data.fingerprint.get("test") is not None else None
    return Prepared(encoded.sha256, str(encoded.folder), about, (*data.shortfalls, *short), own)


def prepare_test(
    encode: ModuleType, test: Test, config: Config, encoding: Path, progress: Any, name: str | None = None
) -> TestSet:
    """The test set that a configuration selects, in the vocabulary of `encoding`; by default it has the data's name."""
    kept = encode.open_encoded(encoding)
    return test(config, opened(config, progress), kept, name or config["data"]["name"], progress)


def test_set(
    data: DataSet, encoded: Any, name: str, baselines: Config, notes: Sequence[str] = (), **more: Any
) -> TestSet:
    """The test set of `data` under the name `name`, given its encoding; for `notes` and `more` see `facts`."""
    about = facts(data, encoded, notes, **more)
    return TestSet(name, encoded.sha256, str(encoded.folder), about, data.shortfalls, baselines)


def facts(
    data: DataSet, encoded: Any, notes: Sequence[str] = (), subwords: bool = False, **more: Any
) -> dict[str, Any]:
    """Facts about encoded data for the footer of a table.

    Args:
        notes: notes on the encoding, in addition to those of the data.
        subwords: whether the texts are split into subwords; if not, the warning recommends this.
        more: further facts. If `unknown` ("split.side" -> share of tokens missing from the vocabulary) has a large
            share, a warning is added.
    """
    unknown = more.get("unknown") or {}
    many = [f"{share:.0%} of the tokens of {place}" for place, share in unknown.items() if share > WARNED]
    remedy = REMEDY.format("" if subwords else "choose encode.subword=sentencepiece for texts, ")
    warning = f"WARNING: the vocabulary lacks {' and '.join(many)}. {remedy}"
    made = {"name": data.name, "provenance": data.provenance, "demo": data.demo, "stands_for": data.stands_for}
    made |= {"notes": [*data.notes, *notes, *([warning] if many else [])]}
    sizes = {split: len(part) for split, part in encoded.splits.items()}
    return made | {"sizes": sizes, "sha256": encoded.sha256} | more
