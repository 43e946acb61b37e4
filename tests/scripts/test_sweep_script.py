"""Sweeps and comparisons as a user calls them: processes of their own, exit status, files."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sqlite3
from importlib import metadata
from pathlib import Path

import pytest


def manifest(outputs: Path, name: str) -> dict:
    return json.loads((outputs / "sweeps" / name / "manifest.json").read_text())


def test_a_sweep_ends_in_one_table_and_is_found_again(train, script, outputs):
    asked = ("-m", "mapping=sparsemax,fusedmax", "mapping.gamma=0.5,2", "seed=1,2", "sweep=mine")
    planned = train(*asked, "--plan")
    assert planned.returncode == 0 and not (outputs / "cells").exists()
    assert planned.stdout.strip().splitlines()[-1].startswith("8 cells: 0 done, 8 to run; about")
    done = train(*asked)
    assert done.returncode == 0, done.stderr
    assert "8 cells run, 0 reused, 0 failed" in done.stdout and done.stdout.count("±") >= 4
    settings = re.findall(r"^  ((?:sparsemax|fusedmax) \([^)]*\))", done.stdout, re.M)
    assert len(set(settings)) == 4 and len(settings) == 11, "in the table, the differences (3) and the intervals"
    told = manifest(outputs, "mine")
    assert len(told["cells"]) == 8 and {c["state"] for c in told["cells"]} == {"done"} and told["code"]
    assert all((outputs / "cells" / c["cell"] / "manifest.json").is_file() for c in told["cells"])
    names = {
        str(p.relative_to(outputs / "sweeps" / "mine")) for p in (outputs / "sweeps" / "mine").rglob("*") if p.is_file()
    }
    assert {
        "table.txt",
        "table.md",
        "table.csv",
        "plots/toy_fusedmax_gamma.svg",
        "plots/toy_fusedmax_gamma.csv",
    } <= names
    again = train(*asked, "runtime.workers=1")
    assert again.returncode == 0 and "0 cells run, 8 reused, 0 failed" in again.stdout
    last = train(*asked, "--plan").stdout.strip().splitlines()[-1]
    assert last.startswith("8 cells: 8 done, 0 to run")
    other = train("-m", "mapping=sparsemax", "sweep=mine")
    assert other.returncode == 2 and "sweep=mine exists already" in other.stderr
    one = script("compare.py", "sweep=mine", "mapping=fusedmax", "mapping.gamma=2", f"paths.outputs={outputs}")
    assert one.returncode == 0, one.stderr
    assert len(re.findall(r"^  fusedmax \(", one.stdout, re.M)) == 1 and re.search(
        r"\(lam=0.1, gamma=2\) +2 ", one.stdout
    )
    for filters, said in ((["tsk=toy"], "'task'"), (["sweep=mien"], "'mine'"), (["mapping=fusedmx"], "'fusedmax'")):
        wrong = script("compare.py", *filters, f"paths.outputs={outputs}")
        assert wrong.returncode == 2 and said in wrong.stderr and "Traceback" not in wrong.stderr, wrong.stderr


def test_an_experiment(script, outputs):
    done = script("train.py", "-m", "experiment=demo", "--plan", f"paths.outputs={outputs}")
    assert done.returncode == 0 and "hours" in done.stdout, done.stderr


needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="needs the extra [cluster]: hydra-optuna-sweeper"
)


@needs_optuna
def test_a_stored_study_is_resumed(train, tmp_path):
    if (installed := metadata.version("sqlalchemy")).split(".")[0] != "1":
        pytest.skip(
            f"optuna 2.10 cannot store a study by SQLAlchemy {installed}; the extra [cluster] asks for one below 2"
        )
    asked = [
        "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", f"hydra.sweeper.storage=sqlite:///{tmp_path / 'study.db'}",
        "hydra.sweeper.study_name=mine", "mapping=sparsegen_lin", "mapping.lam=interval(-1.0,0.9)",
    ]  # fmt: skip
    for more, trials in ((2, 2), (1, 3)):
        done = train(*asked, f"hydra.sweeper.n_trials={more}", f"sweep=stored{trials}")
        assert done.returncode == 0, done.stderr
        with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as study:
            assert study.execute("select count(*), count(distinct state), min(state) from trials").fetchone() == (
                trials,
                1,
                "COMPLETE",
            )


@needs_optuna
def test_optuna_searches_on_the_same_store(train, outputs):
    done = train(
        "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1", "hydra.sweeper.direction=maximize",
        "mapping=sparsegen_lin", "mapping.lam=interval(-1.0,0.9)", "sweep=search",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = manifest(outputs, "search")
    assert len(told["cells"]) == 3 and (outputs / "sweeps" / "search" / "table.txt").is_file()
    best = re.search(r"best_value: (\S+)", (outputs / "sweeps" / "search" / "optimization_results.yaml").read_text())
    scores = [
        json.loads((outputs / "cells" / c["cell"] / "metrics.json").read_text())["metrics"]["dev/accuracy"]
        for c in told["cells"]
    ]
    assert float(best[1]) == pytest.approx(max(scores))
