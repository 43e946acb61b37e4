"""The speed gate: it fails on a slow form, only after every try, and its cases compute what torch's calls compute."""

import json

import pytest
import torch

from benchmarks import gate


def test_recording_and_checking(monkeypatch, tmp_path, capsys, command):
    """The smallest ratio of all tries counts; the cases that have passed are not tried again."""
    ratios = {"a noisy": [3.0, 1.3, 1.1], "a slow": [1.3, 1.2, 1.16, 1.4], "a quiet": [0.9]}
    ratios["b"] = [2.0, 8.0, 1.0, 3.0, 4.0, 2.0]
    monkeypatch.setattr(gate, "CASES", dict.fromkeys(ratios))
    monkeypatch.setattr(gate, "FILE", tmp_path / "gate.json")
    monkeypatch.setattr(gate, "TRIES", 4)
    monkeypatch.setattr(gate, "ratio", lambda name, seconds: ratios[name].pop(0))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    gate.FILE.write_text("{}")
    assert command("bench", "--check") == 2 and "--record writes them" in capsys.readouterr().err
    assert command("bench", "--record", "--only", "b") == 0
    (isa, found), *_ = json.loads(gate.FILE.read_text()).items()
    assert found == {"b": 3.0}
    gate.FILE.write_text(json.dumps({isa: dict.fromkeys(ratios, 1.0)}))
    assert command("bench", "--check", "--only", "a") == 1
    said = capsys.readouterr()
    assert [line.split()[1:3] for line in said.out.splitlines() if "SLOWER" in line] == [["slow", "1.160"]]
    assert "1 of 3 more than 15% slower in 4 tries" in said.err and not any(ratios.values())


def test_every_case_has_ratios_of_two_instruction_sets():
    known = json.loads(gate.FILE.read_text())
    assert {"avx512", "avx2"} <= set(known) and all(set(found) == set(gate.CASES) for found in known.values())


@pytest.mark.parametrize("name", [n for n in gate.CASES if not any(long in n for long in ("2048", "4096", "training"))])
def test_our_calls_compute_something_else_than_torchs(name):
    """Of equal shapes: softmax in both places would make every ratio 1."""
    ours, theirs = (call() for call in gate.CASES[name]())
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and not torch.allclose(a, b, atol=1e-3)


def test_a_slow_call_has_a_large_ratio(monkeypatch):
    """Adding up eight times takes several times as long as once."""
    x = torch.ones(100_000)
    monkeypatch.setitem(gate.CASES, "slow", lambda: [lambda: [x.sum() for _ in range(8)], lambda: x.sum()])
    assert gate.ratio("slow", 0.1) > 3
