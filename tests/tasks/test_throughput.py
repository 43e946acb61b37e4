"""Benchmarks of training: mappings take turns, the language model is causal; their pages."""

from __future__ import annotations

import itertools

import pytest
import torch

import sparse_attention as sa
import tasks.fairseq_plugin  # noqa: F401  registers the models
from benchmarks import attention as bench
from benchmarks import pages, throughput
from benchmarks.language_model import training
from benchmarks.language_model.model import Block, LanguageModel, rotated, turns

SIZES = throughput.Sizes(words=30, batch=4, shortest=2, longest=6, beam=3, output=5)
SMALL = ("model.hidden_dim=8", "model.dropout=0")
TINY = {"LSTM": ("model=lstm_opennmt", *SMALL, "model.embed_dim=8", "model.init_range=0.8")}
TINY["Transformer"] = ("model=transformer_small", *SMALL, "model.ff_dim=8", "model.heads=2")


def test_mappings_take_turns_in_training_and_search(monkeypatch, tmp_path):
    monkeypatch.setattr(throughput, "MODELS", TINY)
    for model in TINY:
        tables = throughput.measure(model, ["sparsemax"], SIZES, tmp_path / model, "cpu", 3, lambda line: None)
        assert tables[0].tokens >= SIZES.batch * (SIZES.shortest + 1) and tables[1].tokens == SIZES.batch
        for one in tables:
            assert [*one.ratios] == ["sparsemax"] and len(one.ratios["sparsemax"]) == 3 and one.seconds > 0


def test_the_page_keeps_its_other_sections_and_shows_what_misses_its_goal():
    ratios = {"sparsemax": [0.9, 0.95, 0.96], "entmax": [0.98] * 3}
    training = throughput.Table("LSTM", "training", ratios, 0.5, 100)
    search = throughput.Table("LSTM", "beam search", {"sparsemax": [1.0]}, 2.0, 32)
    section = throughput.markdown([training, search], SIZES, "cpu", "a machine")
    assert "| softmax, tokens/s | 200 |" in section and "| softmax, sentences/s | 16 |" in section
    assert "| sparsemax | **0.95** (0.90-0.96) |" in section and "| entmax | 0.98 (" in section
    first, fused = "# Benchmarks\n\n## Forward\n\nfigures\n", "## Fused attention\n\nmore\n"
    page = pages.renewed(pages.renewed(first, pages.PARTS[2], section), pages.PARTS[1], fused)
    assert page == f"{first}\n{fused}\n{section}" and pages.renewed(page, pages.PARTS[1], fused) == page
    assert pages.renewed(page, "", "# New\n") == f"# New\n\n{fused}\n{section}"


def test_steps_over_documents_on_both_paths(weights_asked, monkeypatch):
    sizes = bench.Documents(words=9, batch=4)
    step, density = bench.document_training("sparsemax", "library", sizes)
    step()
    assert weights_asked == [False] * 2 and 0 < density() < 1
    weights_asked.clear()
    bench.document_training("sparsemax", "composition", sizes)[0]()
    assert weights_asked == [True] * 2
    monkeypatch.setattr(bench, "peak_memory", lambda step, *case: 10.0)
    rows = bench.measure_documents(sizes, 0.01, ["softmax", "sparsemax"])
    assert [(row.mapping, row.path) for row in rows] == [*itertools.product(("softmax", "sparsemax"), bench.PATHS)]
    assert rows[0].density == 1 and rows[2].density < 1 and min(row.seconds for row in rows) > 0
    for found in (bench.fused_names(), throughput.names()):  # those that need scores alone
        assert {"softmax", "sparsemax", "entmax", "fusedmax"} <= {*found} and "constrained_softmax" not in found


TRAINED = {"width": 16, "layers": 2, "heads": 2, "length": 48, "every": 2, "windows": 1, "warmup": 2}


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


def test_products_of_rotated_vectors_depend_on_the_distance_alone_and_a_block_adds():
    q, k = (rotated(torch.randn(8).expand(9, 8), turns(9, 8)) for _ in range(2))
    assert torch.allclose((q @ k.mT)[1:, 1:], (q @ k.mT)[:-1, :-1], atol=1e-5)
    assert not torch.allclose((q @ k.mT)[0], (q @ k.mT)[0, 0], atol=0.1)
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
        options = training.Options(mapping, seconds=seconds, learning_rate=rate, **TRAINED)
        return options, *training.train(options, text, text, "bytes", tmp_path / folder, lambda line: None)

    for mapping in training.MAPPINGS:
        for folder in ("cut", "whole"):
            (tmp_path / folder).mkdir(exist_ok=True)
        train(mapping, 3.0, "cut")
        _, model, record = train(mapping, 8.0, "cut")
        _, other, whole = train(mapping, 8.0, "whole")
        assert [p for p in record["points"] if p[0] != 3] == whole["points"]
        assert [p[0] for p in whole["points"]] == [0, 2, 4, 6, 8]
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        assert whole["points"][0][2] == pytest.approx(8.0, abs=0.1) and whole["points"][-1][2] < 7.5  # bits a byte
        kept = torch.load(tmp_path / "cut" / f"{mapping}_training.pt", weights_only=True)["model"]
        assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert train(mapping, 8.0, "cut", 1e-3)[2]["points"][-1][2] > whole["points"][-1][2]


@pytest.mark.parametrize("mapping", ["sparsemax", "entmax15"])
def test_densities_are_the_share_of_visible_pairs_with_weight(mapping):
    options = training.Options(mapping, **TRAINED)
    model, text = training.build(options), torch.arange(60, dtype=torch.uint8)
    for block in model.blocks:
        block.project.weight.data *= 30
    name, params = training.MAPPINGS[mapping]
    for found, (q, k, v) in zip(training.densities(model, text, options), model.attended(text[None, :48].long())):
        _, p = sa.sparse_attention(q, k, v, name, causal=True, need_weights=True, **params)
        assert found == pytest.approx(float((p > 0).sum()) / (2 * 48 * 49 / 2), abs=2e-3) and found < 0.5


def test_a_target_is_the_next_byte():
    x, y = training.window(torch.arange(100, dtype=torch.uint8), 10, 20)
    assert x.shape == y.shape == (1, 20) and torch.equal(x[:, 1:], y[:, :-1])
