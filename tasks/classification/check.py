"""What is wrong with a classification task's configuration, found before any data is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sparse_attention as sa
from sparse_attention.mappings.continuous import GaussianBasis1d
from sparse_attention.mappings.continuous.moments import MOMENT_MATCHES, POSITIONS

MODELS = {"snli": "sa_snli", "imdb": "sa_imdb"}
PRESETS = {"snli": "snli_attentive", "imdb": "imdb_bilstm"}
RANGES = {  # smallest and largest value
    "dropout": (0, 1), "word_dropout": (0, 1), "l2": (0, math.inf), "start_variance": (0, math.inf), "embed_range": (0, math.inf),
    "embed_dim": (1, math.inf), "hidden_dim": (1, math.inf), "score_dim": (1, math.inf),
}  # fmt: skip


def problems(config: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that is wrong with model and mapping."""
    task, model = config["task"]["name"], config["model"]
    if model["name"] != MODELS[task]:
        return [
            f"model.name={model['name']!r} is not for task={task}; add model={PRESETS[task]} optim=adam to the command"
        ]
    found = []
    for key, (low, high) in RANGES.items():
        value = model.get(key, low)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            found.append(f"model.{key}={value!r} must be a number between {low} and {high}")
    if not isinstance(size := config["train"]["batch_size_valid"], int) or size < 1:
        found.append(f"train.batch_size_valid={size!r} must be a whole number of at least 1")
    if not isinstance(keep := config["task"]["keep_attention"], int) or keep < 0:
        found.append(f"task.keep_attention={keep!r} must be a whole number of at least 0")
    density = sa.spec(config["mapping"]["name"]).kind == "continuous"
    if task == "snli" and density:
        found.append(f"mapping={config['mapping']['name']} is a density; the entailment model takes a simplex mapping")
    return found + (_of_documents(model, density) if task == "imdb" else [])


def _of_documents(model: Mapping[str, Any], density: bool) -> list[str]:
    found = []
    simplex = sa.names(kind="simplex")
    if model["discrete"] not in ("none", *simplex):
        found.append(f"model.discrete={model['discrete']!r} is no simplex mapping; allowed: none, {', '.join(simplex)}")
    elif model["discrete"] != "none" and not density:
        found.append(f"model.discrete={model['discrete']} goes with mapping=continuous_* only")
    try:
        GaussianBasis1d.linspaced(model["rbf"], widths=tuple(float(w) for w in str(model["widths"]).split(",")))
    except (ValueError, TypeError) as error:
        found.append(f"model.rbf={model['rbf']}, model.widths={model['widths']}: {error}")
    for key, allowed in (("moment_match", MOMENT_MATCHES), ("positions", POSITIONS)):
        if model[key] not in allowed:
            found.append(f"model.{key}={model[key]!r} is unknown; allowed: {', '.join(allowed)}")
    if not isinstance(model["ridge"], (int, float)) or not model["ridge"] > 0:
        found.append(f"model.ridge={model['ridge']!r} must be a positive number")
    return found
