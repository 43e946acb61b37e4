"""The information about a cell that loggers show: name, group, tags, flat configuration, scores, heat maps, samples."""

from collections.abc import Iterator
from typing import Any

from repro.cell import Cell, Results
from repro.files import without_paths
from repro.identity import ASIDE_NODES
from repro.launch.display import setting
from repro.protocol import flatten
from repro.report import draw
from repro.report.data import clip
from repro.report.examples import MOST_SOURCE, MOST_TARGET, spaced, stored, typical
from repro.store import Evaluation

SAMPLES = 20  # examples shown from a test set
LONGEST_NAME, LONGEST_TAG = 128, 64  # limits of wandb


def name(cell: Cell) -> str:
    """The name of a run.

    It has the row and column of the table that first requested the cell (or else the mapping with its parameters, and
    the data), and the seed.
    """
    return f"{setting(cell)[: LONGEST_NAME - 20]}, seed {cell.seed}"


def group(cell: Cell) -> str:
    """The sweep or experiment that first requested the cell; for a cell that was run on its own, its task."""
    return (cell.origin.get("sweep") or cell.origin.get("experiment") or cell.task)[:LONGEST_NAME]


def tags(cell: Cell) -> list[str]:
    """The tags of a run: task, data, profile and seed."""
    nodes = ("task", "data", "profile")
    return [*dict.fromkeys(cell.config[node]["name"][:LONGEST_TAG] for node in nodes), f"seed {cell.seed}"]


def config(cell: Cell) -> dict[str, Any]:
    """The flat configuration of a cell, `node/key` -> value.

    Settings about where the cell ran are left out, and paths are reduced to file names. The experiment, sweep, row and
    column are added.
    """
    flat = flatten({k: v for k, v in cell.config.items() if k not in ASIDE_NODES})
    named = {key.replace(".", "/"): without_paths(value) for key, value in flat.items() if value != {}}
    return {**cell.origin, **named, "cell": cell.training_id}


def scores(results: Results) -> dict[str, float]:
    """Scores as `split/metric` -> value; those of trivial systems as `baseline/<system>/<split>/<metric>` -> value."""
    baselines = {f"baseline/{system}/{k}": v for system, values in results.baselines.items() for k, v in values.items()}
    return {**results.metrics, **{k: v for k, v in baselines.items() if isinstance(v, (int, float))}}


def rows(results: Results) -> list[dict[str, float]]:
    """The stored learning curve, one row per epoch; values missing for an epoch are omitted."""
    columns = results.curves
    table = (dict(zip(columns, values)) for values in zip(*columns.values()))
    return [{k: v for k, v in row.items() if v == v} for row in table]


def heat_maps(split: str, level: Evaluation, records: list[dict[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """(index, PNG) for test examples of medium length whose attention is stored; columns are the source tokens."""
    arrays, by_index = level.attention(), {int(r["index"]): r for r in records}
    for index in typical(stored(arrays, by_index, split), [by_index]):
        weights, record = arrays[f"{split}/{index}"], by_index[index]
        shown = weights.reshape(-1, weights.shape[-1])[:MOST_TARGET, :MOST_SOURCE]  # [T, S]; a classifier's T is 1
        with draw.heat_figure(shown, record.get("output_tokens") or [""], record["source_tokens"]) as figure:
            yield index, draw.rendered(figure, "png", dpi=90)


def samples(records: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a table of test examples, evenly spaced through the set, with their per-example scores."""
    chosen = spaced(records, SAMPLES)
    own = dict.fromkeys(k for r in chosen for k, v in (r.get("sentence") or {}).items() if isinstance(v, (int, float)))
    body = []
    for r in chosen:
        references, scores = " | ".join(map(str, r.get("references") or ())), r.get("sentence") or {}
        texts = (str(r.get("source", "")), references, str(r.get("output", r.get("prediction", ""))))
        body.append([r.get("index"), *map(clip, texts), *map(scores.get, own)])
    return ["index", "source", "reference", "output", *own], body
