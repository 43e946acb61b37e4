"""What is wrong with a multilabel configuration, found before any fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sparse_attention as sa
from tasks.multilabel.model import Output
from tasks.multilabel.selection import Grid

DATA = ("name", "root", "mirror", "path", "setting", "value", "length", "classes", "features", "sizes", "seed")


def output_of(config: Mapping[str, Any]) -> Output:
    """Mapping and loss. Raises ValueError when they do not go together."""
    task, mapping = config["task"], config["mapping"]
    params = {k: v for k, v in mapping.items() if k != "name"}
    return Output(mapping["name"], params, task["loss"], task["half_pairs"], task["corrected"])


def grid_of(config: Mapping[str, Any]) -> Grid:
    """What is chosen on dev."""
    tune = config["task"]["tune"]
    parameters = (tune["parameters"] or {}).get(config["mapping"]["name"]) or {}
    return Grid(tune["penalties"], tune["thresholds"], parameters)


def problems(config: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that is wrong with mapping, loss, grid and data options."""
    task, found = config["task"], []
    try:
        output = output_of(config)
    except ValueError as error:
        return [str(error)]
    tune, data = task["tune"], task["data"]
    grids = {"penalties": tune["penalties"], "thresholds": tune["thresholds"], **grid_of(config).parameters}
    for key, values in grids.items():
        if not isinstance(values, list) or not values or not all(_is_number(v) for v in values):
            found.append(f"task.tune: {key}={values!r} must be a list of at least one value, all numbers")
    if not found:
        penalties = tune["penalties"]
        if min(penalties) <= 0 or penalties != sorted(penalties, reverse=True):
            found.append(
                f"task.tune.penalties={penalties} must be positive and go from large to small: each fit starts from the one before"
            )
        for point in grid_of(config).outputs(output):
            try:
                sa.make(point.mapping, **point.params)
            except (ValueError, TypeError) as error:
                found.append(f"task.tune.parameters.{point.mapping}: {error}")
    if not isinstance(tune["folds"], int) or not 2 <= tune["folds"] <= 50:
        found.append(f"task.tune.folds={tune['folds']!r} must be a whole number between 2 and 50")
    if unknown := sorted(set(data) - set(DATA)):
        found.append(f"task.data.{', task.data.'.join(unknown)} is unknown; allowed: {', '.join(DATA)}")
    counts = {k: data[k] for k in ("length", "classes", "features")} | {
        f"sizes.{k}": v for k, v in data["sizes"].items()
    }
    if data["setting"] != "label_range":
        counts["value"] = data["value"]
    for key, value in counts.items():
        if not isinstance(value, int) or value < 1:
            found.append(f"task.data.{key}={value!r} must be a whole number of at least 1")
    if not isinstance(data["value"], int):
        found.append(f"task.data.value={data['value']!r} must be a whole number")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
