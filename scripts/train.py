"""Train and score one cell; with -m, sweep. `python scripts/train.py task=toy mapping=sparsemax`, `--help` for the choices."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # runtime.threads decides, before torch is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FAILED = "SPARSE_ATTENTION_FAILED"  # folder where the jobs of a sweep, in whatever process, leave a file when they fail


def main(config) -> float:
    """Run the cell and return its dev score (for Hydra sweepers); NaN when it failed, while a sweep goes on."""
    import torch
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from sparse_attention.repro import cell as cells
    from sparse_attention.repro import display, pool
    from sparse_attention.repro.store import Store, StoreError
    from tasks import compose
    from tasks.data import DataError, Progress
    from tasks.loggers import make_loggers

    try:
        values = compose.checked(config, OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))
        torch.set_num_threads(values["runtime"]["threads"])
        cell = cells.prepare(values, compose.module_of(values), progress=Progress())
        store = Store(values["paths"]["outputs"])
    except (compose.ConfigError, DataError, StoreError, ValueError) as error:
        return failed(f"error: {error}")
    for note in cell.prepared.facts.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)
    with display.Display(1) as shown:
        (outcome,) = pool.run_here([cell], store, shown.show, make_loggers)
    found = cell.found(store)
    if found is None:
        return failed(outcome.error if values["runtime"]["verbose"] else outcome.reason)
    print(f"{display.name(cell)}: {cell.prepared.facts.get('provenance', '')}")
    for key, value in sorted(found.metrics.items()):
        print(f"  {key:32s} {value:.4f}")
    print(f"cell {cell.training_id} {outcome.state}: {cell.entry(store).folder}")
    return float(found.metrics.get(f"dev/{values['train']['best_metric']}", math.nan))


def failed(reason: str) -> float:
    """Say why this job failed, and leave a mark for the process that started it."""
    print(reason, file=sys.stderr)
    tempfile.mkstemp(dir=os.environ[FAILED])
    return math.nan


def run() -> int:
    """Exit status: 0, 1 when a cell failed or the configuration is wrong, 130 after Ctrl-C."""
    import hydra

    from tasks import overrides

    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors come here
    try:
        overrides.check_arguments(sys.argv[1:])
        with tempfile.TemporaryDirectory() as folder:
            os.environ[FAILED] = folder
            hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="main")(main)()
            return int(any(Path(folder).iterdir()))
    except (overrides.ConfigError, *overrides.HYDRA, OSError) as error:
        print(f"error: {overrides.sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
