import os
import re
import runpy
import subprocess
import sys

import pytest
import torch

import sparse_attention as sa
from sparse_attention import __main__ as main


@pytest.mark.slow
def test_the_module_describes_itself_and_times_every_mapping():
    command = [sys.executable, "-m", "sparse_attention"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
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


def test_the_bench_says_from_where_on_attention_is_faster_and_what_to_expect_elsewhere(monkeypatch, capsys):
    def times(calls, leaves):
        n = leaves[0].shape[-2]
        return dict(zip(calls, (1.0, 0.5 if 500 < n < 5000 and leaves[0].ndim == 4 else 2.0, 3.0)))

    monkeypatch.setattr(main, "_times", times)
    assert main.bench() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and re.search(r"rows \[16,384, 16\] +2\.00 +3\.00 +1000\.00 ms", lines[3])
    assert "faster than torch's from 512 positions" in lines[-2] and "4,096" in lines[-1]


def test_the_console_command_becomes_a_script_of_the_checkout(monkeypatch, root, tmp_path, capsys):
    def execv(path, words):
        raise SystemExit(f"becomes {' '.join(words[1:])}")

    monkeypatch.setattr(os, "execv", execv)
    command = str(root / "scripts" / "sparse-attention")
    monkeypatch.setattr(sys, "argv", ["sparse-attention", "train", "seed=1"])
    with pytest.raises(SystemExit, match=f"becomes {re.escape(command)} train seed=1"):
        main.command()
    with pytest.raises(SystemExit, match=r"becomes .+/scripts/train\.py seed=1$"):
        runpy.run_path(command)
    monkeypatch.setattr(sys, "argv", ["sparse-attention", "trian"])
    with pytest.raises(SystemExit, match="error: trian is unknown"):
        runpy.run_path(command)
    assert re.search(r"(?m)^  train +Train and evaluate one cell", capsys.readouterr().out)
    monkeypatch.setattr(main, "__file__", str(tmp_path / "sparse_attention" / "__main__.py"))
    with pytest.raises(SystemExit, match="only the library is installed here"):
        main.command()
