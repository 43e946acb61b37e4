"""Translation and summarization cells: train an encoder-decoder, decode a test set by beam search, score its output.

The fertility tagger that `model.fertility=predicted` needs is a separate cell in the same store (`tagged`).
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro import identity, signals
from repro.options import plain
from repro.protocol import Evaluation, Monitor, Prepared, TestSet, Training, metrics_of
from repro.store import Store
from tasks.cells import _training
from tasks.config import nodes
from tasks.data import DataError, DataSet, NullProgress, is_own
from tasks.seq2seq import encode, fertility, options
from tasks.seq2seq.alignment import alignment_metrics
from tasks.seq2seq.baselines import baselines
from tasks.seq2seq.fertility.models import bilstm_tagger
from tasks.seq2seq.fertility.options import Task
from tasks.seq2seq.metrics import MEASURED, ceiling, evaluation, references, score
from tasks.seq2seq.predict import predict as predict
from tasks.seq2seq.repetition import repetition
from tasks.seq2seq.search import decode

TAGGER, POLL_SECONDS = "tasks.cells.fertility", 2.0
GREEDY = "greedy search, outputs no longer than the longest dev reference"  # what `dev_outputs` does
RECIPE = (2, 1)
RECIPES = {"transformer": (3, 1)}  # its attention uses sa.sparse_attention
METRICS = _training.TRAINING | metrics_of(MEASURED)
EVALUATION_KEYS = ("decode", "task.scores", "task.keep_attention", "task.deviations")
LATER_KEYS = ("decode.coverage_penalty", "model.forward_links", "model.coverage_loss", "model.output")
LATER_KEYS += _training.LATER_KEYS
HUB, WAYS, EXAMPLE = "translation", ("translate", "summarize"), 'model.translate(["..."])[0].output'
NO_GRAPH = "finds its output by beam search, which runs the model once per word and is not one graph"
PRELOAD = (*_training.PRELOAD, "sacrebleu.metrics", "tasks.seq2seq.rouge", "sacremoses")


def unread(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that make no difference to the cells of a configuration."""
    return () if fertility.needed(config) else ("model.forward_links",)


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    settings, root = _training.options_of(options, config, "encode"), config["paths"]["data"]
    encoded = encode.encode(data, settings, root, progress)
    report = encoded.report
    if fertility.needed(config):  # alignments used only by scores do not change the id
        encoded = fertility.aligned(encoded, root, progress, fertility.forward_links(config))
    left_out = ", ".join(f"{n:,} {split}" for split, n in report["left_out"].items() if n)
    notes = [f"Left out for their length: {left_out} pairs."] if left_out else []
    if (by := config["train"]["best_metric"]) in options.SELECTING:
        dev = len(encoded.splits["dev"])
        notes.append(f"The best epoch has the highest dev {by} ({GREEDY}); each epoch decodes the {dev:,} dev pairs.")
    more = {"vocabulary": [len(encoded.source_vocab), len(encoded.target_vocab)]}
    more |= {"unknown": {k: round(v, 4) for k, v in report["unknown"].items()}}
    prepared = _training.prepared(config, data, encoded, _test, progress, notes=notes, **more)
    kind = config["model"].get("fertility")
    if kind == "actual":  # they were 0 for some words before
        return replace(prepared, sha256=identity.digest(prepared.sha256, "at least 1"))
    return named(config, prepared) if kind == "predicted" else prepared


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    root = config["paths"]["data"]
    if fertility.needed(config) or "repetition" in config["task"]["scores"]:
        encoding = fertility.aligned(encoding, root, progress, fertility.forward_links(config))
    theirs = [data.about.get(f"{side}_lang") for side in encode.SIDES]
    ours = [encoding.languages.get(side) for side in encode.SIDES]
    if any(a and b and a != b for a, b in zip(theirs, ours)):
        theirs, ours = ("-".join(map(str, languages)) for languages in (theirs, ours))
        what = f"data={data.name} is {theirs}, but the model translates {ours}"
        raise DataError(what, data.provenance, "set data.source_lang and data.target_lang")
    test = encode.encode_test(data, encoding.folder, root, progress)
    trivial = baselines(encoding, test, config["task"]["scores"], name)
    most = ceiling(test, config["task"]["scores"]) if is_own(config["data"]) else ""
    return _training.test_set(data, test, name, trivial, [most] if most else [])


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    if config["model"].get("fertility") == "predicted":
        prepared = tagged(config, prepared, folder, monitor)
    found, by = _trained(config, prepared, folder, monitor), config["train"]["best_metric"]
    if sparse := config["model"].get("output"):
        kind = f"{sparse} loss in nats per token given the true history"
        found.signatures |= {"dev/loss": kind, "train/loss": kind}
    if by in options.SELECTING:
        data = encode.open_encoded(prepared.folder)
        golden = references(data, "dev")
        how = score([by], [refs[0] for refs in golden], golden, data.options, data.languages["target"])[1][by]
        found.signatures[f"dev/{by}"] = f"{how}|{GREEDY}"
    return found


_trained = partial(_training.train, "seq2seq", encode, METRICS, "tokens", lambda split: len(split.target.flat))
prepare_test = partial(_training.prepare_test, encode, _test)
load = partial(_training.load, "seq2seq", encode, sizes=lambda kept: kept.sizes)


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    decoding = _training.options_of(options, config, "decode")
    inputs = None
    if config["model"].get("fertility") == "actual":
        counted = fertility.counts(fertility.aligner_of(data), data.splits["test"], fertility.forward_links(config))
        inputs = {"fertility": fertility.actual(counted)}
    found = decode(model, data, decoding, partial(monitor.stage, "decoding"), inputs)
    outputs = [best for (best,) in found]
    measured = evaluation(data, outputs, config["task"]["scores"], test.name, config["task"]["keep_attention"])
    if hasattr(model, "densities"):
        for h in outputs[: config["task"]["keep_attention"]]:
            measured.attention |= {f"{key}/{h.index}": value for key, value in model.densities(h.attention).items()}
    further: dict[str, float] = {}
    if data.splits["test"].gold is not None:
        further |= alignment_metrics(model, data, decoding.batch_size, partial(monitor.stage, "aligning"))
    if "repetition" in config["task"]["scores"]:
        further |= repetition(data, outputs, fertility.aligner_of(data))
    measured.metrics |= {f"{test.name}/{name}": value for name, value in further.items()}
    return measured


def tagger_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the tagger for a translation configuration.

    It has the same data and encoding, and a fixed seed, so that translations with different seeds share one tagger.
    """
    model, theirs = config["model"], config["model"].get("forward_links", False)
    optim = nodes.Adam(lr=1e-3, **({"clip": 0.0, "betas": [0.9, 0.999]} if theirs else {}))
    tagger = bilstm_tagger.Options(embed_dim=model["tagger_dim"], hidden_dim=model["tagger_dim"], forward_links=theirs)
    return {
        **config,
        "task": {"name": "fertility", "family": "fertility", **plain(Task())},
        "model": {"name": "bilstm_tagger", **plain(tagger)},
        "mapping": {"name": "softmax", "gamma": 1.0, "at": {}, "grid": {}},
        "optim": {"name": "adam", **plain(optim)},
        "schedule": {"name": "fixed"},
        "train": plain(nodes.Train(max_epochs=model["tagger_epochs"], batch_size=64, best_metric="accuracy")),
        "decode": {},
        "seed": 1,
    }


def named(config: Mapping[str, Any], prepared: Prepared) -> Prepared:
    """The aligned pairs `prepared`, with the tagger included in their hash, since training depends on the tagger."""
    tagger = identity.Cell(tagger_of(config), TAGGER).with_data(prepared)
    return replace(prepared, sha256=identity.digest(prepared.sha256, tagger.training_id))


def tagged(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Prepared:
    """`prepared` with the trained tagger added to its pairs.

    If the tagger is not in the store, it is trained and evaluated first.

    Args:
        folder: folder of the translation's cell; the tagger is kept in the same store.

    Raises:
        RuntimeError: the tagger's cell failed.
        Stopped: the process was asked to stop.
    """
    cell, store = identity.prepare(identity.Cell(tagger_of(config), TAGGER), NullProgress()), Store(folder.parents[3])

    def forward(what: str, *facts: Any) -> None:
        monitor.note(*facts) if what == "note" else monitor.stage(f"tagger, {facts[0]}", 0.0)

    while True:
        outcome = cells.run(cell, store, forward=forward)
        signals.obey()
        if outcome.state == "failed":
            raise RuntimeError(f"the tagger of fertilities, {cell.entry(store).folder}, failed: {outcome.reason}")
        if outcome.state != "busy":
            break
        time.sleep(POLL_SECONDS)  # another process is training it
    weights = cell.entry(store).folder / _training.WEIGHTS
    pairs = encode.open_encoded(prepared.folder)
    made = fertility.with_tagger(pairs, weights, config["paths"]["data"], NullProgress())
    return replace(prepared, folder=str(made.folder))
