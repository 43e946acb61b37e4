"""Costs of the paper profile: FLOPs against hand counts, hours and disk from them, and every assumption in print."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tasks.commands import costs
from tasks.commands.reproduce import asked, outline
from tasks.config import models
from tasks.config.compose import composer, page
from tasks.config.options import plain

S, T, V = 6, 5, 1000
SOFTMAX = {"name": "softmax", "gamma": 1.0, "at": {}, "grid": {}}


def node(name, **changed):
    return {"name": name, **plain(models.architecture("seq2seq", name).Options()), **changed}


def test_flops_and_parameters_of_an_lstm_by_hand():
    E, H, L = 24, 32, 2
    model = node("lstm", embed_dim=E, hidden_dim=H, layers=L, dropout=0.0)
    found = costs.step("seq2seq", model, SOFTMAX, (S, T), V)
    encoder = S * 2 * 4 * H * ((E + H) + (H + H))
    decoder = T * 2 * 4 * H * ((E + 2 * H) + (H + H))
    scores, read, out = S * 2 * H * H + T * 2 * S * H, T * 2 * S * H, T * 2 * 2 * H * H
    forward = encoder + decoder + scores + read + out + T * 2 * H * V
    assert found.flops == pytest.approx(3 * forward, rel=0.02)  # backward: gradients of both factors
    recurrent = 4 * H * (E + H + 2) + 4 * H * (E + 2 * H + 2) + 2 * 4 * H * (2 * H + 2)
    assert found.parameters == 2 * V * E + recurrent + H * H + 2 * H * H + (H + 1) * V


def test_flops_of_a_transformer_by_hand():
    H, ff, L = 32, 64, 2
    model = node("transformer", hidden_dim=H, ff_dim=ff, heads=4, layers=L)
    found = costs.step("seq2seq", model, SOFTMAX, (S, T), V)

    def attention(queries, keys):
        return 2 * (2 * queries * H * H + 2 * keys * H * H + 2 * queries * keys * H)

    def feed(words):
        return 4 * words * H * ff

    forward = L * (attention(S, S) + feed(S) + attention(T, T) + attention(T, S) + feed(T)) + T * 2 * H * V
    assert found.flops == pytest.approx(3 * forward, rel=0.02)


def test_a_larger_vocabulary_is_what_the_model_over_it_counts(monkeypatch):
    model = node("lstm", embed_dim=8, hidden_dim=8, layers=1, dropout=0.0)
    line = costs.step("seq2seq", model, SOFTMAX, (S, T), 211)
    monkeypatch.setattr(costs, "FEW", 211)
    built = costs.step("seq2seq", model, SOFTMAX, (S, T), 211)
    assert (line.flops, line.parameters) == (built.flops, built.parameters)
    assert line.kept == pytest.approx(built.kept, rel=0.02)


@pytest.fixture(scope="module")
def config():
    with composer() as compose:
        return compose(["task=translation", "profile=paper", "data.source_lang=fr", "data.target_lang=en"])


@pytest.fixture
def quick(monkeypatch):
    """A counted step of round numbers."""
    one = costs.Counted(flops=4.0e9, launches=2000.0, kept=1.0e7, parameters=8.0e7)
    monkeypatch.setattr(costs, "step", lambda *_: one)
    return one


def test_hours_memory_and_disk_of_one_cell(config, quick, monkeypatch):
    cost = costs.Counter().of(config)
    assert cost.tokens == 13 * 1_000_000 * (25 + 22 + 1)
    assert cost.flops == pytest.approx(13e6 * 4.0e9 / 0.98)
    assert cost.hours["A100"] == pytest.approx(cost.flops / (0.35 * 19.5e12) / 3600)
    assert cost.hours["H100"] == pytest.approx(13e6 / 64 * 2000 * 10e-6 / 3600)  # kernels are launched no faster there
    assert (cost.weights, cost.checkpoints) == (4 * 8.0e7, 3 * 4 * 8.0e7)  # SGD keeps nothing
    assert cost.memory == pytest.approx(2 * 4 * 8.0e7 + 64 * 1.0e7 * 100 / 48)  # 50 + 50 tokens, mean 25 + 23
    assert cost.encoded == 4 * 48 * 1_000_000
    half = config | {"train": config["train"] | {"precision": "bf16"}}
    assert "recurrent 0.1 of bf16" in costs.Counter().of(half).speed
    adam = config | {"optim": config["optim"] | {"name": "adam"}}
    assert costs.Counter().of(adam).checkpoints == 3 * cost.checkpoints


def test_a_model_is_counted_once(config, monkeypatch):
    made = []
    monkeypatch.setattr(costs, "step", lambda *a: made.append(a) or costs.Counted(1.0, 1.0, 1.0, 1.0))
    counter = costs.Counter()
    for seed in range(5):
        counter.of(config | {"seed": seed, "mapping": config["mapping"] | {"gamma": 0.1 + seed}})
    assert len(made) == 1
    assert counter.of(config | {"data": config["data"] | {"name": "files"}}) is None


def test_the_printed_plan_names_all_it_assumes(quick):
    loaded, rest = asked(["laha2018_table2", "laha2018_table3", "martins2020_table2"], ["profile=paper"])
    loaded = [replace(one, rows=one.rows[:1], seeds=one.seeds[:1]) for one in loaded]
    slots = outline(loaded, rest)
    cells = [(one.columns[w.column].label, w) for one, group in zip(loaded, slots) for w in group]
    told = costs.text(cells, costs.Counter().of)
    for said in (
        "baseline_1m_enfr: 1,000,000 examples, 25 + 23 tokens", "gigaword: 3,803,957 examples", "56% padding", "A100 fp32 19.5, TF32 156, bf16 312",
        "H100 fp32 67, TF32 495, bf16 989", "recurrent 0.35 of fp32", "attention 0.5 of fp32", "10 microseconds", "3 checkpoints", "300 bytes an output",
        "Not counted (-): 3 cells", "No hour was measured on these cards", "without temporaries",
    ):  # fmt: skip
        assert said in told, said
    rows = [line for line in told.splitlines() if re.match(r"  (FR-EN|in all) ", line)]
    assert len(rows) == 2 and all(len(row.split()) >= len(costs.HEAD) - 1 for row in rows)


def test_every_data_set_of_the_paper_settings_has_lengths():
    used = set()
    for one in ("translation", "summarization", "snli", "imdb", "vqa"):
        chosen = page("setting", f"{one}_paper")["defaults"]
        used |= {d["/data"] for d in chosen if isinstance(d, dict) and "/data" in d}
    assert used <= set(costs.LENGTHS)
