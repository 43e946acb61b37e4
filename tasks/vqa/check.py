"""What is wrong with a configuration for visual questions, found before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sparse_attention as sa
from tasks.vqa.mcan import ImageReduction, Layer, McanOptions

MODEL = "sa_mcan"
COUNTS = ("max_tokens", "min_answer_count")
ENCODE = (*COUNTS, "vectors", "by_image")


def problems(config: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that is wrong with model, mapping and the task's own options."""
    name, mapping, task = config["model"]["name"], config["mapping"], config["task"]
    if name != MODEL:
        return [
            f"model.name={name!r} answers no questions about images; add model=mcan_small (or model=mcan_large) to the command"
        ]
    found = []
    if sa.spec(mapping["name"]).kind != "simplex":
        found.append(
            f"mapping={mapping['name']} is no simplex mapping; densities over the image are chosen by model.reduction"
        )
    else:
        try:
            options = McanOptions(**{k: v for k, v in config["model"].items() if k != "name"})
            ImageReduction(
                options, sa.make(mapping["name"], **{k: v for k, v in mapping.items() if k != "name"}), (4, 4)
            )
            Layer(options, guided=True)
            if options.layers < 1:
                found.append(f"model.layers={options.layers} must be at least 1")
        except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
            found.append(f"model: {error}")
    if unknown := sorted(set(task["encode"]) - set(ENCODE)):
        found.append(f"task.encode.{', task.encode.'.join(unknown)} is unknown; allowed: {', '.join(ENCODE)}")
    for key, value in (
        *((f"encode.{k}", task["encode"].get(k)) for k in COUNTS),
        ("decode.batch_size", task["decode"]["batch_size"]),
    ):
        if not isinstance(value, int) or value < 1:
            found.append(f"task.{key}={value!r} must be a whole number of at least 1")
    return found
