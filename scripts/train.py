"""Train and score one cell; with -m, sweep. `python scripts/train.py task=toy mapping=sparsemax`, `--help` for the choices."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # runtime.threads decides, before torch is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hydra
from omegaconf import DictConfig

FAILED: list[str] = []


@hydra.main(version_base="1.3", config_path="../configs", config_name="main")
def main(config: DictConfig) -> float:
    """Run the cell and return its dev score (for Hydra sweepers); NaN when it failed, while a sweep goes on."""
    import torch

    from sparse_attention.repro import cell as cells
    from sparse_attention.repro import display, pool
    from sparse_attention.repro.store import Store, StoreError
    from tasks.compose import ConfigError, plain, yaml_of
    from tasks.data.errors import DataError
    from tasks.data.progress import Progress
    from tasks.loggers import make_loggers

    try:
        values = plain(config)
        torch.set_num_threads(values["runtime"]["threads"])
        cell = cells.prepare(values, Progress())
    except (ConfigError, DataError, StoreError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        FAILED.append(str(error))
        return math.nan
    store = Store(values["paths"]["outputs"])
    entry = cell.entry(store)
    for note in cell.prepared.facts.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)
    with display.Display(1, 1) as shown:
        outcomes = pool.run_here([cell], store, shown.show, make_loggers, yaml_of)
    found = entry.metrics()
    if found is None:
        print(outcomes[0].error if values["runtime"]["verbose"] else outcomes[0].reason, file=sys.stderr)
        print(f"the traceback is in {entry.path('status.json')}", file=sys.stderr)
        FAILED.append(cell.cell_id)
        return math.nan
    print(f"{display.name(cell)}: {cell.prepared.facts.get('provenance', '')}")
    for key, value in sorted(found["metrics"].items()):
        print(f"  {key:32s} {value:.4f}")
    print(f"cell {cell.cell_id} {outcomes[0].state}: {entry.folder}")
    return float(found["metrics"].get(f"dev/{values['train']['best_metric']}", math.nan))


if __name__ == "__main__":
    main()
    if FAILED:
        sys.exit(1)
