"""A table's store made by hand: a fixed mapping and one with a grid, two seeds; `made` is a fixture (conftest.py)."""

import random
from dataclasses import replace

import pytest
from fake_family import keep

from repro.cell import Cell
from repro.plan import Plan
from repro.plan.experiment import read
from repro.plan.published import numbers
from repro.protocol import Prepared, TestSet
from repro.tables import build as tables

COLUMN = {
    "label": "A | B & C_1",
    "grid": "g",
    "select": {"metric": "dev/accuracy", "mode": "max"},
    "show": [{"metric": "test/bleu", "label": "BLEU"}, {"metric": "test/attention_support", "label": "support"}],
    "published": [{"label": "FR-EN (paper)", "dataset": "D", "metrics": ["BLEU"], "against": ["test/bleu"]}],
}
THEIRS = [
    {"mapping": "softmax", "dataset": "D", "metric": "BLEU", "value": 36.38, "decimals": 2},
    {"mapping": "tuned", "dataset": "D", "metric": "BLEU", "value": 36.9, "decimals": 1},
]
RECORDS = numbers({"results": THEIRS})
AMBIGUOUS = numbers({"results": [THEIRS[0], THEIRS[1] | {"ambiguous": "Columns may be swapped."}]})
FACTS = {"name": "toy", "provenance": "generated", "sha256": "abcdef0123456789", "notes": ["Read me."]}
FACTS |= {"sizes": {"train": 1200, "test": 40}}
BASELINES = {"lead": {"test/bleu": 12.345, "test/words": 8}, "constant": {"test/bleu": 1.0, "test/text": "hello there"}}
BASELINES |= {"nearest neighbour": {"test/bleu": 29.7}}

# (row, lam, seed) -> dev accuracy, test BLEU; the best dev point (lam=0.5) is not the best test point
SOFTMAX = {(0, None, 1): (60.0, 30.0), (0, None, 2): (61.0, 31.0)}
TUNED = {(1, 0.0, 1): (70.0, 39.0), (1, 0.0, 2): (50.0, 41.0), (1, 0.5, 1): (65.0, 33.0), (1, 0.5, 2): (66.0, 35.0)}
ONE = {(0, None, 1): (60.0, 30.0), (1, 0.0, 1): (1.0, 2.0)}


@pytest.fixture
def made(store, config):
    """`made(scores, ...)`: (plan, store) whose finished cells have these scores; None makes a cell that is not finished."""

    def make(scores=None, facts=FACTS, unavailable=None, best=None, examples=None, **provenance):
        scores = SOFTMAX | TUNED if scores is None else scores
        page = {"title": "A table: 100% & more", "footers": ["Mind the gap."], "deviations": ["a small model"]}
        named = ("softmax", "softmax"), ("tuned", "m")
        page["rows"] = [{"label": label, "published": label, "mapping": mapping} for label, mapping in named]
        page["columns"] = {"a": COLUMN, "b": COLUMN | {"label": "Gigaword"}}
        used = {"columns": ["a", "b"] if unavailable else ["a"], "seeds": sorted({s for *_, s in scores})}
        page["profiles"] = {"demo": used}
        plan = Plan(read(page, "fake", "demo"), unavailable={1: unavailable} if unavailable else {})
        for (row, lam, seed), pair in scores.items():
            test = TestSet("test", "t", "", facts, baselines=BASELINES)
            made = config(seed=seed, mapping__name="m", mapping__row=row, mapping__lam=lam, train__max_epochs=3)
            cell = Cell(made, "fake_family", Prepared("data", "", facts, (), test), (test,))
            plan.slots.append(replace(cell, row=row, point=() if lam is None else (("mapping.lam", lam),)))
            if pair is not None:
                training = {"dev/accuracy": pair[0], "best_epoch": (best or {}).get(row, 2.0)}
                measured = {"test/bleu": pair[1], "test/attention_support": 2.0 + seed}
                records = examples(row) if examples else ()
                keep(store, cell, training, measured, records, recipe=(7, 8), **provenance)
        return plan, store

    return make


def cell_of(plan, row, lam, seed):
    return next(s for s in plan.at(row, 0) if s.seed == seed and dict(s.point).get("mapping.lam") == lam)


def examples(row: int, better: float = 5.0) -> list[dict]:
    rng = random.Random(row)
    return [{"index": i, "sentence": {"attention_support": rng.random() + better * row}} for i in range(40)]


def block(plan, store, records=RECORDS):
    return tables.build(plan, store, records).blocks[0]
