"""The benchmark of training and decoding: both sides of a ratio do the same work, and the page says what was measured."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

import tasks.fairseq_plugin  # noqa: F401  registers the models
from benchmarks import documents, throughput
from tasks.data.examples import padded
from tasks.layers import attention
from tasks.seq2seq.encode import open_encoded

SIZES = throughput.Sizes(words=30, batch=4, shortest=2, longest=6, beam=3, output=5)
SMALL = ("model.hidden_dim=8", "model.dropout=0")
TINY = {
    "LSTM": ("model=lstm_opennmt", *SMALL, "model.embed_dim=8", "model.init_range=0.8"),
    "Transformer": ("model=transformer_small", *SMALL, "model.ff_dim=8", "model.heads=2"),
}


@pytest.mark.parametrize("model", TINY)
def test_the_plain_loops_do_what_ours_do(model, tmp_path):
    config = throughput.configuration(TINY[model], "softmax", SIZES, tmp_path, "cpu")
    path = throughput.encode(config)
    encoded = open_encoded(path)
    ours = throughput.Updates(config, path, tmp_path)
    plain = throughput.PlainTraining(config, encoded, ours)
    losses = []
    ours.training.read = lambda: losses.extend(one.log["loss"] for one in ours.training.trainer.read())
    for _ in range(throughput.READ_EVERY):
        ours()
        plain()
    assert len(losses) == throughput.READ_EVERY and sum(losses) == pytest.approx(plain.loss, rel=1e-4)
    split = encoded.splits["dev"]
    source, lengths = padded(sorted((split.source[i] for i in range(len(split))), key=lambda row: -len(row)))
    options = throughput.read(throughput.Decode, {"beam": SIZES.beam, "max_len_b": SIZES.output}, "decode")
    with torch.no_grad():
        found = throughput.beam_search(ours.net.eval(), source, lengths, options, 1)
    bare = throughput.plain_model(config, encoded, ours.net).eval()
    by_hand = throughput.plain_search(bare, source, lengths, SIZES.beam, SIZES.output)
    assert [beams[0].ids for beams in found] == by_hand


def test_a_slow_contestant_has_a_small_ratio():
    def busy(seconds):
        def work():
            until = time.process_time() + seconds
            while time.process_time() < until:
                pass

        return work

    ratios, seconds = throughput.turns({"softmax": busy(0.004), "twice": busy(0.008)}, 5, "cpu")
    assert list(ratios) == ["twice"] and len(ratios["twice"]) == 5
    assert all(0.3 < r < 0.7 for r in ratios["twice"]) and 0.0035 < seconds < 0.02


def test_the_page_keeps_its_other_sections_and_shows_what_misses_its_goal():
    ratios = {"sparsemax": [0.9, 0.95, 0.96], "entmax": [0.98] * 3, throughput.PLAIN: [1.0, 1.1, 1.2]}
    training = throughput.Table("LSTM", "training", ratios, 0.5, 100)
    search = throughput.Table("LSTM", "beam search", {"sparsemax": [1.0]}, 2.0, 32)
    section = throughput.markdown([training, search], SIZES, "cpu", "a machine")
    assert "| softmax, tokens/s | 200 |" in section and "| softmax, sentences/s | 16 |" in section
    assert "| sparsemax | **0.95** (0.90-0.96) |" in section and "| entmax | 0.98 (" in section
    assert "| softmax to the plain loop | **0.91** (" in section
    page = throughput.with_section("# Benchmarks\n\n## Forward\n\nfigures\n", section)
    assert page.startswith("# Benchmarks\n\n## Forward\n\nfigures\n\n## Training and decoding\n")
    assert throughput.with_section(page, section) == page


def test_mappings_that_need_more_than_scores_are_left_out():
    found = throughput.names()
    assert found[0] == "softmax" and {"sparsemax", "fusedmax", "oscarmax", "entmax"} <= set(found)
    assert "constrained_softmax" not in found


def test_steps_over_documents_on_both_paths(monkeypatch):
    asked, whole = [], attention.sparse_attention
    monkeypatch.setattr(
        attention, "sparse_attention", lambda *x, **o: asked.append(o["need_weights"]) or whole(*x, **o)
    )
    sizes = documents.Sizes(words=9, batch=4)
    step, density = documents.training("sparsemax", "library", sizes)
    step()
    assert asked == [False] * 2 and 0 < density() < 1
    asked.clear()
    documents.training("sparsemax", "composition", sizes)[0]()
    assert asked == [True] * 2
    monkeypatch.setattr(documents, "memory", lambda mapping, path, sizes: 10.0)
    rows = documents.measure(sizes, 1, ["softmax", "sparsemax"])
    assert [(row.mapping, row.path) for row in rows] == [*itertools.product(("softmax", "sparsemax"), documents.PATHS)]
    assert rows[0].density == 1 and rows[2].density < 1 and min(row.seconds for row in rows) > 0
    assert {"softmax", "sparsemax", "entmax", "fusedmax"} <= set(documents.names())


def test_the_page_of_documents_has_the_times_and_the_trainings():
    times = (("softmax", "library", 0.4), ("softmax", "composition", 0.8), ("sparsemax", "library", 0.2))
    rows = [documents.Row(mapping, path, t, 10.0, 0.5) for mapping, path, t in times]
    config = {
        "data": {"limits": {"train": 4000}},
        "train": {"max_epochs": 4},
        "seed": 1,
        "mapping": {"name": "softmax"},
    }
    cells = [documents.described(config, {"test/accuracy": 81.25, "other": 1.0})]
    page = documents.markdown(rows, cells, documents.Sizes(400, 16), 5)
    assert "takes 0.50 times as long with sparsemax" in page and "0.25 times as long as with softmax when" in page
    assert "| sparsemax | library | 0.20 | 0.50 | 0.09 | 10 | 50.0 % |" in page, "1,563 steps of .2 seconds"
    assert "| softmax | 4,000, 4, 1 | 81.2 |" in page and "other" not in page
