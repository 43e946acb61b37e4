"""The benchmark's structure, not its figures: it runs, it compares with softmax, and it says what it measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import wheels
from benchmarks.continuous import BREADTHS, CONTINUOUS_CASES, ContinuousCase, ContinuousRow, measure_continuous
from benchmarks.pages import page
from benchmarks.structured import STRUCTURED_CASES, StructuredCase, StructuredRow, measure_structured
from benchmarks.table import CASES, SHAPES, Case, Row, measure


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_case_is_a_mapping_with_targets() -> None:
    torch.manual_seed(0)
    for case in CASES:
        x = torch.randn(4, 30) * case.scale
        p = case.function(x)(x)
        torch.testing.assert_close(p.sum(-1), torch.ones(4))
        assert not torch.allclose(p, torch.softmax(x, -1))
        assert all(len(side) == 2 for side in case.target)
    assert {n for _, n in SHAPES} == {30, 50, 128, 512, 4096, 32000}


def test_measure_times_peers_beside_ours_and_leaves_gaps_for_those_that_fail(one_thread) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not for these scores")

    def without_gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1).detach()

    # Ten softmaxes cost several times one: a ratio that is wrong by construction would show.
    slow = lambda x: sum(torch.softmax(x, -1) for _ in range(10)) / 10  # noqa: E731
    case = Case("sparsemax", "sparsemax", {}, ((1.5, 1), (2, 1.3)))
    peers = {"broken": broken, "flat": without_gradient, "slow": slow}
    ours, *others = measure(case, ((400, 64), (100, 500)), 0.1, peers)
    rows = {row.label: row for row in others}
    assert ours.case is case and all(v > 0 for v in ours.forward + ours.both if v is not None)
    assert None not in ours.forward and len(ours.forward) == len(ours.both) == 2
    assert rows["broken"].forward == [None, None] == rows["broken"].both
    assert None not in rows["flat"].forward and rows["flat"].both == [None, None]
    assert all(v is not None and v > 3 for v in rows["slow"].forward)


def test_figures_above_target_stand_out() -> None:
    case = Case("x", "sparsemax", {}, ((1.5, 1.0), (2.0, 1.3)))
    rows, made = [Row("x", [1.4, 1.1], [2.1, None], case)], {"kernels": "native (avx2)", "machine": "", "python": "3"}
    text = page("table", rows=rows, shapes=((8, 128), (8, 129)), versions={"torch": "1"}, **made)
    assert "| **x** | 1.40 | **1.10** |" in text and "| **x** | **2.10** | - |" in text
    assert "native (avx2)" in text and "torch 1" in text


def test_continuous_attention_is_timed_and_what_misses_its_target_stands_out(one_thread) -> None:
    assert {(c.dim, c.alpha, c.target) for c in CONTINUOUS_CASES} >= {(2, 1.0, 1.0), (2, 2.0, 40.0)}
    cases = (ContinuousCase("flat", 1, 2.0, 4), ContinuousCase("plane", 2, 2.0, 9, 1e-6, "paper-code"))
    rows = measure_continuous(cases, 0.05)
    for row in rows:
        assert len(row.forward) == len(row.both) == 3 and min(row.forward + row.both) > 0
    rows.append(ContinuousRow(CONTINUOUS_CASES[2], [0.1, 0.1, 0.1], [0.9, 1.1, 0.5]))
    text = page("continuous", rows=rows, breadths=BREADTHS, batch=64)
    assert re.search(r"^\| plane(?: \| [\d.]+){3}(?: \| \*\*[\d.]+\*\*){3} \| 1e-06 \|$", text, re.M)
    assert "| 0.90 | **1.10** | 0.50 | 1 |" in text


def test_command_prints_the_table_and_refuses_unknown_names(command, capsys, one_thread) -> None:
    given = ("--seconds", "0.05", "--shapes", "64x30", "--output", "-")
    assert not command("bench", *given, "--only", "sparsemax")
    assert len(re.findall(r"^\| \*\*sparsemax\*\* \| \**\d", capsys.readouterr().out, re.M)) == 2
    assert command("bench", *given, "--only", "sparsmax") == 2 and "entmax 1.5" in capsys.readouterr().err


def test_structures_are_timed_beside_the_loop_in_python() -> None:
    case = StructuredCase("sequences", "sparsemap_sequence", (8, 6, 2), 1e-9)
    (row,) = measure_structured((case,), 0.05)
    assert 0 < row.forward < row.both and row.loop > row.both
    text = page("structured", rows=[row, StructuredRow(case, 1.0, 0.5, None)])
    assert f"**{row.both:.3f}** | 1e-09 | {row.loop:.0f} |" in text and text.count("| sequences |") == 2
    assert {c.target for c in STRUCTURED_CASES} == {None, 0.15, 0.5}
    for c in STRUCTURED_CASES:
        assert c.function()(torch.randn(1, *c.shape[1:])).shape == (1, *c.shape[1:])


def test_the_wheels_hold_what_training_imports_and_no_torch() -> None:
    pytest.importorskip("fairseq")
    names = wheels.needed()
    assert {"pytest", "fairseq-fixed", "hydra-core", "antlr4-python3-runtime", "numpy"} <= set(names)
    assert not {n for n in names if n.startswith(("torch", "nvidia", "triton"))}


def test_a_command_runs_with_the_wheels(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "site-{}.{}".format(*sys.version_info)
    folder.mkdir()
    (folder / "unpacked.py").write_text("print('found')")
    command = [sys.executable, "-m", "benchmarks.wheels", "run", str(tmp_path), "-m", "unpacked"]
    assert subprocess.run(command, capture_output=True, text=True, cwd=root).stdout == "found\n"
