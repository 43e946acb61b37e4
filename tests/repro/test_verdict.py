"""A verdict is given where everything is as in the paper, and nowhere else; in the metric's own unit."""

import math
from dataclasses import replace

import fake_family
import pytest

from repro.cell import run
from repro.files import read_json, write_json
from repro.plan.published import Published, numbers
from repro.protocol import Metric
from repro.statistics import Mean, mean_of
from repro.store import provenance
from repro.tables.build import build
from repro.tables.verdict import APART, MISSED, OPEN, REPRODUCED, Verdict, judge

BLEU = Metric("bleu", "BLEU points", 1, 2, 1.0, "", "bleu")
PRINTED = Published(36.0, 2, "BLEU", "d")
RECORD = {"mapping": "plain", "dataset": "D", "metric": "S", "value": 49.8, "decimals": 1}


def records(row=None, data=None, chosen=(), **record):
    """The page of printed numbers with another row, data set or record."""
    page = {"rows": {"plain": {"mapping": "softmax"} | (row or {})}, "chosen": chosen, "results": [RECORD | record]}
    page["datasets"] = {"D": {"data": "invented", "S": "score"} | (data or {})}
    return numbers(page)


RECORDS = records()


def column(**changes):
    return lambda page: page["columns"]["a"].update(changes)


def of(*runs: float) -> Mean:
    return mean_of(runs)


def test_no_interval_leaves_the_range_of_its_score():
    assert "90 % interval [0.00, 48.54] crosses" in judge(of(1.0, 14.0), replace(PRINTED, value=8.0), BLEU).text
    highest = {"share": 1, "F1 (0-1)": 1, "%": 100, "ROUGE points": 100, "words": math.inf}
    assert {u: replace(BLEU, unit=u).bounds for u in highest} == {u: (0, high) for u, high in highest.items()}
    assert replace(BLEU, unit="nats").bounds == (-math.inf, math.inf)
    assert replace(BLEU, unit="%", better=0).bounds == (-math.inf, math.inf), "a change in per cent can be negative"


@pytest.mark.parametrize(
    "runs, printed, word, said",
    [
        ((36.2, 35.9, 36.1), 36.0, REPRODUCED, "90 % interval [35.81, 36.32] within 36.00 ± 1"),
        ((36.7, 36.9, 36.8), 36.0, REPRODUCED, "within"),
        ((36.8, 37.0, 36.9), 36.0, OPEN, "crosses the edge of 36.00 ± 1; about 5 seeds of this spread would decide"),
        ((38.0, 38.1, 38.2), 36.0, MISSED, "[37.93, 38.27] outside 36.00 ± 1"),
        ((34.0, 34.1, 34.2), 36.0, MISSED, "outside"),
        ((27.17, 44.65, 43.26), 47.1, OPEN, "crosses"),  # 38.36 ± 9.69
        ((-5.0, 20.0, 45.0), 20.0, OPEN, "over 100 seeds would be needed"),  # 20 ± 25
        ((36.0,), 36.0, OPEN, "one seed has no spread"), ((80.0,), 36.0, OPEN, "one seed has no spread"),
        ((36.0, 36.0, 36.0), 36.0, OPEN, "all 3 seeds have the same score"),
        ((36.0, math.nan, 36.0), 36.0, OPEN, "not a number"), ((36.0, math.inf, 36.0), 36.0, OPEN, "not a number"),
    ],
)  # fmt: skip
def test_three_outcomes(runs, printed, word, said):
    found = judge(of(*runs), replace(PRINTED, value=printed), BLEU)
    assert found.word == word and said in found.text
    lower = judge(of(*runs), replace(PRINTED, value=printed), replace(BLEU, better=-1))
    assert lower == found, "which way is better is no matter"
    assert judge(of(*runs), PRINTED, BLEU, ["why"]).text == "not comparable: why"
    assert judge(of(*runs), replace(PRINTED, value=printed), BLEU, doubt=["still learning"]).word == OPEN


def test_the_interval_is_that_of_two_one_sided_t_tests():
    """Against scipy: reproduced exactly where both tests reject at 5 %."""
    from scipy import stats as reference

    runs, seen = [35.6, 36.3, 36.5, 36.1], set()
    for printed in [34.5 + i / 20 for i in range(70)]:
        low = reference.ttest_1samp(runs, printed - 1.0, alternative="greater").pvalue
        high = reference.ttest_1samp(runs, printed + 1.0, alternative="less").pvalue
        word = judge(of(*runs), replace(PRINTED, value=printed), BLEU).word
        assert (word == REPRODUCED) == (max(low, high) < 0.05)
        below = reference.ttest_1samp(runs, printed - 1.0, alternative="less").pvalue
        above = reference.ttest_1samp(runs, printed + 1.0, alternative="greater").pvalue
        assert (word == MISSED) == (min(below, above) < 0.05)
        seen.add(word)
    assert seen == {REPRODUCED, OPEN, MISSED}


def test_the_tolerance_is_in_the_metric_s_own_unit():
    f1 = Metric("f1", "share", 1, 3, 0.01, "", None)
    assert judge(of(0.90, 0.901), Published(0.10, 2, "F1", "d"), f1).word == MISSED
    assert judge(of(0.902, 0.901), Published(0.90, 2, "F1", "d"), f1).word == REPRODUCED
    assert judge(of(36.81, 36.80), PRINTED, replace(BLEU, tolerance=0.7)).word == MISSED
    apart = [((0.36, 0.37), 36.0, f1), ((36.0, 36.1), 0.36, BLEU), ((36.0, 36.1), 360.0, BLEU)]
    apart += [((81.6, 81.7), 0.8166, replace(BLEU, unit="%")), ((0.81, 81.0), 0.81, f1)]
    for ours, printed, metric in apart:
        found = judge(of(*ours), replace(PRINTED, value=printed), metric)
        assert found.word == APART and "is not in the unit of" in found.text


@pytest.fixture
def judged(experiment, tools, store, tmp_path, monkeypatch):
    """`judged(change, overrides, ...)`: the verdict on the first row of a run under the paper's profile, through everything."""

    monkeypatch.setattr(provenance, "code_version", lambda: {"commit": "cafe", "dirty": False})

    def make(change=lambda page: None, overrides=(), profile="paper", records=RECORDS, before=lambda levels: None):
        def page_of(page):
            printed = {"label": "paper", "dataset": "D", "metrics": ["S"], "against": ["test/score"]}
            page["columns"]["a"]["published"] = [printed]
            page["profiles"]["paper"]["seeds"] = [1, 2, 3]
            del page["rows"][1:]
            change(page)

        (plan,) = fake_family.planned([experiment(page_of, profile)], tools, overrides)
        cells = list(plan.cells.values())
        for cell in cells:
            run(cell, store)
        first = plan.at(0, 0)
        before([(cell.entry(store), *(cell.evaluation(store, t) for t in cell.tests)) for cell in first])
        return build(plan, store, records).blocks[0].rows[0].verdicts[0]

    return make


def test_the_paper_s_setting_gets_a_verdict(judged):
    assert judged(lambda page: page.update(deviations=["with oscarmax: of other rows"])).word == REPRODUCED
    assert judged() == Verdict(REPRODUCED, ("90 % interval [49.6, 50.0] within 49.8 ± 1",))


# where and how it runs
HARMLESS = ("runtime.threads=2", "+paths.outputs=x", "logger.name=csv", "++launcher.name=local")


@pytest.mark.parametrize(
    "options, word",
    [
        *(({"overrides": [override]}, REPRODUCED) for override in HARMLESS),
        ({"records": records(value=45.0)}, MISSED),
        ({"records": records(value=48.8)}, OPEN),
    ],
)
def test_a_verdict_is_about_the_number_and_not_about_where_it_was_run(judged, options, word):
    assert judged(**options).word == word


PAPER = {"columns": ["a"], "seeds": [1]}
SHOW = [{"metric": m, "label": m} for m in ("test/score", "test/other", "duc/score")]
TYPED = ("~decode.beam=1", "+data.limits=10", "data.content=mine")
IN_THE_PAGE = {f"{key}=1": f"the experiment sets {key.lstrip('+')}" for key in ("+train.max_epochs", "data.limits")}
IN_THE_PAGE |= {"data.shortfalls=200 of 900 pairs": "200 of 900 pairs", "data.test_shortfalls=generated": "generated"}


@pytest.mark.parametrize(
    "change, options, said",
    [
        (lambda page: None, {"profile": "demo"}, "profile demo"),
        (lambda page: page["profiles"].update(paper=PAPER), {}, "does not claim to be comparable"),
        (lambda page: page.update(not_comparable="scored on val"), {}, "scored on val"),
        (lambda page: page.update(deviations=["two layers"]), {}, "deviation: two layers"),
        (lambda page: page["profiles"].update(paper=PAPER | {"comparable": True, "not_comparable": "no grid"}), {}, "no grid"),
        (column(not_comparable="which column is FR-EN is ambiguous"), {}, "which column is FR-EN"),
        (lambda page: None, {"records": records(ambiguous="swapped?")}, "reading of the printed number"),
        (lambda page: None, {"records": numbers({"results": [RECORD]})}, "does not define 'plain' on 'D'"),
        (lambda page: None, {"records": records({"mapping": "sparsemax"})}, "mapping softmax where the paper has sparsemax"),
        (lambda page: None, {"records": records({"differs": "solved to 1e-2"})}, "solved to 1e-2"),
        (lambda page: None, {"records": records(data={"data": "imdb"})}, "data set invented where the paper has imdb"),
        (lambda page: None, {"records": records(data={"S": "recall"})}, "our score against the paper's S, which is recall"),
        (lambda page: None, {"records": records(value=0.498)}, "not in the unit"),
        (lambda page: page["rows"][0].update(overrides=["mapping.mode=exact"]), {}, "computed with mode=exact"),
        (lambda page: page["rows"][0].update(mapping="sparsemax"), {}, "mapping sparsemax where the paper has softmax"),
        (column(select={"metric": "test/score"}), {}, "chosen by test/score, not on dev"),
        (lambda page: page["rows"][0].update(grids={"g": {"train.max_epochs": [1]}}), {}, "the experiment sets train.max_epochs"),
        (column(show=[{"metric": "dev/score", "label": "s"}], published=[{"label": "p", "dataset": "D", "metrics": ["S"], "against": ["dev/score"]}]),
         {}, "a dev score against a test number"),
        *((lambda page: None, {"overrides": [typed]}, f"override {typed}") for typed in TYPED),
        *((column(overrides=[line]), {}, said) for line, said in IN_THE_PAGE.items()),
        (column(label="DE-EN; stands for IWSLT", overrides=["data.shortfalls=tiny stands for a corpus"]), {}, "tiny stands for IWSLT"),
        (column(overrides=["data.testless=1"]), {}, "no test set 'test'"),
        (column(show=SHOW, evaluate=["duc"], published=[{"label": "p", "dataset": "D", "metrics": ["S"], "against": ["test/other"]}]),
         {}, "no tolerance is stated for other"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_ways_of_not_being_comparable(judged, change, options, said):
    verdict = judged(change, **options)
    assert verdict.word == APART and any(said in why for why in verdict.why)


def test_a_plugin_may_have_replaced_a_mapping(judged, tmp_path):
    (tmp_path / "mine.py").write_text("x = 1")
    assert "plugin mine.py" in judged(overrides=[f"plugins={tmp_path / 'mine.py'}"]).why


def edited(name: str, **values):
    """`before=edited(...)`: the first cell's training and evaluation say otherwise."""

    def edit(levels):
        for level in levels[0]:
            write_json(level.path(name), read_json(level.path(name)) | values)
            level.finish()

    return edit


def lost(name: str, kept: int = 0, unnoticed: bool = False):
    """`before=lost(...)`: the trainings behind the first `kept` have lost a file, and their manifests say so or not."""

    def lose(levels):
        for entry, *_ in levels[kept:]:
            entry.path(name).unlink()
            if unnoticed:
                entry.finish()

    return lose


IN_DOUBT = {"records": records(chosen=["task.behaviour"])}
SEEDS = {"columns": ["a"], "comparable": True}
NONE = ["3 of 3 cells are missing", "no finished cell has this score"]
ALONE = "one seed has no spread; two or more are needed"
LEARNING = "still learning: +1.00 [+1.00, +1.00] an epoch at the end"
OLD = [f"{part} of recipe 9, today's is 1" for part in ("training", "evaluation")]
NO_CURVE = ["not known: best epoch 1 of 1, fewer than 3"]
DIRTY = {"commit": "cafe", "dirty": True}


@pytest.mark.parametrize(
    "change, options, why",
    [
        (lambda page: None, {"overrides": ["seed=1"]}, [ALONE]),
        (lambda page: page["profiles"].update(paper=SEEDS | {"seeds": [1]}), {}, [ALONE]),
        (lambda page: page["profiles"].update(paper=SEEDS | {"seeds": [2, 2, 2]}), {}, [ALONE]),
        (lambda page: None, {"before": lost("weights.safetensors", 1)}, ["2 of 3 cells are missing", ALONE]),
        (lambda page: None, {"before": lost("weights.safetensors")}, NONE),
        (column(overrides=["task.behaviour=raise"]), IN_DOUBT, NONE),
        (column(overrides=["task.behaviour=learning"]), IN_DOUBT, [LEARNING]),
        (lambda page: None, {"before": lost("curves.csv", unnoticed=True)}, NO_CURVE),
        (lambda page: None, {"before": edited("provenance.json", code=DIRTY)}, ["the code had uncommitted changes"]),
        (lambda page: None, {"before": edited("provenance.json", code={})}, ["the code's version is not recorded"]),
        (lambda page: None, {"before": edited("metrics.json", recipe=9)}, OLD),
    ],
)
def test_what_the_run_leaves_in_doubt_is_inconclusive(judged, change, options, why):
    """All of these have the printed score, or would."""
    found = judged(change, **options)
    assert found.word == OPEN and list(found.why) == why, found


def test_a_shortfall_that_was_stored_still_counts(judged, store, monkeypatch):
    """The loader of today may say less than the one that the cell was trained with."""
    judged(column(overrides=["data.shortfalls=a part"]))
    real = fake_family.prepare
    monkeypatch.setattr(fake_family, "prepare", lambda config, progress: replace(real(config, progress), shortfalls=()))
    assert judged(column(overrides=["data.shortfalls=a part"])).why[0] == "a part"


def test_a_row_of_one_s_own_has_no_verdict(judged):
    assert judged(lambda page: page["rows"][0].update(published="")) is None
