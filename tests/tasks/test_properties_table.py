from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tasks.commands import properties


@pytest.mark.parametrize("K, q", [(3, 0.4), (5, 1.5)])
def test_laha_table_1(K, q):
    """Every printed mark is confirmed but one: sum normalization++ has no value where the scores sum to 0."""
    for row in properties.rows(K, 0.5, q):
        for prop, printed in zip(properties.PROPERTIES, (*row.printed, "yes")):
            found = properties.verdict(prop, row, K, printed)
            if (row.label, prop) == ("sum normalization++", "full domain"):
                assert printed == "yes" and found == "no"
            else:
                assert found == printed, (row.label, prop)


@pytest.mark.parametrize("K, q", [(3, 0.4), (5, 1.5)])
def test_lipschitz_constants(K, q):
    for row in properties.rows(K, 0.5, q):
        steepest = properties.steepness(row.function, properties.probes(K, q))
        bound = row.l2
        if bound == float("inf"):
            assert row.lipschitz == "inf" and steepest > 500, row.label
        else:
            assert 0.995 * bound < steepest < bound * (1 + 1e-6), row.label
        if row.label.startswith("sparsehourglass"):
            assert steepest > 1 + 1 / (K * q)  # the printed constant does not hold
        if row.label == "softmax":
            assert steepest <= 0.5 + 1e-12  # the printed 1 holds but is not tight


def test_corrected_constant_of_the_hourglass():
    assert properties.hourglass_lipschitz(2, 0.1) == pytest.approx(7.8102, abs=5e-5)
    assert properties.hourglass_lipschitz(10, 1.0) == pytest.approx(1.1402, abs=5e-5)


def test_the_script_prints_the_table(monkeypatch, capsys):
    script = Path(__file__).resolve().parents[2] / "scripts" / "properties_table.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--classes", "4"])
    monkeypatch.syspath_prepend(str(script.parent))  # as for a script that Python starts
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert "sum normalization++" in out and "no (printed: yes)" in out and out.count("| ") > 100
