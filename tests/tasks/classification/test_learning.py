"""Whole cells on generated texts: every kind of attention learns."""

from __future__ import annotations

import csv
import json

import pytest

from sparse_attention.repro import cell as cells
from sparse_attention.repro.store import Store

REVIEWS = (
    "task=imdb", "model=imdb_bilstm", "optim=adam", "profile=demo", "task.data.name=toy_reviews", "model.embed_dim=16", "model.hidden_dim=12",
    "model.score_dim=12", "model.dropout=0.0", "optim.lr=0.02", "optim.warmup_updates=20", "train.batch_size=20", "runtime.device=cpu",
)  # fmt: skip
PAIRS = (
    "task=snli", "model=snli_attentive", "optim=adam", "profile=demo", "task.data.name=toy_entailment", "model.embed_dim=32", "model.embed_range=2.0",
    "model.hidden_dim=32", "model.dropout=0.0", "model.l2=0.0", "optim.lr=0.005", "train.batch_size=20", "train.max_epochs=12",
    "runtime.device=cpu", "task.data.limits.train=3000",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(prepared_cell, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("cells"))

    def run(*overrides: str):
        cell = prepared_cell(list(overrides))
        outcome = cells.run(cell, store)
        assert outcome.state in ("done", "skipped"), outcome.error  # skipped: another test trained it
        entry = cell.entry(store)
        return entry.metrics()["metrics"], entry, cell

    return run


@pytest.mark.parametrize(
    ("mapping", "more", "least"),
    [
        ("softmax", (), 97), ("sparsemax", (), 97), ("continuous_softmax", (), 90), ("continuous_sparsemax", (), 90),
        ("continuous_softmax", ("model.discrete=softmax",), 95), ("continuous_sparsemax", ("model.discrete=softmax",), 95),
    ],
)  # fmt: skip
def test_reviews_are_learned(run, mapping, more, least):
    metrics, entry, cell = run(*REVIEWS, f"mapping={mapping}", *more)
    assert metrics["test/accuracy"] >= least
    assert cell.prepared.baselines["majority"]["test/accuracy"] < 60
    records = list(entry.predictions())
    assert metrics["test/accuracy"] == pytest.approx(
        sum(r["label"] == r["output"] for r in records) / len(records) * 100
    )
    if mapping == "sparsemax":  # the biLSTM tells neighbours of the planted words: where exactly it looks is not tested
        assert metrics["test/attention_zeros"] > 0.3 and metrics["test/attention_marked_texts"] == 100
    if mapping == "softmax":
        assert metrics["test/attention_zeros"] == 0


@pytest.mark.parametrize(("mapping", "least"), [("softmax", 95), pytest.param("sparsemax", 50, marks=pytest.mark.slow)])
def test_pairs_are_learned(run, mapping, least):
    """Which colour belongs to which thing: three classes of equal size. Sparsemax needs more epochs than these for all of it."""
    metrics, _, _ = run(*PAIRS, f"mapping={mapping}")
    assert metrics["test/accuracy"] > least


def test_stored_attention_belongs_to_the_stored_tokens(run):
    from safetensors.torch import load_file

    _, entry, _ = run(*REVIEWS, "mapping=continuous_sparsemax", "model.discrete=softmax")
    stored = load_file(entry.path("attention.safetensors"))
    shown = [r for r in entry.predictions() if "source_tokens" in r]
    assert len(shown) == 50 == len(stored)
    for record in shown:
        p = stored[f"test/{record['index']}"]
        assert p.shape == (2, len(record["source_tokens"])) and record["output_tokens"] == ["words", "density"]
        assert float(p[0].float().sum()) == pytest.approx(1, abs=1e-2)
    json.dumps(shown)


def test_every_column_of_the_experiments_composes():
    from tasks import compose

    with compose.composer() as composed:
        for name, rows in (("niculae2017_table1", 4), ("martins2020_table1", 14)):
            for profile in ("demo", "cpu", "paper"):
                experiment = compose.experiment(name, profile)
                assert len(experiment["rows"]) == (rows if profile == "paper" or rows == 4 else 6)
                for column in experiment["columns"]:
                    for row in experiment["rows"]:
                        config = composed([*column["overrides"], *row["overrides"]])
                        assert config["model"]["name"] in ("sa_snli", "sa_imdb")


@pytest.mark.slow
def test_two_processes_over_gloo(run):
    """Each process takes its share of the batches: half the updates of one, and the reviews are still learned."""
    metrics, entry, _ = run(*REVIEWS, "mapping=sparsemax", "train.processes=2", "train.batch_size=10")
    with open(entry.path("curves.csv"), newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert float(rows[-1]["updates"]) == len(rows) * 600 / 20
    assert metrics["test/accuracy"] >= 95
