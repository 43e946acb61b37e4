"""The model card of an exported cell: the model, its scores, its training data, how to use it and how it was made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCardData

from repro.files import templates
from repro.identity import Cell
from repro.protocol import Metric
from repro.statistics import in_unit, noise_of, over_examples
from tasks.data import DataError, load_manifest

Scores = Mapping[str, Any]  # the content of a metrics.json


def card(
    cell: Cell, training: str, trained: Scores, measured: Mapping[str, Scores], provenance: Mapping[str, Any]
) -> str:
    """The text of README.md.

    Args:
        training: the id of the training.
        trained: metrics.json of the training.
        measured: evaluation id -> metrics.json of that evaluation.
            An entry `intervals` has the 95 % intervals of metrics over test examples.
        provenance: provenance.json; empty if the file does not exist.
    """
    facts = {"provenance": ""} | dict(cell.prepared.facts)
    name = str(facts.get("name", cell.config["data"]["name"]))
    try:
        manifest: Mapping[str, Any] | None = load_manifest(name)
    except DataError:
        manifest = None
    told = {"cell": cell, "config": cell.config, "training": training, "trained": trained, "provenance": provenance}
    told |= {"hub": _hub(cell, measured).to_yaml(), "scores": _scores(cell, [trained, *measured.values()])}
    told |= {"epochs": "best_epoch" in cell.family.METRICS, "name": name, "facts": facts, "manifest": manifest}
    return templates(Path(__file__).parent).get_template("card.md.jinja").render(told)


def intervals(
    metrics: Mapping[str, Metric], scores: Mapping[str, Any], predictions: Sequence[Mapping[str, Any]]
) -> Any:
    """The 95 % interval over test examples of each metric with stored per-example values: name -> [low, high].

    Args:
        scores, predictions: metrics.json and the predictions of an evaluation.
    """
    bounds = {}
    for key, value in scores["metrics"].items():
        metric = metrics.get(name := key.rpartition("/")[2])
        stored = f"{name}_statistics" if metric and metric.test != "mean" else name
        values = [r["sentence"][stored] for r in predictions if stored in r.get("sentence", ())]
        if metric and metric.test and len(values) > 1:
            each = np.array([in_unit(values, value) if metric.test == "mean" else values])
            if ends := over_examples(value, noise_of(each).whole, metric.bounds):
                bounds[key] = [*ends]
    return bounds


@dataclass(frozen=True)
class Score:
    """A score of a metrics.json: its set, number of examples, interval, and how it was computed and decoded."""

    of: Scores
    split: str
    metric: Metric
    value: float
    n: int | None
    interval: Sequence[float]
    signature: str
    how: str


def _scores(cell: Cell, found: Sequence[Scores]) -> Iterator[Score]:
    """The scores, except those on training data."""
    for one in found:
        how = ", ".join(f"{k}: {v}" for k, v in (one.get("scoring") or {}).items() if k.startswith("decode") and v)
        sizes = (one.get("facts") or {}).get("sizes") or {}
        for key, value in sorted((one.get("metrics") or {}).items()):
            split, _, name = key.rpartition("/")
            metric = cell.family.METRICS.get(name)
            if split != "train" and metric is not None:
                n, interval = sizes.get(split, sizes.get("test")), (one.get("intervals") or {}).get(key, ())
                signature = (one.get("signatures") or {}).get(f"{split}/{name}", metric.signature)
                yield Score(one, split, metric, value, n, interval, signature, how)


def _hub(cell: Cell, measured: Mapping[str, Mapping[str, Any]]) -> ModelCardData:
    """What the Hugging Face Hub reads from a model card: task, data, and the scores that are better when higher or lower."""
    data, model = cell.config["data"], str(cell.config["model"]["name"])
    task = "summarization" if cell.task == "summarization" else cell.family.HUB
    results, names = [], [(one.get("facts") or {}).get("name", data["name"]) for one in measured.values()]
    for one in _scores(cell, [*measured.values()]):
        name, metric = (one.of.get("facts") or {}).get("name", data["name"]), one.metric
        args = {"n": one.n, "seeds": 1, "interval_95_over_examples": list(one.interval), "scored_with": one.how}
        if metric.better:
            more = {"metric_args": {k: v for k, v in args.items() if v}, "dataset_split": "test"}
            more["metric_name"] = f"{one.split} {metric.name}, {metric.unit}"
            results.append(EvalResult(task, name, name, metric.name, one.value, **more))
    languages = [code for side in ("source_lang", "target_lang") if (code := data.get(side))]
    name = f"{cell.task}-{cell.mapping}-{model}" if results else None
    more = {"tags": ["sparse-attention", cell.mapping, model], "eval_results": results or None, "model_name": name}
    more |= {"datasets": list(dict.fromkeys(names)) or [data["name"]], "language": languages or None}
    return ModelCardData(library_name="sparse-attention", pipeline_tag=task, **more)
