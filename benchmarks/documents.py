"""The cost of self-attention over documents, by mapping and path: time and memory of a training step of `imdb_transformer`.

All reviews of a batch have the same number of words, which are random; the model has its initial weights. The library's path is the one
that `sa.sparse_attention` chooses; the composition computes all weights. All take turns; times are processor time.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sparse_attention as sa
from benchmarks.attention import high_water
from benchmarks.table import processor
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


def memory(mapping: str, path: str, sizes: Sizes) -> float:
    """The growth of the peak memory by a training step after the first, in MiB, measured in a separate process."""
    words = [mapping, path, str(sizes.words), str(sizes.batch)]
    done = subprocess.run([sys.executable, "-m", __name__, *words], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _memory_here(mapping: str, path: str, words: str, batch: str) -> float:
    torch.set_num_threads(1)
    step, _ = training(mapping, path, Sizes(int(words), int(batch)))
    step()
    ctypes.CDLL(None).malloc_trim(0)  # otherwise freed memory would be reused without being counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to the current memory
    before = high_water()
    step()
    return high_water() - before


def names() -> list[str]:
    """Softmax, and the mappings with a fused kernel."""
    x = torch.ones(1, 1, 128, 8)
    return ["softmax", *(m for m in models.row_mappings() if sa.fused.plan(x, x, x, m).path == "fused")]


def measure(sizes: Sizes, count: int, mappings: Sequence[str]) -> list[Row]:
    """Each mapping on both paths; softmax comes first."""
    steps = {(m, path): training(m, path, sizes) for m in mappings for path in PATHS}
    named = {m if path == PATHS[0] else f"{m}, {path}": step for (m, path), (step, _) in steps.items()}
    ratios, seconds = turns(named, count, "cpu")
    times = [seconds / statistics.median(ratios[name]) if name in ratios else seconds for name in named]
    return [Row(*key, t, memory(*key, sizes), steps[key][1]()) for key, t in zip(steps, times)]


def described(config: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """A finished training for the table of accuracy."""
    limits, epochs = config["data"].get("limits") or {}, config["train"]["max_epochs"]
    setting = f"{limits.get('train') or 22_500:,}, {epochs}, {config['seed']}"
    return {"mapping": config["mapping"]["name"], "setting": setting, "metrics": metrics}


def markdown(rows: Sequence[Row], cells: Iterable[Mapping[str, Any]], sizes: Sizes, count: int) -> str:
    """The page docs/reference/documents.md; `cells` are finished trainings: their mapping, data and metrics."""
    updates = -(-REVIEWS // sizes.batch)
    base = {row.path: row for row in rows if row.mapping == "softmax"}
    best = min((row for row in rows if row.path == PATHS[0]), key=lambda row: row.seconds)
    lines = [
        "# Self-attention over documents",
        "",
        f"Over reviews of {sizes.words} words, a training step of the classifier `imdb_transformer_small` takes "
        f"{best.seconds / base['library'].seconds:.2f} times as long with {best.mapping} as with softmax, and "
        f"{best.seconds / base['composition'].seconds:.2f} times as long as with softmax when all weights are computed.",
        "",
        f"    python scripts/bench_documents.py --mappings {' '.join(dict.fromkeys(row.mapping for row in rows))} --turns {count} --outputs outputs",
        "",
        "| mapping | path | s/step | to softmax | hours/epoch | peak memory, MiB | words with weight |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = (
            f"{row.seconds:.2f} | {row.seconds / base['library'].seconds:.2f} | {row.seconds * updates / 3600:.2f}"
        )
        lines.append(f"| {row.mapping} | {row.path} | {numbers} | {row.memory:.0f} | {100 * row.density:.1f} % |")
    lines += [
        "",
        f"Seconds of processor time of one step (forward, backward, Adam), batches of {sizes.batch} reviews, one thread, float32; medians of {count} turns in one",
        "interleaved run. *library*: `sa.sparse_attention` chooses (for softmax, torch's attention); *composition*: scores, mapping, product with the values. An epoch is",
        f"extrapolated: {updates} steps of {REVIEWS:,} reviews that all have {sizes.words} words; those of IMDB are shorter. Memory is the growth of the peak resident memory in a step",
        "after the first. Words are random and weights initial; trained attention may be sparser or denser than the last column.",
        f"Machine: {processor()}, torch {torch.__version__}.",
    ]
    if found := list(cells):
        known = {name: of for name, of in METRICS.items() if any(name in cell["metrics"] for cell in found)}
        head = f"| mapping | reviews, epochs, seed | {' | '.join(title for title, _ in known.values())} |"
        lines += ["", "## Accuracy", "", head, "|---" * (2 + len(known)) + "|"]
        for cell in found:
            values = [format(cell["metrics"].get(name, math.nan), of) for name, (_, of) in known.items()]
            lines.append(f"| {cell['mapping']} | {cell['setting']} | {' | '.join(values)} |")
        lines += ["", "One run each, a part of the training reviews and few epochs: no ranking follows from it."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(_memory_here(*sys.argv[1:]))
