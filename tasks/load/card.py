"""The model card of an exported cell: the model, its scores, its training data, how to use it and how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repro.identity import Cell
from tasks.data import DataError, load_manifest

USE = {
    "seq2seq": 'model.translate(["..."])[0].output',
    "classification": 'model.classify(["..."])[0].output',
    "vqa": 'model.answer([("image.png", "...?")])[0].output',
    "multilabel": "model.label(features)[0].output",
    "fertility": "model.model(tokens, lengths).argmax(-1)",
}


def card(
    cell: Cell, training: str, trained: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]], told: Mapping[str, Any]
) -> str:  # fmt: skip
    """The text of README.md.

    Args:
        training: the id of the training.
        trained: metrics.json of the training.
        measured: evaluation id -> metrics.json of that evaluation.
        told: provenance.json; empty if the file does not exist.
    """
    config, data = cell.config, cell.prepared.facts
    parameters = f" ({cell.parameters})" if cell.parameters else ""
    name = cell.module.rpartition(".")[2]
    asked = ", ".join(f"{k} {v}" for k, v in cell.origin.items())
    lines = [
        f"# {cell.task}, attention by {cell.mapping}{parameters}", "",
        f"Model {config['model']['name']}, seed {cell.seed}, profile {config['profile']['name']}; training {training}.",
        *([f"Trained for: {asked}."] if asked else []), "",
        "## Scores", "", *_table(cell, trained, measured), "",
        "## Data", "", *_data(str(config["data"]["name"]), data, trained), "",
        "## Use", "", "```python", "from tasks.load import load_cell", "", 'model = load_cell("THIS FOLDER")', USE[name], "```", "",
        "From a shell: `python scripts/predict.py \"THIS FOLDER\" < input`. The input is encoded as in training.", "",
        "## How it was made", "", *_made(config, trained, told), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(cell: Cell, trained: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| set | metric | value | computed as | scored with |"
    yield "|---|---|---|---|---|"
    for found in [trained, *measured.values()]:
        how = ", ".join(f"{k}: {v}" for k, v in (found.get("scoring") or {}).items() if k.startswith("decode") and v)
        for key, value in sorted((found.get("metrics") or {}).items()):
            split, _, name = key.rpartition("/")
            metric = cell.family.METRICS.get(name)
            if split == "train" or metric is None:
                continue
            signature = (found.get("signatures") or {}).get(key, metric.signature).replace("|", "\\|")
            yield f"| {split} | {name} | {value:.{metric.decimals}f} {metric.unit} | {signature} | {how} |"


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
