"""The fertility tagger needed by `model.fertility=predicted`; it is a separate cell in the same store."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro import identity, signals
from repro.options import plain
from repro.protocol import Monitor, Prepared
from repro.store import Store
from tasks.cells._training import WEIGHTS
from tasks.config import nodes
from tasks.config.schedules import SCHEDULES
from tasks.data import NullProgress
from tasks.seq2seq import encode, fertility
from tasks.seq2seq.fertility.models.bilstm_tagger import Options
from tasks.seq2seq.fertility.options import Task

MODULE = "tasks.cells.fertility"
POLL_SECONDS = 2.0


def config_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the tagger for a translation configuration.

    It has the same data and encoding, and a fixed seed, so that translations with different seeds share one tagger.
    """
    model, theirs = config["model"], config["model"].get("forward_links", False)
    optim = nodes.Adam(lr=1e-3, **({"clip": 0.0, "betas": [0.9, 0.999]} if theirs else {}))
    tagger = Options(embed_dim=model["tagger_dim"], hidden_dim=model["tagger_dim"], forward_links=theirs)
    return {
        **config,
        "task": {"name": "fertility", "family": "fertility", **plain(Task())},
        "model": {"name": "bilstm_tagger", **plain(tagger)},
        "mapping": {"name": "softmax", "gamma": 1.0, "at": {}, "grid": {}},
        "optim": {"name": "adam", **plain(optim)},
        "schedule": {"name": "fixed", **plain(SCHEDULES["fixed"].Options())},
        "train": plain(nodes.Train(max_epochs=model["tagger_epochs"], batch_size=64, best_metric="accuracy")),
        "decode": {},
        "seed": 1,
    }


def named(config: Mapping[str, Any], prepared: Prepared) -> Prepared:
    """The aligned pairs `prepared`, with the tagger included in their hash, since training depends on the tagger."""
    tagger = identity.Cell(config_of(config), MODULE).with_data(prepared)
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
    cell, store = identity.prepare(identity.Cell(config_of(config), MODULE), NullProgress()), Store(folder.parents[3])

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
    weights = cell.entry(store).folder / WEIGHTS
    pairs = encode.open_encoded(prepared.folder)
    made = fertility.with_tagger(pairs, weights, config["paths"]["data"], NullProgress())
    return replace(prepared, folder=str(made.folder))
