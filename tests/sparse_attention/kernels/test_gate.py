"""The speed gate: it fails on a slow form, only after every try, and its cases compute what torch's calls compute."""

from __future__ import annotations

import json
import time

import pytest
import torch

from benchmarks import gate


def _case(name: str, factor: float) -> gate.Gate:
    """Our call takes `factor` times as long as the other, to within a few per cent of a millisecond's spin."""

    def spin(seconds: float) -> None:
        stop = time.thread_time() + seconds
        while time.thread_time() < stop:
            pass

    return gate.Gate(name, lambda: (lambda: spin(factor * 2e-3), lambda: spin(2e-3)))


def test_a_slow_form_fails_and_others_pass(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gate, "GATES", (_case("slow", 2.0), _case("fast", 0.5)))
    monkeypatch.setattr(gate, "FILE", tmp_path / "gate.json")
    monkeypatch.setattr(gate, "TRIES", {False: 2})
    monkeypatch.setattr(gate, "SECONDS", {False: 0.1})
    before = torch.get_num_threads()
    try:
        assert gate.run(quick=False, record=False) == 0 and "no ratios were recorded" in capsys.readouterr().out
        assert gate.run(quick=False, record=True) == 0
        (isa, found), *_ = json.loads(gate.FILE.read_text()).items()
        assert found["slow"] == pytest.approx(2.0, rel=0.1) and found["fast"] == pytest.approx(0.5, rel=0.1)
        assert gate.run(quick=False, record=False) == 0
        gate.FILE.write_text(json.dumps({isa: {"slow": 1.0, "fast": 0.5}}))
        assert gate.run(quick=False, record=False) == 1
        said = capsys.readouterr()
        assert [line.split()[0] for line in said.out.splitlines() if "SLOWER" in line] == ["slow"]
        assert "1 of 2 more than 15% slower in 2 tries" in said.err
    finally:
        torch.set_num_threads(before)


def test_the_smallest_ratio_of_all_tries_counts():
    cases = [gate.Gate(name, lambda: (lambda: None, lambda: None)) for name in ("noisy", "slow", "quiet")]
    ratios = {"noisy": [3.0, 1.3, 1.1], "slow": [1.3, 1.2, 1.16, 1.4], "quiet": [0.9]}
    best = gate.check(cases, dict.fromkeys(ratios, 1.0), 4, lambda one: ratios[one.name].pop(0))
    assert best == {"noisy": 1.1, "slow": 1.16, "quiet": 0.9} and not any(ratios.values())
    with pytest.raises(ValueError, match="no committed ratio for slow, quiet: make bench-gate ARGS=--record"):
        gate.check(cases, {"noisy": 1.0}, 1, lambda one: 1.0)


def test_every_case_has_ratios_of_two_instruction_sets():
    known = json.loads(gate.FILE.read_text())
    assert {"avx512", "avx2"} <= set(known) and len(gate.GATES) == len({one.name for one in gate.GATES})
    for found in known.values():
        assert set(found) == {one.name for one in gate.GATES}


def test_our_calls_compute_something_else_than_torchs():
    """Of equal shapes: softmax in both places would make every ratio 1."""
    for one in gate.GATES:
        if "2048" in one.name or "4096" in one.name or "training" in one.name:
            continue
        ours, theirs = (call() for call in one.make())
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape and not torch.allclose(a, b, atol=1e-3)
