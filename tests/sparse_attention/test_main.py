from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import sparse_attention as sa
from sparse_attention import __main__ as main


def test_the_module_describes_itself_and_times_every_mapping():
    done = subprocess.run(
        [sys.executable, "-m", "sparse_attention"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"sparse_attention {sa.__version__}, torch {torch.__version__}" in done.stdout
    counted = re.search(r"(\d+) of (\d+) mappings agree", done.stdout)
    assert counted and counted[1] == counted[2] and int(counted[1]) >= 17
    assert re.search(r"softmax +1\.00", done.stdout) and re.search(r"entmax 1\.5 +\d+\.\d\d", done.stdout)


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_wrong_kernel_fails_the_self_test(monkeypatch, capsys, part):
    used = sa.kernels.select("sparsemax", torch.zeros(1, 2))
    if used is sa.kernels.reference:
        pytest.skip("no compiled kernels to compare with the reference")
    right = getattr(used.OPS["sparsemax"], part)

    def wrong(*given, **params):
        found = right(*given, **params)
        return (found[0] * 1.001, *found[1:]) if part == "forward" else found * 1.001

    monkeypatch.setattr(used.OPS["sparsemax"], part, wrong)
    assert main.main() == 1 and "wrong: sparsemax (off by " in capsys.readouterr().out
