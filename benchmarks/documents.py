"""The cost of self-attention over documents, by mapping and path: time and memory of a training step of `imdb_transformer`.

All reviews of a batch have the same number of words, which are random; the model has its initial weights. The library's path is the one
that `sa.sparse_attention` chooses; the composition computes all weights. All take turns; times are processor time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sparse_attention as sa
from benchmarks import pages
from benchmarks.table import peak_memory
from benchmarks.throughput import Work, turns
from tasks.config import models

MODEL = "imdb_transformer"
PATHS = ("library", "composition")
REVIEWS = 25_000  # in an epoch of IMDB
METRICS = {  # a column: its title and format
    "test/accuracy": ("test accuracy, %", ".1f"),
    "test/attention_zeros": ("share of weights that are zero", ".2f"),
    "test/attention_support": ("words with weight", ".0f"),
}


@dataclass(frozen=True)
class Sizes:
    """Words per review, and reviews per batch."""

    words: int = 400
    batch: int = 16


@dataclass(frozen=True)
class Row:
    """A mapping on a path: the median seconds of a step, the peak memory in MiB, the share of words with weight."""

    mapping: str
    path: str
    seconds: float
    memory: float
    density: float


def training(mapping: str, path: str, sizes: Sizes) -> tuple[Work, Work]:
    """A function that makes one training step, and one that returns the density of the self-attention."""
    torch.manual_seed(1)
    encoded = SimpleNamespace(size=20_000, classes=["negative", "positive"], vectors=None, vector_rows=None)
    model: Any = models.build("classification", {"name": MODEL}, {"name": mapping}, encoded).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    ids = torch.randint(4, encoded.size, (sizes.batch, sizes.words))
    lengths, labels = torch.full((sizes.batch,), sizes.words), torch.arange(sizes.batch) % 2
    chosen = [layer.own.attend for layer in model.layers]
    if path == "composition":
        for layer, attend in zip(model.layers, chosen):
            layer.own.attend = partial(_weighed, attend, None)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model([ids], [lengths])[0], labels).backward()
        optimizer.step()

    def density() -> float:
        found: list[float] = []
        for layer, attend in zip(model.layers, chosen):
            layer.own.attend = partial(_weighed, attend, found)
        with torch.no_grad():
            model([ids], [lengths])
        return statistics.mean(found)

    return step, density


def _weighed(attend: Any, found: list[float] | None, *given: Tensor, **seen: Any) -> tuple[Tensor, Tensor]:
    """`attend` with its weights, whose density is added to `found`, if that is a list."""
    out, weights = attend(*given, **{**seen, "need_weights": True})
    if found is not None:
        found.append(float((weights > 0).float().mean()))
    return out, weights


def step(mapping: str, path: str, sizes: Sizes) -> Work:
    """A training step after the first."""
    made, _ = training(mapping, path, sizes)
    made()
    return made


def names() -> list[str]:
    """Softmax, and the mappings with a fused kernel."""
    x = torch.ones(1, 1, 128, 8)
    return ["softmax", *(m for m in models.row_mappings() if sa.attention.plan(x, x, x, m).path == "fused")]


def measure(sizes: Sizes, count: int, mappings: Sequence[str]) -> list[Row]:
    """Each mapping on both paths; softmax comes first."""
    steps = {(m, path): training(m, path, sizes) for m in mappings for path in PATHS}
    named = {m if path == PATHS[0] else f"{m}, {path}": step for (m, path), (step, _) in steps.items()}
    ratios, seconds = turns(named, count, "cpu")
    times = [seconds / statistics.median(ratios[name]) if name in ratios else seconds for name in named]
    return [Row(*key, t, peak_memory(step, *key, sizes), steps[key][1]()) for key, t in zip(steps, times)]


def described(config: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """A finished training for the table of accuracy."""
    limits, epochs = config["data"].get("limits") or {}, config["train"]["max_epochs"]
    setting = f"{limits.get('train') or 22_500:,}, {epochs}, {config['seed']}"
    return {"mapping": config["mapping"]["name"], "setting": setting, "metrics": metrics}


def markdown(rows: Sequence[Row], cells: Sequence[Mapping[str, Any]], sizes: Sizes, count: int) -> str:
    """The page docs/reference/documents.md; `cells` are finished trainings: their mapping, data and metrics."""
    return pages.page(
        "documents",
        rows=rows,
        cells=cells,
        sizes=sizes,
        turns=count,
        reviews=REVIEWS,
        updates=-(-REVIEWS // sizes.batch),
        base={row.path: row for row in rows if row.mapping == "softmax"},
        best=min((row for row in rows if row.path == PATHS[0]), key=lambda row: row.seconds),
        metrics={name: of for name, of in METRICS.items() if any(name in cell["metrics"] for cell in cells)},
    )
