"""The language model: it is causal, sees the same windows by every mapping, goes on where it stopped, and its page says what was measured."""

from __future__ import annotations

import pytest
import torch

from tasks.language_model import report, training
from tasks.language_model.data import window
from tasks.language_model.model import LanguageModel

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
    assert torch.allclose(before[:, :25], after[:, :25], atol=1e-6) and not torch.allclose(
        before[:, 25:], after[:, 25:]
    )


def test_the_mapping_matters():
    outs = []
    for name, params in training.MAPPINGS.values():
        torch.manual_seed(0)
        model = LanguageModel(16, 2, 2, name, **params)
        for block in model.blocks:
            block.project.weight.data *= 30
        outs.append(model(torch.arange(60)[None]))
    assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(outs) for b in outs[:i])


def test_training_goes_on_where_it_stopped(tmp_path):
    text = torch.randint(0, 256, (2000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for mapping in training.MAPPINGS:
        options = training.Options(mapping, seconds=0.05, **SMALL)
        model, record = training.train(options, text, text, "bytes", tmp_path, lambda line: None)
        longer = training.Options(mapping, seconds=0.1, **SMALL)
        model, more = training.train(longer, text, text, "bytes", tmp_path, lambda line: None)
        assert more.points[: len(record.points)] == record.points and more.points[-1][1] >= 0.1
        assert len(more.density) == 2 and all(0 < d <= 1 for d in more.density)
        training.keep_tensors(model, text, longer, tmp_path)
        kept = torch.load(tmp_path / f"{mapping}_qkv.pt", weights_only=True)
        assert kept["q"].shape == (2, 2, 48, 8)


def test_windows_and_the_page():
    x, y = window(torch.arange(100, dtype=torch.uint8), 10, 20)
    assert x.shape == y.shape == (1, 20) and torch.equal(x[:, 1:], y[:, :-1])
    points = [(0, 0.0, 8.0), (20, 10.0, 4.0), (40, 20.0, 3.0)]
    assert (
        report.at_time(points, 15.0) == 3.5
        and report.at_time(points, 99.0) == 3.0
        and report.at_step(points, 20) == 4.0
    )
    faster = [(0, 0.0, 8.1), (20, 5.0, 4.1), (40, 10.0, 3.1), (60, 15.0, 2.5)]
    options = training.asdict(training.Options())
    rows = {
        "softmax": {"options": options, "data": "text", "points": points, "density": [1.0, 1.0]},
        "sparsemax": {"options": options, "data": "text", "points": faster, "density": [0.012, 0.3]},
    }
    page = report.page(
        {
            "rows": rows,
            "tokens_per_second": {"softmax": 1000.0, "sparsemax": 2500.0},
            "peak_mib": {"softmax": 100.0, "sparsemax": 90.0},
            "machine": "a processor",
            "torch": "2",
        }
    )
    assert "| sparsemax | 2500 | 2.50 | 90 | 3.100 | 2.500 | 60 | 1.2 %, 30.0 % |" in page
    assert "| softmax | 1000 | 1.00 | 100 | 3.000 | 3.500 | 30 | 100.0 %, 100.0 % |" in page
