"""The information about a cell that loggers show: name, group, tags, flat configuration, scores, heat maps, samples."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from repro.cell import Cell, Found
from repro.convergence import read_curves
from repro.files import without_paths
from repro.launch.display import setting
from repro.report.data import clip
from repro.report.heat import MOST_SOURCE, MOST_TARGET, choose
from repro.results.records import ASIDE_NODES, flatten
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
    return {
        **cell.origin,
        **{key.replace(".", "/"): without_paths(value) for key, value in flat.items() if value != {}},
        "cell": cell.training_id,
    }


def scores(found: Found) -> dict[str, float]:
    """Scores as `split/metric` -> value; those of trivial systems as `baseline/<system>/<split>/<metric>` -> value."""
    baselines = {f"baseline/{system}/{k}": v for system, values in found.baselines.items() for k, v in values.items()}
    return {**found.metrics, **{k: v for k, v in baselines.items() if isinstance(v, (int, float))}}


def rows(found: Found) -> list[dict[str, float]]:
    """The stored learning curve, one row per epoch; values missing for an epoch are omitted."""
    columns = read_curves(found.folder)
    table = (dict(zip(columns, values)) for values in zip(*columns.values()))
    return [{k: v for k, v in row.items() if v == v} for row in table]


def heat_maps(split: str, level: Evaluation, records: list[dict[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """(index, PNG) for test examples of medium length whose attention is stored.

    Exact zeros are dotted, since the colour scale would not distinguish them from small weights.
    """
    path = level.path("attention.safetensors")
    if not path.is_file():
        return
    from safetensors import safe_open

    by_index = {int(r["index"]): r for r in records if r.get("source_tokens")}
    with safe_open(path, framework="numpy") as file:
        names = {int(n.rpartition("/")[2]): n for n in file.keys() if n.startswith(f"{split}/")}  # noqa: SIM118 (no mapping)
        for index in choose(names.keys() & by_index.keys(), [by_index]):
            yield index, _draw(file.get_tensor(names[index]), by_index[index])


def _draw(weights: Any, record: dict[str, Any]) -> bytes:
    """Draw attention weights [T, S], or [S] for a classifier; the columns are the source tokens."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = weights.reshape(-1, weights.shape[-1])[:MOST_TARGET, :MOST_SOURCE]  # [T, S]
    steps, tokens = shown.shape
    drawing = Figure(figsize=(1.5 + 0.24 * tokens, 1.2 + 0.24 * steps), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    axes.patch.set(facecolor="white", hatch="....", edgecolor="#bbbbbb")
    axes.imshow(shown, cmap="Blues", vmin=0, vmax=1, alpha=(shown != 0).astype(float), aspect="equal")
    outputs = list(record.get("output_tokens") or [""])
    plain = {"parse_math": False, "fontsize": 7}
    axes.set_xticks(range(tokens), [t[:15] for t in record["source_tokens"][:tokens]], rotation=60, ha="right", **plain)
    axes.set_yticks(range(steps), [t[:15] for t in (outputs + [""] * steps)[:steps]], **plain)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=90, metadata={"Software": None})
    return buffer.getvalue()


def samples(records: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a table of test examples, evenly spaced through the set, with their per-example scores."""
    chosen = [records[i * len(records) // min(SAMPLES, len(records))] for i in range(min(SAMPLES, len(records)))]
    own = dict.fromkeys(k for r in chosen for k, v in (r.get("sentence") or {}).items() if isinstance(v, (int, float)))
    body = [
        [r.get("index"), clip(str(r.get("source", ""))), clip(" | ".join(map(str, r.get("references") or ()))),
         clip(str(r.get("output", r.get("prediction", "")))), *((r.get("sentence") or {}).get(k) for k in own)]
        for r in chosen
    ]  # fmt: skip
    return ["index", "source", "reference", "output", *own], body
