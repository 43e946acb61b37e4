"""Train the language model for a fixed processor time.

The text is real, as one long sequence of bytes: package descriptions, each followed by its synopsis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.attention import density
from benchmarks.language_model.model import LanguageModel
from tasks.data import DataError, NullProgress, open_data

MAPPINGS: dict[str, tuple[str, dict[str, float]]] = {"softmax": ("softmax", {}), "sparsemax": ("sparsemax", {})}
MAPPINGS |= {"entmax15": ("entmax", {"alpha": 1.5})}
DATA = "debian_descriptions"


@dataclass
class Options:
    """The model and its training. ``seconds`` is the processor time for training steps, without evaluations."""

    mapping: str = "softmax"
    width: int = 256
    layers: int = 4
    heads: int = 4
    length: int = 4096
    seconds: float = 600.0
    learning_rate: float = 1e-3
    warmup: int = 30
    every: int = 20  # steps between evaluations
    windows: int = 6  # windows of dev per evaluation
    seed: int = 1


def texts(root: str | Path) -> tuple[Tensor, Tensor, str]:
    """Train and dev bytes, uint8 ``[T]`` each, and their provenance.

    Each record becomes its source, a line break, its reference, and two line breaks.

    Raises:
        DataError: the data set is unavailable; it is not replaced by generated text.
    """
    data = open_data({"name": DATA, "fallback": None}, root)
    splits, parts = data.read(NullProgress()), []
    for split in ("train", "dev"):
        text = "".join(f"{pair.source}\n{pair.references[0]}\n\n" for pair in splits[split])
        parts.append(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))
    if min(map(len, parts)) < 2:
        raise DataError(f"{DATA} has no train or dev text", str(root), "python scripts/data.py verify " + DATA)
    return parts[0], parts[1], data.provenance


def window(text: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each ``[1, length]``, starting at position ``start``."""
    piece = text[start : start + length + 1].long().unsqueeze(0)
    return piece[:, :-1], piece[:, 1:]


def build(options: Options) -> LanguageModel:
    torch.manual_seed(options.seed)
    name, params = MAPPINGS[options.mapping]
    return LanguageModel(options.width, options.layers, options.heads, name, **params)


def train(
    options: Options, text: Tensor, dev: Tensor, source: str, folder: Path, say: Callable[[str], None]
) -> tuple[LanguageModel, dict[str, Any]]:
    """Train with AdamW at a constant rate after a warm-up, one window per step.

    All mappings see the same windows in the same order. The state is saved in ``folder`` at every evaluation; a
    training with the same options (``seconds`` may differ) continues from there. The record has ``points`` (step, seconds,
    dev loss in bits per byte) and, by layer, the ``density`` as a share of the pairs that the causal mask leaves.
    """
    model = build(options)
    points: list[tuple[int, float, float]] = []
    adam = torch.optim.AdamW(model.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    draw, spent, step = torch.Generator().manual_seed(options.seed), 0.0, 0
    kept = folder / f"{options.mapping}_training.pt"
    folder.mkdir(parents=True, exist_ok=True)
    if kept.exists() and (state := torch.load(kept, weights_only=True))["options"] == _lasting(options):
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        draw.set_state(state["draw"])
        points, step, spent = [tuple(p) for p in state["points"]], state["step"], state["spent"]
    while True:
        if (step % options.every == 0 or spent >= options.seconds) and step not in [at for at, *_ in points]:
            points.append((step, round(spent, 2), round(evaluate(model, dev, options), 4)))
            say(f"{options.mapping}: step {step}, {spent:.0f} s, {points[-1][2]:.4f} bits a byte")
            state = {"model": model.state_dict(), "adam": adam.state_dict(), "draw": draw.get_state()}
            rest = {"points": points, "step": step, "spent": spent, "options": _lasting(options)}
            torch.save({**state, **rest}, fresh := kept.with_suffix(".new"))
            fresh.replace(kept)
        if spent >= options.seconds:
            break
        before = time.process_time()
        for group in adam.param_groups:
            group["lr"] = options.learning_rate * min(1.0, (step + 1) / options.warmup)
        start = int(torch.randint(len(text) - options.length, (), generator=draw))
        one_step(model, adam, *window(text, start, options.length))
        spent, step = spent + time.process_time() - before, step + 1
    record = {"options": asdict(options), "data": source, "points": points}
    return model, {**record, "density": densities(model, dev, options)}


def _lasting(options: Options) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if name != "seconds"}


def one_step(model: LanguageModel, adam: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    adam.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()


@torch.no_grad()
def evaluate(model: LanguageModel, dev: Tensor, options: Options) -> float:
    """Loss in bits per byte over the first windows of dev."""
    total, n = 0.0, options.length
    windows = min(options.windows, (len(dev) - 1) // n)
    for i in range(windows):
        x, y = window(dev, i * n, n)
        total += F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    return total / windows / math.log(2)


def densities(model: LanguageModel, dev: Tensor, options: Options) -> list[float]:
    """Share of the visible pairs in the support, by layer, on the first window of dev."""
    if options.mapping == "softmax":
        return [1.0] * options.layers
    x, _ = window(dev, 0, options.length)
    alpha = 2.0 if options.mapping == "sparsemax" else 1.5
    found = []
    for q, k, v in model.attended(x):
        first = [t[0].contiguous() for t in (q, k, v)]
        found.append(round(density(first[0], first[1], first[2], alpha, causal=True), 5))
    return found
