"""The model card of an exported cell: the model, its scores, its training data, how to use it and how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from repro.identity import Cell
from repro.protocol import Metric
from repro.tables.statistics import example_error, in_unit, over_examples
from tasks.data import DataError, load_manifest

PIPELINE = {  # the Hub's names
    "seq2seq": "translation", "classification": "text-classification", "vqa": "visual-question-answering",
    "multilabel": "tabular-classification", "fertility": "token-classification",
}  # fmt: skip
USE = {
    "seq2seq": 'model.translate(["..."])[0].output',
    "classification": 'model.classify(["..."])[0].output',
    "vqa": 'model.answer([("image.png", "...?")])[0].output',
    "multilabel": "model.label(features)[0].output",
    "fertility": "model.model(tokens, lengths).argmax(-1)",
}


def card(
    cell: Cell, training: str, trained: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]], told: Mapping[str, Any],
    refused: str | None,
) -> str:  # fmt: skip
    """The text of README.md.

    Args:
        training: the id of the training.
        trained: metrics.json of the training.
        measured: evaluation id -> metrics.json of that evaluation.
            An entry `intervals` has the 95 % intervals of metrics over test examples.
        told: provenance.json; empty if the file does not exist.
        refused: why the folder has no predict.py, or None if it has one.
    """
    config, data = cell.config, cell.prepared.facts
    parameters = f" ({cell.parameters})" if cell.parameters else ""
    name = cell.module.rpartition(".")[2]
    asked = ", ".join(f"{k} {v}" for k, v in cell.origin.items())
    lines = [
        "---", yaml.safe_dump(_hub(cell, measured), sort_keys=False, allow_unicode=True).rstrip(), "---", "",
        f"# {cell.task}, attention by {cell.mapping}{parameters}", "",
        f"Model {config['model']['name']}, seed {cell.seed}, profile {config['profile']['name']}; training {training}.",
        *([f"Trained for: {asked}."] if asked else []), "",
        "## Scores", "", *_table(cell, trained, measured), "",
        "## Data", "", *_data(str(config["data"]["name"]), data, trained), "",
        "## Use", "", *_use(USE[name], refused), "",
        "## How it was made", "", *_made(config, trained, told), "",
    ]  # fmt: skip
    return "\n".join(lines)


def intervals(metrics: Mapping[str, Metric], found: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Any:
    """The 95 % interval over test examples of each metric whose value of every example is stored: name -> [low, high].

    Args:
        found, records: metrics.json and the predictions of an evaluation.
    """
    bounds = {}
    for key, value in found["metrics"].items():
        metric = metrics.get(name := key.rpartition("/")[2])
        stored = f"{name}_statistics" if metric and metric.test == "bleu" else name
        values = [r["sentence"][stored] for r in records if stored in r.get("sentence", ())]
        if metric and metric.test and len(values) > 1:
            each = np.array([values if metric.test == "bleu" else in_unit(values, value)])
            if ends := over_examples(value, example_error(each), metric.bounds):
                bounds[key] = [*ends]
    return bounds


Score = tuple[str, Metric, float, int | None, Sequence[float]]


def _scores(cell: Cell, found: Mapping[str, Any]) -> tuple[str, list[Score]]:
    """How a metrics.json was decoded, and its scores except those on training data: set, metric, value, n, interval."""
    how = ", ".join(f"{k}: {v}" for k, v in (found.get("scoring") or {}).items() if k.startswith("decode") and v)
    sizes = (found.get("facts") or {}).get("sizes") or {}
    scores = []
    for key, value in sorted((found.get("metrics") or {}).items()):
        split, _, name = key.rpartition("/")
        metric = cell.family.METRICS.get(name)
        if split != "train" and metric is not None:
            n, interval = sizes.get(split, sizes.get("test")), (found.get("intervals") or {}).get(key, ())
            scores.append((split, metric, value, n, interval))
    return how, scores


def _hub(cell: Cell, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the Hugging Face Hub reads of a model card: the task, the data, and the scores that have a better side."""
    data, model = cell.config["data"], str(cell.config["model"]["name"])
    task = "summarization" if cell.task == "summarization" else PIPELINE[cell.module.rpartition(".")[2]]
    results = []
    for found in measured.values():
        name = (found.get("facts") or {}).get("name", data["name"])
        (how, scores), metrics = _scores(cell, found), []
        for split, metric, value, n, interval in scores:
            args = {"n": n, "seeds": 1, "interval_95_over_examples": list(interval), "scored_with": how}
            told = {"type": metric.name, "name": f"{split} {metric.name}, {metric.unit}", "value": value}
            metrics += [told | {"args": {k: v for k, v in args.items() if v}}] if metric.better else []
        results.append(
            {"task": {"type": task}, "dataset": {"type": name, "name": name, "split": "test"}, "metrics": metrics}
        )
    found_in = list(dict.fromkeys(result["dataset"]["name"] for result in results)) or [data["name"]]
    about = {"library_name": "sparse-attention", "pipeline_tag": task, "datasets": found_in}
    if languages := [code for side in ("source_lang", "target_lang") if (code := data.get(side))]:
        about["language"] = languages
    about["tags"] = ["sparse-attention", cell.mapping, model]
    if results:
        about["model-index"] = [{"name": f"{cell.task}-{cell.mapping}-{model}", "results": results}]
    return about


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


def _use(code: str, refused: str | None) -> Iterator[str]:
    if refused is None:
        yield from ("```", "pip install -r requirements.txt", "python predict.py < input", "```", "")
        yield "Run this in this folder. `requirements.txt` lists the library's wheel, which is here, and the packages it needs"
        yield "(torch, numpy, safetensors); no other code is needed."
        yield "With the project's code, which also gives n-best lists and attention:"
    else:
        yield f"This model needs its project: {refused}."
    yield from ("", "```python", "from tasks.load import load_cell", "", 'model = load_cell("THIS FOLDER")', code, "```", "")  # fmt: skip
    yield 'From a shell: `python scripts/predict.py "THIS FOLDER" < input`. The input is encoded as in training.'


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


def _made(config: Mapping[str, Any], trained: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    train, optim, seconds = config["train"], config["optim"], trained.get("seconds", 0)
    batches = train["batch_size"] or f"{train['max_tokens']} tokens"
    epochs = f"{train['max_epochs']} epochs at most, batches of {batches}, {optim['name']} at {optim['lr']:g}; "
    fitted = config["task"]["family"] == "multilabel"  # by its own solver, without epochs or batches
    yield f"- {'' if fitted else epochs}{seconds:.0f} s."
    code, packages = told.get("code") or {}, told.get("packages") or {}
    if code:
        yield f"- Code {code['commit']}{' with changes' if code.get('dirty') else ''}, kernels {told.get('kernels', 'unknown')}."
    if packages:
        yield f"- {', '.join(f'{name} {version}' for name, version in packages.items())}; Python {told.get('python', '')}."
    yield "- `config.yaml` has every setting, `evaluations.json` every score."
