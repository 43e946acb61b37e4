"""scripts/reproduce.py from the outside."""

from __future__ import annotations

import pytest


def test_lists_the_experiments(script, root):
    done = script("reproduce.py")
    assert done.returncode == 0, done.stderr
    for path in (root / "configs" / "experiment").glob("*.yaml"):
        assert path.stem in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["niculae_table2"], ["'niculae_table2'", "niculae2017_table2"]),
        (["demo", "profile=demmo"], ["'demmo'", "demo"]),
        (["demo", "train.max_epoch=3"], ["max_epoch"]),
        (["demo", "runtime.workers=0"], ["runtime.workers=0", "at least 1"]),
        (["demo", "optim.lr=-1"], ["optim.lr=-1", "above 0"]),
        (["demo", "+optim.foo=1"], ["optim.foo is unknown"]),
        (["demo", "seeds=one"], ["seeds=one", "whole numbers"]),
        (["demo", "add=fusedmax,lam=-1"], ["lam=-1", "lam >= 0"]),
        (["demo", "add=fusedmx"], ["fusedmx", "'fusedmax'"]),
        (["demo", "add=fusedmax,lam"], ["add=fusedmax,lam", "add=entmax,alpha=1.5"]),
        (["demo", "~seed"], ["~seed", "seed=..."]),
    ],
    ids=lambda v: " ".join(v),
)
def test_errors_are_one_clear_message(script, tmp_path, arguments, said):
    done = script("reproduce.py", *arguments, f"paths.outputs={tmp_path}", f"paths.data={tmp_path}")
    assert done.returncode == 2
    for text in said:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cells").exists(), "the configuration is checked before anything is done"
