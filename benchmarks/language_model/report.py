"""The page of results: loss after equal steps and after equal time, and density by layer; speed and memory of a training step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import pages
from benchmarks.language_model.training import MAPPINGS, Options, build, one_step, window
from benchmarks.table import medians, peak_memory
from repro.store import provenance

Point = tuple[int, float, float]  # step, seconds, dev loss in bits per byte


def at_step(points: list[Point], step: int) -> float:
    """The loss at ``step``, which must be a step at which the model was evaluated."""
    return next(loss for at, _, loss in points if at == step)


def at_time(points: list[Point], seconds: float) -> float:
    """The loss after ``seconds``, interpolated linearly between the evaluations before and after."""
    return float(np.interp(seconds, [t for _, t, _ in points], [loss for *_, loss in points]))


def steps_by(points: list[Point], seconds: float) -> int:
    """Approximate number of steps taken in ``seconds``, assuming a constant speed between two evaluations."""
    return round(np.interp(seconds, [t for _, t, _ in points], [step for step, *_ in points]))


def page(result: dict[str, Any]) -> str:
    """The measurements of ``scripts/bench.py language_model`` as a Markdown page."""
    rows = result["rows"]
    first, last = next(iter(rows.values())), min(row["points"][-1][1] for row in rows.values())
    shown = {"rows": rows, "options": first["options"], "data": first["data"], "machine": result["machine"]}
    shown |= {"speeds": result["tokens_per_second"], "peaks": result["peak_mib"], "torch": result["torch"]}
    steps = sorted(set.intersection(*({step for step, *_ in row["points"]} for row in rows.values())))  # of all rows
    by = {"at_step": at_step, "at_time": at_time, "steps_by": steps_by}
    return pages.page("language_model", **shown, **by, steps=steps, seconds=last)


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
