"""`scripts/train.py -m hydra/sweeper=optuna`: optuna chooses the values of a sweep, and Hydra's sweeper runs each as a job."""

import json
import os
import sys
import tempfile
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from repro.errors import ConfigError
from repro.results import records
from repro.store import Store
from tasks.commands import compare, sweep
from tasks.commands.train import STATUS, Ended, run
from tasks.config import compose, overrides
from tasks.config.files import names_in
from tasks.config.request import Request, parse, spelled

JOBS = "SPARSE_ATTENTION_JOBS"  # variable: folder where each job, in any process, leaves a file at its end


def job(config: DictConfig) -> float | None:
    """Run one cell as a job of Hydra; leaves a file at its end. Returns its dev score; None tells optuna that it failed."""
    ended: Ended
    try:
        typed = parse(OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))
        compose.follow(config, typed)
        ended = run(compose.checked(config, typed))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        ended, typed = ("wrong", {}, None), []
    handle, _ = tempfile.mkstemp(".json", dir=os.environ[JOBS])
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({**ended[1], "point": {one.key: one.value for one in typed}, "state": ended[0]}, file)
    return ended[2]


def main(request: Request) -> int:
    """Run the trials, in a folder and with a table as those of any sweep. Returns the exit status, 1 if a trial failed.

    Raises ConfigError if the command line is invalid.
    """
    from optuna.study import Study

    compose.named(request)
    keys = request.keys
    own = [one for one in keys.values() if one.key == "mapping" and not {*one.values} <= {*names_in("mapping")}]
    if own and own[0].several:
        told = f"{own[0].text} has a mapping of your own among others, which a sweep of Hydra cannot choose"
        raise ConfigError(f"{told}; name one, or leave Hydra's options out")
    texts = [one.text for one in overrides.as_custom(list(keys.values()))] if own else list(request.overrides)
    sweeping = "hydra.sweep.dir" not in keys
    if sweeping:
        root = request.outputs / "sweeps"
        folder = root / request.sweep if request.sweep else sweep.new_folder(root, "hydra")
        texts.append(f"hydra.sweep.dir={folder}")
    # if the last point of a grid fails, optuna would stop a loop of its own, which Hydra does not run
    Study.stop = lambda self: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as jobs:
        os.environ[JOBS] = jobs
        try:
            with overrides.reading():
                GlobalHydra.instance().hydra.multirun("main", job, [spelled(text) for text in texts])
        except overrides.HYDRA as error:
            raise ConfigError(overrides.sentence(error)) from error
        except ValueError as error:
            if "No trials are completed yet" not in str(error):  # optuna's best of trials that all failed
                raise
        ended = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(jobs).glob("*.json"))]
    if sweeping and ended:
        known = {one["cell"]: {k: v for k, v in one.items() if k != "root"} for one in ended if "cell" in one}
        swept = {key for key, one in keys.items() if one.several} - {"task", "mapping", "seed"}
        for one in known.values():
            one["point"] = {key: value for key, value in one["point"].items() if key in swept}
        compare.write_manifest(folder, sorted(request.overrides), list(known.values()))
        roots, ids = sorted({one["root"] for one in ended if "root" in one}), {key.rpartition("/")[2] for key in known}
        results = [r for root in roots for r in records.read(Store(root), lambda *path: path[2] in ids).records]
        wrong = sum(one["state"] == "wrong" for one in ended)
        notes = [f"{wrong} of {len(ended)} trials had an invalid configuration; the errors were printed."] * bool(wrong)
        sweep.print_comparison(results, folder, f"Sweep {folder.name}", notes)
    return max((STATUS[one["state"]] for one in ended), default=0)
