"""The entry points as a user calls them: a process of their own, real arguments, exit status and what is printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def cells(outputs: Path) -> dict[tuple[str, str, int], dict]:
    """(mapping, parameters, seed) -> metrics file of every finished cell."""
    found = {}
    for path in outputs.glob("cells/toy/*/*/manifest.json"):
        path = path.with_name("metrics.json")
        assert json.loads(path.with_name("status.json").read_text())["state"] == "done"
        text = path.with_name("config.yaml").read_text()
        seed, lam = re.search(r"^seed: (\d+)", text, re.M), re.search(r"^  (?:lam|beta): (\S+)", text, re.M)
        found[path.parents[1].name, lam.group(1) if lam else "", int(seed.group(1))] = json.loads(path.read_text())
    return found


def no_traceback(done) -> None:
    assert "Traceback" not in done.stderr + done.stdout, done.stderr


def test_one_cell_and_again(train, outputs):
    done = train("mapping=sparsemax")
    assert done.returncode == 0, done.stderr
    assert re.search(r"sparsemax\(gamma=1\.0\) on toy, seed 1", done.stdout)
    assert "test/bleu" in done.stdout and "test/attention_zeros" in done.stdout
    folder = Path(re.search(r"cell \w+ done: (\S+)", done.stdout).group(1))
    names = {p.name for p in folder.iterdir()}
    assert {"config.yaml", "status.json", "metrics.json", "curves.csv", "weights.safetensors", "encoding", "provenance.json",
            "log.txt", "manifest.json", "evaluations"} <= names  # fmt: skip
    (evaluation,) = (folder / "evaluations").iterdir()
    assert {"metrics.json", "predictions.jsonl.gz", "attention.safetensors", "manifest.json"} <= {
        p.name for p in evaluation.iterdir()
    }
    assert "claim" not in names
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    again = train("mapping=sparsemax", "runtime.workers=1")
    assert again.returncode == 0 and "skipped" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before
    shown = [re.findall(r"^  (\S+) +(\S+)$", d.stdout, re.M) for d in (done, again)]
    assert shown[0] == shown[1] and len(shown[0]) > 8


def test_sweep(train, outputs):
    done = train("-m", "mapping=sparsegen_lin", "mapping.lam=-1,0.5", "seed=1,2")
    assert done.returncode == 0, done.stderr
    mine = {key: m for key, m in cells(outputs).items() if key[0] == "sparsegen_lin"}
    assert sorted(mine) == [("sparsegen_lin", lam, seed) for lam in ("-1.0", "0.5") for seed in (1, 2)]
    losses = {key[1:]: m["metrics"]["train/loss"] for key, m in mine.items()}
    # after one epoch of so small a model the scores are too close to zero for lambda to show in four decimals
    assert losses["-1.0", 1] != losses["-1.0", 2] and losses["0.5", 1] != losses["0.5", 2], losses


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["mapping=fusedmax", "mapping.lam=0.2,-1"], ["mapping.lam=-1", "lam >= 0"]),
        (["seed=77,x", "hydra.job.name=mine"], ["seed='x'"]),  # Hydra's own sweeper
    ],
    ids=["ours", "hydra"],
)
def test_a_sweep_with_a_wrong_point_runs_none(train, outputs, arguments, said):
    before = cells(outputs)
    done = train("-m", *arguments)
    assert done.returncode == 2 and all(text in done.stderr for text in [*said, "nothing was run"]), done.stderr
    no_traceback(done)
    assert cells(outputs) == before


@pytest.mark.parametrize(
    "command", [["train.py"], ["train.py", "-m", "seed=1,2"], ["reproduce.py", "demo"]], ids=" ".join
)
@pytest.mark.parametrize(
    "asked, said",
    [
        ("launcher=slurm", "sinfo is not on the PATH; run this where jobs are submitted, or set launcher=local"),
        ("runtime.devices=[99]", "so there is no 99; allowed: all, none"),
    ],
)
def test_a_launcher_that_cannot_begin_is_one_sentence_before_any_data(script, tmp_path, command, asked, said):
    task = [] if "demo" in command else ["task=toy"]
    folders = [f"paths.outputs={tmp_path / 'outputs'}", f"paths.data={tmp_path / 'data'}"]
    done = script(*command, *task, asked, *folders, PATH=str(tmp_path))
    assert done.returncode in (1, 2) and done.stderr.startswith("error: ") and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "data").exists()


PLUGIN = """
import torch
import sparse_attention as sa


@sa.register("flatmax", summary="softmax of beta times the scores")
def flatmax(scores, mask, beta=0.5):
    return torch.softmax((beta * scores).masked_fill(~mask, float("-inf")), -1)
"""


def test_a_mapping_of_ones_own(train, outputs, tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    arguments = ["mapping=custom", "mapping.name=flatmax", f"plugins=[{plugin}]"]
    done = train(*arguments, "+mapping.beta=3.0")
    assert done.returncode == 0, done.stderr
    assert "flatmax(beta=3.0)" in done.stdout
    assert ("flatmax", "3.0", 1) in cells(outputs)
    wrong = train(*arguments, "+mapping.betta=3.0")
    assert wrong.returncode != 0 and "betta" in wrong.stderr and "beta" in wrong.stderr
    no_traceback(wrong)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["mapping=fusedmx"], ["fusedmx", "fusedmax"]),
        (["task=translatoin"], ["translatoin", "translation"]),
        (["profile=demmo"], ["demmo", "demo"]),
        (["train.max_epoch=3"], ["max_epoch"]),
        (["+train.max_epoch=3"], ["train.max_epoch is unknown", "'max_epochs'"]),
        (["~train"], ["~train is invalid"]),
        (["decode.beam=[1"], ["'decode.beam=[1'", "cannot be read"]),
        (["optim.lr=${nowhere}"], ["optim.lr", "nowhere"]),
        (["-m", "task=null,toy"], ["task=None", "toy"]),
        (["data.name=multi3k", "mapping.gamma=0"], ["multi3k", "multi30k", "gamma=0"]),
        (["plugins=[nowhere.py]"], ["nowhere.py"]),
        (["mapping=continuous_sparsemax"], ["density"]),
    ],
    ids=lambda v: " ".join(v) if "=" in v[0] else "",
)  # fmt: skip
def test_errors_are_one_clear_message(train, outputs, arguments, said):
    done = train(*arguments)
    assert done.returncode == 2
    for text in said:
        assert (done.stderr + done.stdout).count(text) >= 1
    assert done.stderr.count("error:") <= 1
    no_traceback(done)


@pytest.mark.parametrize("arguments", [["mapping=fusedmax"], ["-m", "seed=1,2", "mapping=fusedmax"]], ids=" ".join)
def test_without_a_task_the_plan_is_shown_and_nothing_runs(script, tmp_path, arguments):
    done = script("train.py", *arguments, f"paths.outputs={tmp_path}", f"paths.data={tmp_path}")
    assert done.returncode == 2 and not any(tmp_path.iterdir())
    assert "no task is named; add task=translation for this plan, or another: fertility, imdb" in done.stderr
    count = 1 + ("-m" in arguments)
    assert f"{count} cells: 0 done, {count} to run; about {3 * count} minutes" in done.stdout
    assert ("with 2 workers" in done.stdout) == (count > 1)
    no_traceback(done)


def test_control_c_ends_with_a_sentence(tiny, root, outputs, isolated):
    """And with the status of an interrupt; what was done is not lost."""
    command = [
        sys.executable,
        str(root / "scripts" / "train.py"),
        *tiny,
        "train.max_epochs=5000",
        f"paths.outputs={outputs}",
    ]
    env = os.environ | {"SPARSE_ATTENTION_DATA": str(isolated / "data")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=outputs)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not [*outputs.glob("cells/toy/softmax/*/curves.csv")]:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err and err.strip().splitlines()[-1].startswith("stopped;")


def test_help_ends_with_what_to_run_next(script):
    done = script("train.py", "--help")
    assert done.returncode == 0 and done.stdout.strip().splitlines()[-1].startswith("Next: python scripts/train.py")


def test_outputs_that_cannot_be_written(script, tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = script("train.py", *tiny, f"paths.outputs={tmp_path / 'file'}")
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr and "cannot be written" in done.stderr


def test_configuration_can_be_shown_without_running(train, outputs):
    before = cells(outputs)
    done = train("mapping=oscarmax", "--cfg", "job")
    assert done.returncode == 0 and "name: oscarmax" in done.stdout
    assert cells(outputs) == before
