"""Sweeps and comparisons as a user calls them: processes of their own, exit status, files."""

import contextlib
import importlib
import json
import re
import sqlite3
from pathlib import Path

import pytest
import yaml


def manifest(outputs: Path, name: str) -> dict:
    return json.loads((outputs / "sweeps" / name / "manifest.json").read_text())


@pytest.mark.slow
def test_a_sweep_ends_in_one_table_and_is_found_again(train, command, outputs, capsys):
    asked = ("-m", "mapping=sparsemax,fusedmax", "mapping.gamma=0.5,2", "seed=1,2", "sweep=mine")
    planned = train(*asked, "--plan")
    assert planned.returncode == 0 and not (outputs / "cells").exists()
    assert planned.stdout.strip().splitlines()[-1].startswith("8 cells: 0 done, 8 to run; about")
    done = train(*asked)
    assert done.returncode == 0, done.stderr
    assert "8 cells run, 0 reused, 0 failed" in done.stdout and re.search(r"^  mapping .* ± ", done.stdout, re.M)
    settings = re.findall(r"^  ((?:sparsemax|fusedmax) [~!]? ?\([^)]*\))", done.stdout, re.M)
    assert len(set(settings)) == 4 == len(settings), "nothing twice"
    told = manifest(outputs, "mine")
    assert {c["state"] for c in told["cells"]} == {"done"} and told["code"]
    losses = {}
    for folder in (outputs / "cells" / c["cell"] for c in told["cells"]):
        assert (folder / "manifest.json").is_file()
        config = yaml.safe_load((folder / "config.yaml").read_text())
        setting = config["mapping"]["name"], config["mapping"]["gamma"], config["seed"]
        losses[setting] = json.loads((folder / "metrics.json").read_text())["metrics"]["train/loss"]
    assert set(losses) == {(m, gamma, seed) for m in ("sparsemax", "fusedmax") for gamma in (0.5, 2) for seed in (1, 2)}
    assert all(losses[m, gamma, 1] != losses[m, gamma, 2] for m, gamma, _ in losses), losses
    folder = outputs / "sweeps" / "mine"
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert {"table.txt", "table.md", "table.csv", "plots/toy_fusedmax_gamma.svg"} <= names
    again = train(*asked, "runtime.workers=1")
    assert again.returncode == 0 and "0 cells run, 8 reused, 0 failed" in again.stdout
    capsys.readouterr()
    assert command("compare", "sweep=mine", "mapping=fusedmax", "mapping.gamma=2", f"paths.outputs={outputs}") == 0
    one = capsys.readouterr().out
    assert len(re.findall(r"^  fusedmax .*\(lam=0.1, gamma=2\)", one, re.M)) == 1
    assert command("compare", "sweep=mien", f"paths.outputs={outputs}") == 2 and "'mine'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def optuna():
    """Optuna and matplotlib are loaded once, for all forks."""
    for name in ("hydra_plugins.hydra_optuna_sweeper._impl", "matplotlib.backends.backend_svg"):
        importlib.import_module(name)


OPTUNA = ("hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "mapping=sparsegen_lin")


@pytest.mark.usefixtures("optuna")
@pytest.mark.slow
def test_a_stored_study_is_resumed(train, tmp_path):
    asked = ["-m", *OPTUNA, "hydra.sweeper.study_name=mine", "mapping.lam=interval(-1.0,0.9)"]
    asked += [f"hydra.sweeper.storage=sqlite:///{tmp_path / 'study.db'}"]
    for more, trials in ((2, 2), (1, 3)):
        done = train(*asked, f"hydra.sweeper.n_trials={more}", f"sweep=stored{trials}")
        assert done.returncode == 0, done.stderr
        with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as study:
            found = study.execute("select count(*), min(state), max(state) from trials").fetchone()
        assert found == (trials, "COMPLETE", "COMPLETE")


@pytest.mark.usefixtures("optuna")
@pytest.mark.parametrize(("values", "finished"), [("0.5,2.0", 1), ("2.0,3.0", 0)])
def test_a_failed_trial_does_not_end_optunas_study(train, outputs, values, finished):
    asked = ("hydra/sweeper/sampler=grid", "hydra.sweeper.n_trials=2", "hydra.sweeper.direction=maximize")
    done = train("-m", *OPTUNA, *asked, f"mapping.lam=choice({values})", f"sweep=failing{finished}")
    assert done.returncode == 2 and done.stderr.count("lam=") >= 2 - finished and "Traceback" not in done.stderr
    folder = outputs / "sweeps" / f"failing{finished}"
    assert len(manifest(outputs, folder.name)["cells"]) == finished
    assert [(folder / name).is_file() for name in ("table.txt", "optimization_results.yaml")] == [bool(finished)] * 2
    for one in manifest(outputs, folder.name)["cells"]:
        accuracy = json.loads((outputs / "cells" / one["cell"] / "metrics.json").read_text())["metrics"]["dev/accuracy"]
        best = re.search(r"best_value: (\S+)", (folder / "optimization_results.yaml").read_text())
        assert float(best[1]) == pytest.approx(accuracy)
