"""Measure speed and memory of a training step with the trained weights, and write the page with all results."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.language_model.data import window
from benchmarks.language_model.report import page
from benchmarks.language_model.training import MAPPINGS, Options, build, one_step
from repro.store import provenance


def speeds(folder: Path, text: Tensor, options: Options, turns: int) -> dict[str, float]:
    """Median tokens per second of a training step with the trained weights, one thread, for all mappings in turns."""
    steps: dict[str, Callable[[], None]] = {}
    x, y = window(text, 0, options.length)
    for name in MAPPINGS:
        if (weights := folder / f"{name}_weights.pt").exists():
            model = build(Options(**{**asdict(options), "mapping": name}))
            model.load_state_dict(torch.load(weights, weights_only=True))
            adam = torch.optim.AdamW(model.parameters(), 0.0)
            steps[name] = lambda model=model, adam=adam: one_step(model, adam, x, y)  # type: ignore[misc]
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            before = time.process_time()
            step()
            if turn:  # the first turn is a warm-up
                taken[name].append(time.process_time() - before)
    return {name: options.length / statistics.median(times) for name, times in taken.items()}


def peak(folder: Path, mapping: str) -> float:
    """MiB by which a training step raises the peak resident memory of this process. Call it in a separate process."""
    torch.set_num_threads(1)
    options = Options(mapping)
    model = build(options)
    model.load_state_dict(torch.load(folder / f"{mapping}_weights.pt", weights_only=True))
    text = torch.load(folder / "dev.pt", weights_only=True)
    adam = torch.optim.AdamW(model.parameters(), 0.0)
    one_step(model, adam, *window(text, 0, 64))  # loads the libraries
    x, y = window(text, 0, options.length)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which a process inherits from its parent
    before = _highest()
    one_step(model, adam, x, y)
    return (_highest() - before) / 1024


def _highest() -> int:
    """The peak resident memory of this process in KiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def write(folder: Path, text: Tensor, turns: int, output: Path) -> Path:
    """Measure the rows in ``folder``, and write their page and its JSON into ``output``. Returns the page."""
    rows = {name: json.loads(f.read_text()) for name in MAPPINGS if (f := folder / f"{name}.json").exists()}
    torch.save(text[: Options.length + 1].clone(), folder / "dev.pt")
    again = [sys.executable, "-m", __spec__.name, str(folder)]
    taken = {n: subprocess.run([*again, n], check=True, capture_output=True, text=True).stdout for n in rows}
    result = {
        "rows": rows,
        "tokens_per_second": speeds(folder, text, Options(), turns),
        "peak_mib": {name: float(said) for name, said in taken.items()},
        "torch": torch.__version__,
        "machine": provenance.collect()["machine"]["cpu"],
    }
    (output / "language_model.json").write_text(json.dumps(result, indent=1) + "\n")
    (output / "language_model.md").write_text(page(result))
    return output / "language_model.md"


if __name__ == "__main__":
    print(peak(Path(sys.argv[1]), sys.argv[2]))
