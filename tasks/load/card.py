"""The model card of an exported cell: the model, its scores, its training data, how to use it and how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCardData

from repro.identity import Cell
from repro.protocol import Metric
from repro.tables.statistics import example_error, in_unit, over_examples
from tasks.data import DataError, load_manifest

Scores = Mapping[str, Any]  # the content of a metrics.json
# The Hub's names.
PIPELINE = {"seq2seq": "translation", "classification": "text-classification", "vqa": "visual-question-answering"}
PIPELINE |= {"multilabel": "tabular-classification", "fertility": "token-classification"}
USE = {
    "seq2seq": 'model.translate(["..."])[0].output',
    "classification": 'model.classify(["..."])[0].output',
    "vqa": 'model.answer([("image.png", "...?")])[0].output',
    "multilabel": "model.label(features)[0].output",
    "fertility": "model.model(tokens, lengths).argmax(-1)",
}


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
    config, data = cell.config, cell.prepared.facts
    parameters = f" ({cell.parameters})" if cell.parameters else ""
    name = cell.module.rpartition(".")[2]
    asked = ", ".join(f"{k} {v}" for k, v in cell.origin.items())
    model = f"Model {config['model']['name']}, seed {cell.seed}, profile {config['profile']['name']}"
    head = f"# {cell.task}, attention by {cell.mapping}{parameters}"
    lines = ["---", _hub(cell, measured).to_yaml(), "---", "", head, "", f"{model}; training {training}."]
    lines += [*([f"Trained for: {asked}."] if asked else []), ""]
    lines += ["## Scores", "", *_table(cell, trained, measured), ""]
    lines += ["## Data", "", *_data(str(config["data"]["name"]), data, trained), ""]
    lines += ["## Use", "", *_use(name), "", "## How it was made", "", *_made(config, trained, provenance), ""]
    return "\n".join(lines)


def intervals(
    metrics: Mapping[str, Metric], scores: Mapping[str, Any], predictions: Sequence[Mapping[str, Any]]
) -> Any:
    """The 95 % interval over test examples of each metric whose value of every example is stored: name -> [low, high].

    Args:
        scores, predictions: metrics.json and the predictions of an evaluation.
    """
    bounds = {}
    for key, value in scores["metrics"].items():
        metric = metrics.get(name := key.rpartition("/")[2])
        stored = f"{name}_statistics" if metric and metric.test == "bleu" else name
        values = [r["sentence"][stored] for r in predictions if stored in r.get("sentence", ())]
        if metric and metric.test and len(values) > 1:
            each = np.array([values if metric.test == "bleu" else in_unit(values, value)])
            if ends := over_examples(value, example_error(each), metric.bounds):
                bounds[key] = [*ends]
    return bounds


Score = tuple[str, Metric, float, int | None, Sequence[float]]


def _scores(cell: Cell, evaluation: Mapping[str, Any]) -> tuple[str, list[Score]]:
    """How a metrics.json was decoded, and its scores except those on training data: set, metric, value, n, interval."""
    how = ", ".join(f"{k}: {v}" for k, v in (evaluation.get("scoring") or {}).items() if k.startswith("decode") and v)
    sizes = (evaluation.get("facts") or {}).get("sizes") or {}
    scores = []
    for key, value in sorted((evaluation.get("metrics") or {}).items()):
        split, _, name = key.rpartition("/")
        metric = cell.family.METRICS.get(name)
        if split != "train" and metric is not None:
            n, interval = sizes.get(split, sizes.get("test")), (evaluation.get("intervals") or {}).get(key, ())
            scores.append((split, metric, value, n, interval))
    return how, scores


def _hub(cell: Cell, measured: Mapping[str, Mapping[str, Any]]) -> ModelCardData:
    """What the Hugging Face Hub reads of a model card: the task, the data, and the scores that have a better side."""
    data, model = cell.config["data"], str(cell.config["model"]["name"])
    task = "summarization" if cell.task == "summarization" else PIPELINE[cell.module.rpartition(".")[2]]
    results, names = [], []
    for found in measured.values():
        names.append(name := (found.get("facts") or {}).get("name", data["name"]))
        how, scores = _scores(cell, found)
        for split, metric, value, n, interval in scores:
            args = {"n": n, "seeds": 1, "interval_95_over_examples": list(interval), "scored_with": how}
            if metric.better:
                shown = f"{split} {metric.name}, {metric.unit}"
                more = {"metric_name": shown, "metric_args": {k: v for k, v in args.items() if v}}
                results.append(EvalResult(task, name, name, metric.name, value, dataset_split="test", **more))
    languages = [code for side in ("source_lang", "target_lang") if (code := data.get(side))]
    return ModelCardData(
        library_name="sparse-attention",
        pipeline_tag=task,
        datasets=list(dict.fromkeys(names)) or [data["name"]],
        language=languages or None,
        tags=["sparse-attention", cell.mapping, model],
        eval_results=results or None,
        model_name=f"{cell.task}-{cell.mapping}-{model}" if results else None,
    )


def _table(cell: Cell, trained: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| set | metric | value | 95 % interval over examples | n | computed as | scored with |"
    yield "|---|---|---|---|---|---|---|"
    for found in [trained, *measured.values()]:
        how, scores = _scores(cell, found)
        for split, metric, value, n, interval in scores:
            signatures = found.get("signatures") or {}
            signature = signatures.get(f"{split}/{metric.name}", metric.signature).replace("|", "\\|")
            shown = f"{value:.{metric.decimals}f} {metric.unit}"
            bounds = ", ".join(f"{bound:.{metric.decimals}f}" for bound in interval)
            yield f"| {split} | {metric.name} | {shown} | {bounds} | {n or ''} | {signature} | {how} |"


def _use(name: str) -> Iterator[str]:
    yield "From a checkout of sparse-attention, whose docs/guides/predict.md names the packages that this needs:"
    if name != "fertility":  # which only a translation model uses
        yield from ("", "```", 'python scripts/predict.py "THIS FOLDER" < input', "```", "")
        yield "The input has one text (or whatever the model reads) per line, and is encoded as in training. In Python:"
    code = ("from tasks.load import load_cell", "", 'model = load_cell("THIS FOLDER")', USE[name])
    yield from ("", "```python", *code, "```")


def _data(name: str, facts: Mapping[str, Any], trained: Mapping[str, Any]) -> Iterator[str]:
    sizes = ", ".join(f"{n:,} {split}" for split, n in (facts.get("sizes") or {}).items())
    stands = f", in place of {facts['stands_for']}" if facts.get("stands_for") else ""
    yield f"- {facts.get('name', name)}{stands}: {sizes}. {facts.get('provenance', '')}"
    try:
        page = load_manifest(str(facts.get("name", name)))
        yield f"- Licence of the data: {page.get('licence', 'not stated')}. Source: {page.get('source', 'not stated')}."
    except DataError:
        yield "- Licence of the data: unknown, these are files of a user; state it before you share the model."
    yield f"- Content as the model sees it: sha256 {trained.get('data_sha256', 'unknown')}."
    yield from (f"- {note}" for note in facts.get("notes") or ())
    shortfalls: Sequence[str] = trained.get("shortfalls") or ()
    yield from (f"- Not a paper's data in full: {why}." for why in shortfalls)


def _made(config: Mapping[str, Any], trained: Mapping[str, Any], provenance: Mapping[str, Any]) -> Iterator[str]:
    train, optim, seconds = config["train"], config["optim"], trained.get("seconds", 0)
    batches = train["batch_size"] or f"{train['max_tokens']} tokens"
    epochs = f"{train['max_epochs']} epochs at most, batches of {batches}, {optim['name']} at {optim['lr']:g}; "
    fitted = config["task"]["family"] == "multilabel"  # by its own solver, without epochs or batches
    yield f"- {'' if fitted else epochs}{seconds:.0f} s."
    code, packages = provenance.get("code") or {}, provenance.get("packages") or {}
    if code:
        yield f"- Code {code['commit']}{' with changes' if code.get('dirty') else ''}, kernels {provenance.get('kernels', 'unknown')}."
    if packages:
        yield f"- {', '.join(f'{name} {version}' for name, version in packages.items())}; Python {provenance.get('python', '')}."
    yield "- `config.yaml` has every setting, `evaluations.json` every score."
