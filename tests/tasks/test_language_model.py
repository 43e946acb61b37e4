"""The language model: it is causal, sees the same windows by every mapping, goes on where it stopped, and its page says what was measured."""

from __future__ import annotations

import itertools

import pytest
import torch

import sparse_attention as sa
from benchmarks.language_model import report, training
from benchmarks.language_model.data import window
from benchmarks.language_model.model import Block, LanguageModel, rotated, turns

SMALL = {"width": 16, "layers": 2, "heads": 2, "length": 48, "every": 2, "windows": 1, "warmup": 2}


@pytest.mark.parametrize("mapping", training.MAPPINGS)
def test_no_byte_sees_those_after_it(mapping):
    name, params = training.MAPPINGS[mapping]
    torch.manual_seed(0)
    model = LanguageModel(16, 2, 2, name, **params)
    x = torch.randint(0, 256, (1, 40))
    changed = x.clone()
    changed[0, 25] += 1 if x[0, 25] < 255 else -1
    before, after = model(x), model(changed)
    assert torch.allclose(before[:, :25], after[:, :25], atol=1e-6)
    assert not torch.allclose(before[:, 25:], after[:, 25:])


def test_products_of_rotated_vectors_depend_on_the_distance_alone():
    q, k = (rotated(torch.randn(8).expand(9, 8), turns(9, 8)) for _ in range(2))
    assert torch.allclose((q @ k.mT)[1:, 1:], (q @ k.mT)[:-1, :-1], atol=1e-5)
    assert not torch.allclose((q @ k.mT)[0], (q @ k.mT)[0, 0], atol=0.1)


def test_a_block_adds_to_what_it_is_given():
    block, x = Block(16, 2, "sparsemax", {}), torch.randn(1, 6, 16)
    for last in (block.out.weight, block.feed[2].weight, block.feed[2].bias):
        torch.nn.init.zeros_(last)
    assert torch.equal(block(x, turns(6, 8)), x)


def test_training_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """By a clock of one second a step: eight seconds, or three and then the rest; other options begin anew."""
    clock = itertools.count()
    monkeypatch.setattr(training.time, "process_time", lambda: float(next(clock)))
    text = (torch.randint(0, 90, (2000,), generator=torch.Generator().manual_seed(0)) ** 2 // 90).to(torch.uint8)

    def train(mapping, seconds, folder, rate=1e-2):
        options = training.Options(mapping, seconds=seconds, learning_rate=rate, **SMALL)
        return options, *training.train(options, text, text, "bytes", tmp_path / folder, lambda line: None)

    for mapping in training.MAPPINGS:
        for folder in ("cut", "whole"):
            (tmp_path / folder).mkdir(exist_ok=True)
        train(mapping, 3.0, "cut")
        _, model, record = train(mapping, 8.0, "cut")
        options, other, whole = train(mapping, 8.0, "whole")
        assert [p for p in record.points if p[0] != 3] == whole.points
        assert [p[0] for p in whole.points] == [0, 2, 4, 6, 8]
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        assert whole.points[0][2] == pytest.approx(8.0, abs=0.1) and whole.points[-1][2] < 7.5  # bits a byte
        training.keep_tensors(model, text, options, tmp_path)
        kept = torch.load(tmp_path / f"{mapping}_qkv.pt", weights_only=True)
        assert kept["q"].shape == (2, 2, 48, 8)
    assert train(mapping, 8.0, "cut", 1e-3)[2].points[-1][2] > whole.points[-1][2]


@pytest.mark.parametrize("mapping", ["sparsemax", "entmax15"])
def test_densities_are_the_share_of_visible_pairs_with_weight(mapping):
    options = training.Options(mapping, **SMALL)
    model, text = training.build(options), torch.arange(60, dtype=torch.uint8)
    for block in model.blocks:
        block.project.weight.data *= 30
    name, params = training.MAPPINGS[mapping]
    for found, (q, k, v) in zip(training.densities(model, text, options), model.attended(text[None, :48].long())):
        _, p = sa.sparse_attention(q, k, v, name, causal=True, need_weights=True, **params)
        assert found == pytest.approx(float((p > 0).sum()) / (2 * 48 * 49 / 2), abs=2e-3) and found < 0.5


def test_windows_and_the_page():
    x, y = window(torch.arange(100, dtype=torch.uint8), 10, 20)
    assert x.shape == y.shape == (1, 20) and torch.equal(x[:, 1:], y[:, :-1])
    points = [(0, 0.0, 8.0), (20, 10.0, 4.0), (40, 20.0, 3.0)]
    assert [report.at_time(points, time) for time in (15.0, 99.0)] == [3.5, 3.0] and report.at_step(points, 20) == 4.0
    faster = [(0, 0.0, 8.1), (20, 5.0, 4.1), (40, 10.0, 3.1), (60, 15.0, 2.5)]
    options = training.asdict(training.Options())
    rows = {
        "softmax": {"options": options, "data": "text", "points": points, "density": [1.0, 1.0]},
        "sparsemax": {"options": options, "data": "text", "points": faster, "density": [0.012, 0.3]},
    }
    speeds, peaks = {"softmax": 1000.0, "sparsemax": 2500.0}, {"softmax": 100.0, "sparsemax": 90.0}
    measured = {"rows": rows, "tokens_per_second": speeds, "peak_mib": peaks}
    page = report.page({**measured, "machine": "a processor", "torch": "2"})
    assert "| sparsemax | 2500 | 2.50 | 90 | 3.100 | 2.500 | 60 | 1.2 %, 30.0 % |" in page
    assert "| softmax | 1000 | 1.00 | 100 | 3.000 | 3.500 | 30 | 100.0 %, 100.0 % |" in page
