"""The benchmarks' structure, not their figures: they run, compare with softmax or torch's attention, and mark what misses its target."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import absolute, attention, gate, wheels
from benchmarks.pages import page
from benchmarks.table import CASES, PEERS, Case, Row, measure, peers
from sparse_attention.kernels.native import attention as native

fused = pytest.mark.skipif(native._load() is None, reason=f"no native kernels: {native._failure}")


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_case_is_a_mapping_and_peers_agree() -> None:
    assert {*PEERS} <= {case.label for case in CASES}
    for case in CASES:
        x = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)) * case.scale
        p = case.function(x)(x)
        torch.testing.assert_close(p.sum(-1), torch.ones(4))
        assert not torch.allclose(p, torch.softmax(x, -1))
        for label, peer in peers(case.label).items():
            assert torch.allclose(peer(x), p, atol=1e-6) == ("alike" not in label)


def test_measure_times_peers_beside_ours_and_figures_above_target_stand_out(one_thread) -> None:
    # Ten softmaxes cost several times one: a ratio that is wrong by construction would show.
    slow = lambda x: sum(torch.softmax(x, -1) for _ in range(10)) / 10  # noqa: E731
    case = Case("x", "sparsemax", {}, ((1.5, 1.0), (2.0, 1.3)))
    ours, other = measure(case, ((400, 64),), 0.1, {"slow": slow})
    assert ours.case is case and min(ours.forward + ours.both) > 0 and other.forward[0] > 3
    rows = [Row("x", [1.4, 1.1], [2.1, None], case)]
    made = {"kernels": "native (avx2)", "machine": "", "python": "3", "entmax": "1.3"}
    text = page("table", rows=rows, shapes=((8, 128), (8, 129)), **made)
    assert f"torch {torch.__version__}, entmax 1.3." in text
    assert "| **x** | 1.40 | **1.10** |" in text and "| **x** | **2.10** | - |" in text


def test_the_commands_print_the_table_and_refuse_unknown_names(command, capsys, one_thread) -> None:
    given = ("--seconds", "0.05", "--shapes", "64x30", "--output", "-")
    assert not command("bench", "mappings", *given, "--only", "sparsemax")
    assert len(re.findall(r"^\| \*\*sparsemax\*\* \| \**\d", capsys.readouterr().out, re.M)) == 2
    assert command("bench", "mappings", *given, "--only", "sparsmax") == 2 and "entmax 1.5" in capsys.readouterr().err


def test_continuous_attention_and_structures_are_timed(one_thread) -> None:
    cases = (absolute.Density("flat", 1, 2.0, 4), absolute.Density("plane", 2, 2.0, 9, 1e-6, "paper-code"))
    for row in absolute.densities(cases, 0.05):
        assert len(row.forward) == len(row.both) == len(absolute.BREADTHS) and min(row.forward + row.both) > 0
    case = absolute.Structure("sequences", "sparsemap_sequence", (8, 6, 2), 1e-9)
    (row,) = absolute.structures((case,), 0.05)
    (forward,), (both, loop) = row.forward, row.both
    assert 0 < forward < both < loop
    assert f"{forward:.3f} | **{both:.3f}** | 1e-09 | {loop:.0f} |" in page("structured", rows=[row])
    for c in absolute.STRUCTURES:
        assert c.function()(torch.randn(1, *c.shape[1:])).shape == (1, *c.shape[1:])


@fused
def test_attention_and_decoding_hit_their_support_and_ours_is_the_composition() -> None:
    case = attention.AttentionCase(128, 2, 0.1, True, target=(1e6, 0.0))
    row = attention.timed(case, 0.05)
    assert 0.07 < row.support < 0.13
    assert set(row.forward) == set(row.both) == {"sdpa", "ours", "composition"} and min(row.forward.values()) > 0
    text = page("attention", rows=[row], memory={case: {"sdpa": 3.0, "ours": 2.0}}, kernels="native")
    assert f"**{row.forward['sdpa'] / row.forward['ours']:.2f}**" in text and text.count("**") == 4
    known = attention.contestants(case.n, "entmax15", True, True)
    found = {name: f(*attention.drawn(case)) for name, f in known.items()}
    torch.testing.assert_close(found["ours"][0], found["composition"], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found["sdpa"][0], found["composition"], atol=1e-2)
    row = attention.decoded(attention.DecodingCase(600, 2, 0.5, target=1e6), 0.02)
    assert 0 < row.support < 0.2 and set(row.forward) == {"sdpa", "ours", "composition"}
    assert page("decoding", rows=[row]).count("**") == 2


@fused
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_the_composition_takes_the_memory_of_its_scores() -> None:
    case = attention.AttentionCase(1024, 2, 0.02)
    composed, ours = (attention.peak_memory(attention.step, case, name) for name in ("composition", "ours"))
    assert composed > 3 * 1024**2 * 2 * 4 / 2**20 > ours


def test_the_gate_takes_the_smallest_ratio_and_names_what_is_slower(monkeypatch, tmp_path, capsys, command):
    """The cases that have passed are not tried again."""
    ratios = {"a noisy": [3.0, 1.3, 1.1], "a slow": [1.3, 1.2, 1.16, 1.4], "a quiet": [0.9]}
    ratios["b"] = [2.0, 8.0, 1.0, 3.0, 4.0, 2.0]
    monkeypatch.setattr(gate, "CASES", dict.fromkeys(ratios))
    monkeypatch.setattr(gate, "FILE", tmp_path / "gate.json")
    monkeypatch.setattr(gate, "TRIES", 4)
    monkeypatch.setattr(gate, "ratio", lambda name, seconds: ratios[name].pop(0))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    gate.FILE.write_text("{}")
    assert command("bench", "mappings", "--check") == 2 and "--record writes them" in capsys.readouterr().err
    assert command("bench", "mappings", "--record", "--only", "b") == 0
    (isa, found), *_ = json.loads(gate.FILE.read_text()).items()
    assert found == {"b": 3.0}
    gate.FILE.write_text(json.dumps({isa: dict.fromkeys(ratios, 1.0)}))
    assert command("bench", "mappings", "--check", "--only", "a") == 1
    said = capsys.readouterr()
    assert [line.split()[1:3] for line in said.out.splitlines() if "SLOWER" in line] == [["slow", "1.160"]]
    assert "1 of 3 more than 15% slower in 4 tries" in said.err and not any(ratios.values())


def test_every_case_of_the_gate_has_ratios_of_two_instruction_sets() -> None:
    known = json.loads(gate.FILE.read_text())
    assert {"avx512", "avx2"} <= set(known) and all(set(found) == set(gate.CASES) for found in known.values())


def test_the_wheels_hold_what_training_imports_and_no_torch() -> None:
    pytest.importorskip("fairseq")
    names = wheels.needed()
    assert {"pytest", "fairseq-fixed", "hydra-core", "antlr4-python3-runtime", "numpy"} <= set(names)
    assert not {n for n in names if n.startswith(("torch", "nvidia", "triton"))}


@pytest.mark.slow
def test_host_times_two_checkouts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # launches are counted without a GPU only
    command = [sys.executable, "benchmarks/host.py", "--against", str(root), "--seconds", "0.05", "--only"]
    done = subprocess.run([*command, "s sparsemax"], cwd=root, capture_output=True, text=True, timeout=300)
    *each, last = done.stdout.splitlines()
    assert done.returncode == 0 and len(each) == 2 and re.fullmatch(r"rows \d\.\d\d/\d\.\d\d", last), done.stderr
    assert all(re.search(r"us \(1\) against \d+ us \(1\) = .* us \(2\) against \d+ us \(2\)", line) for line in each)
    refused = subprocess.run([*command[:3], "nowhere"], cwd=root, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "there is no sparse_attention/ in this folder" in refused.stderr
    began = [sys.executable, "benchmarks/host.py", "--first", "4", "float32"]
    said = subprocess.run(began, cwd=root, capture_output=True, text=True, timeout=300).stdout
    assert re.fullmatch(r"\d+\.\d s, 36 launches of 18 attentions, 4 positions, float32\n", said), (
        "one forward, one backward each"
    )
