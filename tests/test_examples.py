"""The examples run, at toy size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_film_reviews(tmp_path):
    pytest.importorskip("transformers")
    asked = ["--data", "toy_reviews", "--epochs", "8", "--train", "500", "--cache", str(tmp_path)]
    command = [sys.executable, str(ROOT / "examples" / "film_reviews.py"), *asked]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = {line.split(":")[0]: line for line in done.stdout.splitlines() if "test accuracy" in line}
    assert "zeros by layer 0 %, 0 %" in lines["softmax"]
    *_, last = lines["sparsemax"].split()
    assert float(lines["sparsemax"].split("zeros by layer ")[1].split(" %")[0]) > 5 and last == "%"
    assert float(lines["sparsemax"].split("test accuracy ")[1].split(",")[0]) > 55
