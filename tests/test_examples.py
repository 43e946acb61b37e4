"""The examples run, at toy size."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SAID = {  # what each example prints, after as few steps as show that it learns
    "classifier": (40, r"softmax: .* weight on 6\.\d of 6\.\d words.*\n.*\nsparsemax: (\d+)"),
    "pointer_network": (2, r"(\d+)\.\d % of the pointers are right[\s\S]*step 6 "),
    "vision_transformer": (2, r"timm.*: (\d+)\.\d % right with sparsemax"),
    "graph_attention": (10, r"(\d+)\.\d % of the other nodes are right\nwith weight: \d+ %"),
    "feature_masks": (2, r"(\d+)\.\d % right[\s\S]*step 2: [\d. ]+; \d\.\d"),
    "tagger": (10, r"(\d+)\.\d % of the tags are right; \d\.\d\d sequences have weight"),
    "hugging_face": (2, r"accuracy (\d+)\.\d %\nlayer 1: \d+ % of the weights"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "hugging_face")) for n in SAID])
def test_an_example_runs(name, capsys):
    """In this process; the one with transformers, which takes seconds to import, is among the slow tests."""
    steps, said = SAID[name]
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](steps)
    found = re.search(said, capsys.readouterr().out)
    assert found and int(found[1]) > {"classifier": 90, "tagger": 50}.get(name, -1)


def test_a_sweep_is_read_into_pandas(tmp_path, capsys):
    lines = ["mapping,mapping.lam,seed,set,state,bleu", "softmax,,1,test,done,10", "softmax,,2,test,done,12"]
    lines += ["fusedmax,0.1,1,test,done,14.5", "fusedmax,0.1,2,test,failed,"]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    runpy.run_path(str(ROOT / "examples" / "sweep_in_pandas.py"))["main"](tmp_path)
    out = capsys.readouterr().out
    assert (
        re.search(r"softmax +NaN +11\.0 +1\.41 +2", out)
        and "the best: set test, mapping fusedmax, mapping.lam 0.1" in out
    )


def test_every_example_is_short_and_on_the_page():
    page = (ROOT / "docs" / "guides" / "examples.md").read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
    assert {name for name in files if f"## {name}" not in page} == set()
    assert [n for n, text in files.items() if len(text.splitlines()) > 80 and n != "film_reviews.py"] == []


@pytest.mark.slow
def test_film_reviews(tmp_path):
    asked = ["--data", "toy_reviews", "--epochs", "8", "--train", "500", "--cache", str(tmp_path)]
    command = [sys.executable, str(ROOT / "examples" / "film_reviews.py"), *asked]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = {line.split(":")[0]: line for line in done.stdout.splitlines() if "test accuracy" in line}
    assert "zeros by layer 0 %, 0 %" in lines["softmax"]
    *_, last = lines["sparsemax"].split()
    assert float(lines["sparsemax"].split("zeros by layer ")[1].split(" %")[0]) > 5 and last == "%"
    assert float(lines["sparsemax"].split("test accuracy ")[1].split(",")[0]) > 55
