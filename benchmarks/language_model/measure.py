"""Measure speed and memory of a training step with the trained weights, and write the page with all results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.language_model.data import window
from benchmarks.language_model.report import page
from benchmarks.language_model.training import MAPPINGS, Options, build, one_step
from benchmarks.table import medians, peak_memory
from repro.store import provenance


def stepping(folder: Path, mapping: str, text: Tensor) -> Callable[[], None]:
    """A call that makes a training step on the first window of a text with the trained weights; libraries are loaded."""
    options = Options(mapping)
    model = build(options)
    model.load_state_dict(torch.load(folder / f"{mapping}_training.pt", weights_only=True)["model"])
    adam = torch.optim.AdamW(model.parameters(), 0.0)
    one_step(model, adam, *window(text, 0, 64))
    x, y = window(text, 0, options.length)
    return lambda: one_step(model, adam, x, y)


def write(folder: Path, text: Tensor, turns: int, output: Path) -> Path:
    """Measure the rows in ``folder``, and write their page and its JSON into ``output``. Returns the page."""
    rows = {name: json.loads(f.read_text()) for name in MAPPINGS if (f := folder / f"{name}.json").exists()}
    text = text[: Options.length + 1].clone()
    taken = medians({name: stepping(folder, name, text) for name in rows}, 0.0, fewest=turns)
    result = {
        "rows": rows,
        "tokens_per_second": {name: Options.length / (nanoseconds / 1e9) for name, nanoseconds in taken.items()},
        "peak_mib": {name: peak_memory(stepping, folder, name, text) for name in rows},
        "torch": torch.__version__,
        "machine": provenance.collect()["machine"]["cpu"],
    }
    (output / "language_model.json").write_text(json.dumps(result, indent=1) + "\n")
    (output / "language_model.md").write_text(page(result))
    return output / "language_model.md"
