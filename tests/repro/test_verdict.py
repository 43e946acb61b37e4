"""A verdict is given where everything is as in the paper, and nowhere else; in the metric's own unit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sparse_attention.repro import plan as plans
from sparse_attention.repro.cell import run
from sparse_attention.repro.protocol import Metric
from sparse_attention.repro.published import Published, lookup
from sparse_attention.repro.stats import Summary
from sparse_attention.repro.table import build
from sparse_attention.repro.verdict import Verdict, judge

BLEU = Metric("bleu", "BLEU points", 1, 2, 1.0, "", "bleu")
PRINTED = Published(36.0, 2, "BLEU", "d")
RECORDS = [{"mapping": "plain", "dataset": "D", "metric": "S", "value": 49.8, "decimals": 1}]


@pytest.mark.parametrize(
    "mean, std, n, expected",
    [
        (36.9, None, 1, "agrees"), (35.1, None, 1, "agrees"), (37.2, None, 1, "above"), (34.9, None, 1, "below"),
        (37.2, 0.5, 4, "agrees"),  # 1.0 + 2 * 0.5 / 2 = 1.5
        (37.6, 0.5, 4, "above"),
    ],
)  # fmt: skip
def test_the_band_is_the_tolerance_and_two_standard_errors(mean, std, n, expected):
    assert judge(Summary(mean, std, n), PRINTED, BLEU) == Verdict(expected)
    assert judge(Summary(mean, std, n), PRINTED, BLEU, ["why"]).text == "not comparable: why"


def test_the_band_is_in_the_metric_s_own_unit():
    f1 = Metric("f1", "share", 1, 3, 0.01, "", None)
    assert judge(Summary(0.90, None, 1), Published(0.10, 2, "F1", "d"), f1).word == "above"
    assert judge(Summary(0.905, None, 1), Published(0.90, 2, "F1", "d"), f1).word == "agrees"
    assert judge(Summary(36.9, None, 1), PRINTED, replace(BLEU, tolerance=0.7)).word == "above"


@pytest.mark.parametrize(
    "ours, printed, metric, said",
    [
        (None, PRINTED, BLEU, "no finished cell"), (Summary(math.nan, None, 1), PRINTED, BLEU, "not a number"),
        (Summary(36.0, None, 1), replace(PRINTED, note="columns"), BLEU, "ambiguous"),
        (Summary(36.0, None, 1), PRINTED, replace(BLEU, tolerance=None), "no tolerance is stated for bleu"),
        (Summary(36.0, None, 1), PRINTED, None, "no tolerance"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_held_against_each_other(ours, printed, metric, said):
    found = judge(ours, printed, metric)
    assert found.word == "not comparable" and said in found.text


def test_lookup_needs_all_three_names():
    records = [{"mapping": "m", "dataset": "d", "metric": "BLEU", "value": 36, "decimals": 1, "ambiguous": "columns"}]
    assert lookup(records, "m", "d", "BLEU") == Published(36.0, 1, "BLEU", "d", "columns")
    assert lookup(records, "m", "d", "BLEU").text() == "36.0?"
    for wrong in (("x", "d", "BLEU"), ("m", "x", "BLEU"), ("m", "d", "x")):
        assert lookup(records, *wrong) is None


@pytest.fixture
def judged(experiment, tools, store, tmp_path):
    """`judged(change, overrides, ...)`: the verdict on the first row of a run under the paper's profile, through everything."""

    def make(
        change=lambda page: None, overrides=(), profile="paper", records=RECORDS, before=lambda cells: None
    ) -> Verdict:
        def page_of(page):
            page["columns"]["a"]["published"] = [
                {"label": "paper", "dataset": "D", "metrics": ["S"], "against": ["test/score"]}
            ]
            change(page)

        (plan,) = plans.make([experiment(page_of, profile)], tools, overrides)
        cells = list(plan.cells.values())
        for cell in cells:
            run(cell, store)
        before([s.cell for s in plan.at(0, 0)])
        (verdict,) = build(plan, store, records).blocks[0].rows[0].verdicts
        return verdict

    return make


def test_the_paper_s_setting_gets_a_verdict(judged):
    assert judged() == Verdict("agrees")


@pytest.mark.parametrize(
    "override", ["runtime.threads=2", "paths.outputs=x", "seed=1", "logger.name=csv", "launcher.name=local"]
)
def test_where_and_how_it_runs_costs_no_verdict(judged, override):
    assert judged(overrides=[override]) == Verdict("agrees")


def column(**changes):
    return lambda page: page["columns"]["a"].update(changes)


PAPER = {"columns": ["a"], "seeds": [1]}
SHOW = [{"metric": m, "label": m} for m in ("test/score", "test/other", "duc/score")]


@pytest.mark.parametrize(
    "change, options, said",
    [
        (lambda page: None, {"profile": "demo"}, "profile demo"),
        (lambda page: page["profiles"].update(paper=PAPER), {}, "claims no comparison"),
        (lambda page: page.update(not_comparable="scored on val"), {}, "scored on val"),
        (lambda page: page["profiles"].update(paper=PAPER | {"comparable": True, "not_comparable": "no grid"}), {}, "no grid"),
        (column(not_comparable="which column is FR-EN is ambiguous"), {}, "which column is FR-EN"),
        (lambda page: None, {"records": [RECORDS[0] | {"ambiguous": "swapped?"}]}, "reading of the printed number"),
        (lambda page: None, {"overrides": ["train.max_epochs=2"]}, "override train.max_epochs=2"),
        (lambda page: None, {"overrides": ["data.content=mine"]}, "override data.content=mine"),
        (lambda page: None, {"overrides": ["decode.beam=1"]}, "override decode.beam=1"),
        (lambda page: None, {"overrides": ["+optim.foo=2"]}, "override +optim.foo=2"),
        (column(overrides=["data.shortfalls=200 of 900 pairs"]), {}, "200 of 900 pairs"),
        (column(overrides=["data.test_shortfalls=generated text"]), {}, "generated text"),
        (column(overrides=["data.shortfalls=tiny stands for a corpus"]), {}, "tiny stands for a corpus"),
        (column(label="DE-EN; stands for IWSLT", overrides=["data.shortfalls=tiny stands for a corpus"]), {}, "tiny stands for IWSLT"),
        (column(overrides=["data.testless=1"]), {}, "no test set 'test'"),
        (column(show=SHOW, evaluate=["duc"], published=[{"label": "p", "dataset": "D", "metrics": ["S"], "against": ["test/other"]}]),
         {}, "no tolerance is stated for other"),
        (column(overrides=["task.behaviour=raise"]), {}, "1 of 1 cells are not there"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_ways_of_not_being_comparable(judged, change, options, said):
    verdict = judged(change, **options)
    assert verdict.word == "not comparable" and any(said in why for why in verdict.why)


def test_a_plugin_may_have_replaced_a_mapping(judged, tmp_path):
    (tmp_path / "mine.py").write_text("x = 1")
    assert "plugin mine.py" in judged(overrides=[f"plugins={tmp_path / 'mine.py'}"]).why


def test_a_damaged_cell_is_a_lost_one(judged, store):
    found = judged(before=lambda cells: [c.entry(store).path("weights.safetensors").write_text("x") for c in cells])
    assert "1 of 1 cells are not there" in found.text


def test_a_shortfall_that_was_stored_still_counts(judged, store, monkeypatch):
    """The loader of today may say less than the one that the cell was trained with."""
    import fake_family

    judged(column(overrides=["data.shortfalls=a part"]))
    real = fake_family.prepare
    monkeypatch.setattr(fake_family, "prepare", lambda config, progress: replace(real(config, progress), shortfalls=()))
    assert judged(column(overrides=["data.shortfalls=a part"])).why == ("a part",)


def test_a_row_of_one_s_own_has_no_verdict(experiment, tools, store):
    def change(page):
        page["rows"][0]["published"] = ""
        page["columns"]["a"]["published"] = [
            {"label": "paper", "dataset": "D", "metrics": ["S"], "against": ["test/score"]}
        ]

    (plan,) = plans.make([experiment(change, "paper")], tools)
    assert build(plan, store, RECORDS).blocks[0].rows[0].verdicts == [None]


def test_all_reasons_are_given(judged):
    found = judged(column(overrides=["data.shortfalls=few"]), profile="demo", overrides=["optim.lr=3"])
    assert (
        found.why[:2] == ("profile demo", "the experiment claims no comparison") and "override optim.lr=3" in found.why
    )
    assert "few" in found.why
