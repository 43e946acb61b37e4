"""Cells of translation and summarization: train an encoder-decoder, decode a test set by beam search, score its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparse_attention.repro.protocol import Evaluation, Monitor, Prepared, TestSet, Training
from tasks.cells import _training
from tasks.data import DataSet
from tasks.seq2seq import encode, options
from tasks.seq2seq.baselines import baselines
from tasks.seq2seq.decode import decode
from tasks.seq2seq.metrics import METRICS as MEASURED
from tasks.seq2seq.metrics import evaluation

RECIPE = (2, 1)
METRICS = _training.TRAINING | MEASURED
EVALUATION_KEYS = _training.evaluation_keys(options)
# Imported once for all cells of a run; torch._dynamo is what torch's optimisers import when first used.
PRELOAD = (
    "tasks.fairseq_plugin", "tasks.fairseq_plugin.training", "torch._dynamo", "sacrebleu.metrics",
    "rouge_score.rouge_scorer", "sacremoses",
)  # fmt: skip


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    encoded = encode.encode(data, _training.options_of(options, config, "encode"), config["paths"]["data"], progress)
    sizes, report = {s: len(part) for s, part in encoded.splits.items()}, encoded.report
    left_out = ", ".join(f"{n:,} {split}" for split, n in report["left_out"].items() if n)
    facts = _training.facts(
        data, encoded.sha256, sizes, [f"Left out for their length: {left_out} pairs."] if left_out else [],
        vocabulary=[len(encoded.source_vocab), len(encoded.target_vocab)],
        unknown={k: round(v, 4) for k, v in report["unknown"].items()},
    )  # fmt: skip
    test = _test(config, data, encoded, "test", progress) if _training.has_test(data) else None
    return Prepared(encoded.sha256, str(encoded.folder), facts, data.shortfalls, test)


def prepare_test(config: Mapping[str, Any], encoding: Path, progress: Any, name: str | None = None) -> TestSet:
    data = _training.opened(config, progress)
    return _test(config, data, encode.open_encoded(encoding), name or config["data"]["name"], progress)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    trivial = baselines(encoding, test, config["task"]["scores"], name)
    return _training.test_set(data, test, name, trivial)


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    tokens = len(encode.open_encoded(prepared.folder).splits["train"].target.flat)
    return _training.train(
        "seq2seq", config, prepared, folder, monitor, METRICS, ("tokens", tokens), encode.keep_encoding
    )


def load(config: Mapping[str, Any], folder: Path) -> tuple[Any, encode.Encoded]:
    """The trained model of a cell and its encoding."""
    kept = encode.open_encoded(folder / _training.ENCODING)
    return _training.load_model("seq2seq", config, folder, *kept.sizes), kept


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    decoding = _training.options_of(options, config, "decode")
    outputs = decode(model, data, "test", decoding, lambda i, n: monitor.stage("decoding", i / n))
    return evaluation(data, outputs, config["task"]["scores"], test.name, config["task"]["keep_attention"])
