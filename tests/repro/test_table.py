"""The table on a store made by hand: selection on dev, spread, failures, rows that still learn, and the four renderings."""

from __future__ import annotations

import csv
import io
import random
import statistics
from dataclasses import replace

import pytest

from sparse_attention.repro import render
from sparse_attention.repro import table as tables
from sparse_attention.repro.cell import Cell
from sparse_attention.repro.experiment import read
from sparse_attention.repro.files import read_json, write_json
from sparse_attention.repro.footers import Scope, of_settings, of_task
from sparse_attention.repro.plan import Plan, Slot
from sparse_attention.repro.protocol import Prepared, TestSet

COLUMN = {
    "label": "A | B & C_1", "grid": "g", "select": {"metric": "dev/accuracy", "mode": "max"},
    "show": [{"metric": "test/bleu", "label": "BLEU"}, {"metric": "test/attention_support", "label": "support"}],
    "published": [{"label": "FR-EN (paper)", "dataset": "D", "metrics": ["BLEU"], "against": ["test/bleu"]}],
}  # fmt: skip
RECORDS = [
    {"mapping": "softmax", "dataset": "D", "metric": "BLEU", "value": 36.38, "decimals": 2},
    {"mapping": "tuned", "dataset": "D", "metric": "BLEU", "value": 36.9, "decimals": 1},
]
AMBIGUOUS = [RECORDS[0], RECORDS[1] | {"ambiguous": "Columns may be swapped."}]
FACTS = {
    "name": "toy", "provenance": "generated", "sizes": {"train": 1200, "test": 40}, "sha256": "abcdef0123456789", "notes": ["Read me."],
}  # fmt: skip
BASELINES = {
    "lead": {"test/bleu": 12.345, "test/words": 8}, "constant": {"test/bleu": 1.0, "test/text": "hello"}, "nearest neighbour": {"test/bleu": 29.7},
}  # fmt: skip

# (row, lam, seed) -> dev accuracy, test BLEU; the best dev point (lam=0.5) is not the best test point
SOFTMAX = {(0, None, 1): (60.0, 30.0), (0, None, 2): (61.0, 31.0)}
TUNED = {
    (1, 0.0, 1): (70.0, 39.0), (1, 0.0, 2): (50.0, 41.0),
    (1, 0.5, 1): (65.0, 33.0), (1, 0.5, 2): (66.0, 35.0),
}  # fmt: skip


@pytest.fixture
def made(store, config, keep):
    """`made(scores, ...)`: (plan, store) whose finished cells have these scores; None makes a cell that is not finished."""

    def make(scores=None, comparable=False, facts=FACTS, unavailable=None, gains=None, examples=None, **provenance):
        scores = SOFTMAX | TUNED if scores is None else scores
        page = {
            "title": "A table: 100% & more", "footers": ["Mind the gap."], "deviations": ["a small model"],
            "rows": [{"label": "softmax", "published": "softmax", "mapping": "softmax"},
                     {"label": "tuned", "published": "tuned", "mapping": "m"}],
            "columns": {"a": COLUMN, "b": COLUMN | {"label": "Gigaword"}},
            "profiles": {p: {"columns": ["a", "b"] if unavailable else ["a"], "seeds": sorted({s for *_, s in scores}), "comparable": p == "paper"}
                         for p in ("demo", "paper")},
        }  # fmt: skip
        plan = Plan(
            read(page, "fake", "paper" if comparable else "demo"), unavailable={1: unavailable} if unavailable else {}
        )
        for (row, lam, seed), numbers in scores.items():
            test = TestSet("test", "t", "", facts, baselines=BASELINES)
            made = config(seed=seed, mapping__name="m", mapping__row=row, mapping__lam=lam)
            cell = Cell(made, "fake_family", Prepared("data", "", facts, (), test), (test,))
            plan.slots.append(Slot(row, 0, () if lam is None else (("lam", lam),), seed, cell))
            if numbers is not None:
                training = {"dev/accuracy": numbers[0]} | ({"dev/last_gain": gains[row]} if gains else {})
                measured = {"test/bleu": numbers[1], "test/attention_support": 2.0 + seed}
                keep(cell, training, measured, examples(row) if examples else (), **provenance)
        return plan, store

    return make


def cell_of(plan, row, lam, seed):
    return next(s.cell for s in plan.at(row, 0) if s.seed == seed and dict(s.point).get("lam") == lam)


def examples(row: int, better: float = 5.0) -> list[dict]:
    rng = random.Random(row)
    return [{"index": i, "sentence": {"attention_support": rng.random() + better * row}} for i in range(40)]


def block(plan, store, failed=None, records=RECORDS):
    return tables.build(plan, store, records, failed).blocks[0]


def test_selection_takes_the_best_dev_point_over_seeds(made):
    plan, store = made()
    softmax, tuned, *_ = block(plan, store).rows
    assert [f.cell_id for f in tuned.found] == [cell_of(plan, 1, 0.5, seed).training_id for seed in (1, 2)]
    assert tuned.detail == "lam=0.5, best of 2 on dev"
    assert tuned.values[0].summary.mean == 34.0
    assert softmax.detail == ""


def test_selection_can_minimise(made, monkeypatch):
    monkeypatch.setitem(COLUMN, "select", {"metric": "dev/accuracy", "mode": "min"})
    assert block(*made()).rows[1].detail.startswith("lam=0.0")


def test_a_dev_score_that_is_not_a_number_is_never_the_best(made):
    scores = {**SOFTMAX, **TUNED, (1, 0.0, 1): (float("nan"), 39.0)}
    assert block(*made(scores)).rows[1].detail.startswith("lam=0.5")


def test_mean_and_deviation_over_two_seeds(made):
    softmax, tuned, *_ = block(*made()).rows
    assert softmax.values[0].text() == f"30.50 ±{statistics.stdev([30, 31]):.2f}"
    assert tuned.values[0].text() == "34.00 ±1.41"
    assert tuned.values[1].text() == "3.5 ±0.7", "decimals come from the metric"


def test_decimals_of_the_experiment_win(made, monkeypatch):
    monkeypatch.setitem(COLUMN, "show", [{"metric": "test/bleu", "label": "BLEU", "decimals": 0}])
    assert block(*made()).rows[0].values[0].text() == "30 ±1"


ONE = {(0, None, 1): (60.0, 30.0), (1, 0.0, 1): (1.0, 2.0)}


def test_one_seed_has_no_spread(made):
    table = tables.build(*made(ONE), RECORDS)
    assert table.blocks[0].rows[0].values[0].text() == "30.00"
    assert "one run each: no spread" in table.footers[0]


def test_the_footers_say_what_seeds_and_machines_do(made):
    first = tables.build(*made(), RECORDS).footers[0]
    assert "claimed by seeds, never by one run" in first and "another machine (up to 1.4 ROUGE" in first


def test_verdicts(made):
    softmax, tuned, lead, *_ = block(*made(comparable=True)).rows
    # 34 against 36.9: within 1 + 2 * 1.41 / sqrt 2
    assert [[v.text for v in r.verdicts] for r in (softmax, tuned)] == [["below"], ["agrees"]]
    assert lead.verdicts == [None]
    built = tables.build(*made(), RECORDS)
    assert [r.verdicts[0].why[0] for r in built.blocks[0].rows[:2]] == ["profile demo"] * 2
    assert "not comparable with the paper's" in built.subtitle and not built.blocks[0].comparable
    assert any(f.startswith("Not comparable: profile demo; ") for f in built.blocks[0].footers)


def test_a_failed_row_is_shown_as_failed(made):
    plan, store = made({**SOFTMAX, (1, 0.0, 1): None, (1, 0.0, 2): None})
    failed = {cell_of(plan, 1, 0.0, seed).cell_id: "RuntimeError" for seed in (1, 2)}
    tuned = block(plan, store, failed).rows[1]
    assert [v.text() for v in tuned.values] == ["failed", "failed"]
    for rendered in (render.to_text, render.to_markdown, render.to_latex):
        lines = rendered(tables.build(plan, store, RECORDS, failed)).splitlines()
        assert next(x for x in lines if x.strip(" |").startswith("tuned")).count("failed") == 2


def test_a_missing_row_is_shown_as_missing(made):
    plan, store = made({**SOFTMAX, (1, 0.0, 1): None})
    assert [v.text() for v in block(plan, store).rows[1].values] == ["missing", "missing"]


@pytest.mark.parametrize(
    "broken", [(1, 0.5, 2), (1, 0.0, 1)], ids=["a seed of the chosen point", "a point of the grid"]
)
def test_a_row_with_some_cells_failed_says_so(made, broken):
    """A mean of fewer seeds, or the best of fewer points, must not look like the whole."""
    plan, store = made({**SOFTMAX, **TUNED, broken: None})
    failed = {cell_of(plan, *broken).cell_id: "RuntimeError: out of memory"}
    text = render.to_text(tables.build(plan, store, RECORDS, failed))
    assert "tuned: 1 of 4 cells failed." in text


@pytest.mark.parametrize("name", ["metrics.json", "weights", "manifest.json"])
def test_a_damaged_cell_is_named_and_the_others_stay(made, name):
    plan, store = made()
    bad = cell_of(plan, 0, None, 1)
    bad.entry(store).path("metrics.json" if name == "weights" else name).write_text("[]")
    built = block(plan, store)
    assert built.rows[0].values[0].summary.n == 1 and built.rows[1].values[0].summary.n == 2
    assert any(bad.training_id in f and "is damaged" in f for f in built.footers)
    assert any("1 of 2 cells are missing" in f for f in built.footers)


def test_a_metric_that_a_cell_lacks_is_missing(made, monkeypatch):
    monkeypatch.setitem(COLUMN, "show", [*COLUMN["show"], {"metric": "test/rouge1_f", "label": "R-1"}])
    assert block(*made()).rows[0].values[2].text() == "missing"


def test_unavailable_columns_say_why(made):
    table = tables.build(*made(unavailable="the files are behind a licence"), RECORDS)
    for text in (render.to_text(table), render.to_markdown(table), render.to_latex(table)):
        assert "Gigaword: not run: the files are behind a licence" in text.replace("\n  ", ": ").replace(
            "### ", ""
        ).replace("\n\n", ": ")


def test_data_that_replace_the_real_ones_are_named_in_the_title(made):
    label = block(*made(facts=FACTS | {"stands_for": "invented"})).label
    assert label.startswith("GENERATED DATA (toy") and label.endswith("A | B & C_1")
    assert block(*made(facts=FACTS | {"stands_for": "NMT-Benchmark"})).label == "A | B & C_1"


def test_footers_carry_what_a_number_needs(made):
    table = tables.build(*made(), AMBIGUOUS)
    for text in (render.to_text(table), render.to_markdown(table)):
        for wanted in ("Data: generated; 1,200 train, 40 test; sha256 abcdef012345", "Read me.", "BLEU: sig|v1 (BLEU points)",
                       "Seeds: 1, 2 (mean ± standard deviation over n seeds", "Recipe: training 7, evaluation 8.", "Verdict: `agrees` where", "95 % intervals over seeds", "Mind the gap.", "? Columns may be swapped.", "Code: cafe.",
                       "not comparable with the paper's", "Deviation: a small model"):  # fmt: skip
            assert wanted in text
        assert "not the locked set" not in text


@pytest.mark.parametrize("what", ["torch", "kernels"])
def test_cells_that_were_not_made_alike_are_said(made, what):
    built = made(packages={"torch": "2.4"}, kernels="aaaa")
    assert not any("made alike" in f for f in tables.build(*built, RECORDS).footers)
    plan, store = built
    path = plan.slots[0].cell.entry(store).path("provenance.json")
    changed = {"packages": {"torch": "2.5"}} if what == "torch" else {"kernels": "bbbb"}
    write_json(path, read_json(path) | changed)
    plan.slots[0].cell.entry(store).finish()
    said = [f for f in tables.build(plan, store, RECORDS).footers if "made alike" in f]
    assert said == [
        f"Not all cells were made alike: {'torch 2.4 and 2.5' if what == 'torch' else 'kernels aaaa and bbbb'}."
    ]


def test_packages_that_are_not_the_locked_ones_are_said(made):
    assert any("not the locked set" in f for f in tables.build(*made(locked=False), RECORDS).footers)


def test_baselines_stand_below(made):
    rows = block(*made()).rows
    assert [(r.label, r.detail, r.values[0].text()) for r in rows if r.baseline] == [
        ("lead baseline", "first 8 words", "12.35"), ("constant baseline", "“hello”", "1.00"), ("nearest neighbour baseline", "", "29.70"),
    ]  # fmt: skip
    assert [r.baseline for r in rows] == [False, False, True, True, True]


def test_deviations_come_from_the_task_s_page(tmp_path):
    (tmp_path / "fake.md").write_text(
        "# Task\n\ntext\n\n## Deviations from the paper\n\n- first, over\n  two lines\n- second\n\n"
        "### Deviations of the demo\n\n- small\n\n### Deviations of cpu\n\n- medium\n\n## More\n- not this\n"
    )
    demo, paper = (Scope(profile, "laha2018", frozenset({"softmax"})) for profile in ("demo", "paper"))
    assert of_task(tmp_path, "fake", demo) == ["first, over two lines", "second", "small"]
    assert of_task(tmp_path, "fake", paper) == ["first, over two lines", "second"]
    assert of_task(tmp_path, "nowhere", demo) == []


@pytest.mark.parametrize(
    "text, concerned",
    [
        ("softmax: scaled", True), ("**oscarmax**: exact", False), ("oscarmax, softmax: exact", True), ("laha2018: no file named", True),
        ("**martins2020**: code", False), ("demo, cpu: small", True), ("paper: large", False), ("cpu, laha2018: both", False),
        ("data: LibreOffice help, 12,000 paragraphs", False), ("model: one layer", True), ("on duc2004: digits", False), ("on own: mine", True),
        ("Word vectors: random, as softmax: not in the paper", True), ("no head at all", True),
    ],
)  # fmt: skip
def test_a_deviation_says_what_it_concerns(text, concerned):
    scope = Scope("demo", "laha2018", frozenset({"softmax", "sparsemax"}), frozenset({"own"}), frozenset({"data"}))
    assert scope.concerns(text) == concerned


@pytest.mark.parametrize("where", ["command line", "column"])
def test_deviations_of_a_setting_s_data_are_not_those_of_other_data(made, monkeypatch, where):
    if where == "column":
        monkeypatch.setitem(COLUMN, "overrides", ["data=files"])
    plan, _ = made()
    for slot in plan.slots:
        slot.cell.config["task"]["deviations"] = ["data: LibreOffice help", "model: one layer"]
    if where == "command line":
        assert of_settings(plan) == ["data: LibreOffice help", "model: one layer"]
        plan.overrides = ("data=files", "data.path=mine.tsv")
    assert of_settings(plan) == ["model: one layer"]


def test_a_table_lists_the_deviations_of_its_task(made, tmp_path):
    (tmp_path / "fake.md").write_text("## Deviations\n- fewer words\n")
    plan, store = made()
    plan.slots[0].cell.config["task"]["deviations"] = ["two layers"]
    table = tables.build(plan, store, RECORDS, docs=tmp_path)
    assert table.deviations == ["a small model", "two layers", "fewer words"]
    assert "Deviation: fewer words" in render.to_text(table)


# ---- significance, the best, rows that still learn


def test_significance_marks_a_row_that_differs_from_the_first(made):
    softmax, tuned, *_ = block(*made(examples=examples)).rows
    bleu, support = tuned.values
    assert softmax.values[1].p_values == {} and support.p_values["examples"] < 0.01 and support.text().endswith("*")
    assert list(bleu.p_values) == ["seeds"], "no per-example scores of this metric: no test over examples"
    star, dagger = [f for f in tables.build(*made(examples=examples), RECORDS).footers if f[0] in "*†"]
    assert "p < 0.05" in star and "of these runs" in star and "not seeds" in star and "Holm" in star
    assert "over seeds" in dagger and "not the choice of test examples" in dagger


def test_an_example_counts_once_whatever_the_number_of_seeds(made):
    """The same outputs with ten seeds are no more evidence about the test set than with one."""

    def noisy(row):
        rng = random.Random(row)
        return [{"index": i, "sentence": {"attention_support": rng.gauss(0.3 * row, 1)}} for i in range(60)]

    found = []
    for seeds in (1, 10):
        scores = {(row, None, seed): (60.0, 30.0 + row) for row in (0, 1) for seed in range(1, seeds + 1)}
        found.append(block(*made(scores, examples=noisy)).rows[1].values[1].p_values["examples"])
    assert found[0] == found[1] > 1e-3


def test_seeds_are_tested_by_pairs_and_corrected_for_the_number_of_rows(made):
    from scipy import stats as reference

    ours = [30.0, 31.0, 29.5, 30.5]
    scores = {(0, None, s): (60.0, v) for s, v in enumerate(ours, 1)} | {
        (1, None, s): (60.0, v + 1 + s / 10) for s, v in enumerate(ours, 1)
    }
    bleu = block(*made(scores)).rows[1].values[0]
    expected = reference.ttest_rel([v + 1 + s / 10 for s, v in enumerate(ours, 1)], ours).pvalue
    assert bleu.p_values["seeds"] == pytest.approx(expected) and "†" in bleu.text()


def test_the_order_of_rows_is_held_against_the_paper_s(made):
    footers = block(*made()).footers
    assert not any(f.startswith("Rank agreement") for f in footers), "two rows have no order worth a number"


def test_with_one_seed_the_star_is_of_these_two_runs(made):
    footers = tables.build(*made(ONE, examples=examples), RECORDS).footers
    assert any(f.startswith("*") and "of these two runs" in f for f in footers)


def test_the_metric_names_the_test(made, monkeypatch):
    import fake_family

    metric = fake_family.METRICS["attention_support"]
    monkeypatch.setitem(fake_family.METRICS, "attention_support", replace(metric, test=None))
    assert block(*made(examples=examples)).rows[1].values[1].p_values == {}


def test_every_row_says_what_its_last_epoch_gained(made):
    built = block(*made(gains={0: 0.4, 1: 2.9}))
    assert built.headers[-1] == "last gain %"
    assert [r.values[-1].text() for r in built.rows[:2]] == ["0.4 ±0.0", "2.9 ±0.0"]
    assert not any(r.still for r in built.rows) and built.rows[1].values[0].best
    assert "last gain %" not in block(*made()).headers


@pytest.mark.parametrize("learning", [0, 1])
def test_a_row_that_still_learns_says_so_and_is_compared_with_nothing(made, learning):
    gains = {learning: tables.STILL_LEARNING + 0.1, 1 - learning: 0.1}
    table = tables.build(*made(gains=gains, examples=examples), RECORDS)
    rows = table.blocks[0].rows[:2]
    assert [r.still for r in rows] == [r == learning for r in (0, 1)]
    assert ["still learning" in r.detail for r in rows] == [r == learning for r in (0, 1)]
    assert not any(v.p_values or v.best for r in rows for v in r.values)
    assert any("Above 3.0 a row is still learning" in f for f in table.footers)


def test_one_seed_that_still_learns_is_enough(made, keep):
    plan, store = made(gains={0: 0.0, 1: 0.0})
    keep(
        cell_of(plan, 1, 0.5, 2),
        {"dev/accuracy": 66.0, "dev/last_gain": 5.0},
        {"test/bleu": 35.0, "test/attention_support": 4.0},
    )
    assert block(plan, store).rows[1].still


def test_the_best_is_marked_among_scores_only(made):
    softmax, tuned, lead, *_ = block(*made()).rows
    assert [v.best for v in tuned.values] == [True, False] and not any(
        v.best for r in (softmax, lead) for v in r.values
    )
    assert tables.best_of([1.001, 1.004, 0.5, None], 1, 2) == {0, 1}
    assert tables.best_of([1.0, None], 1, 2) == tables.best_of([1.0, 2.0], 0, 2) == set()
    assert tables.best_of([3.0, 2.0, float("nan")], -1, 2) == {1}


# ---- the four renderings


def test_text(made):
    lines = render.to_text(tables.build(*made(), AMBIGUOUS)).splitlines()
    start = next(i for i, x in enumerate(lines) if x.strip() == "A | B & C_1")
    groups, header, _, softmax, tuned, dashes, lead, constant = lines[start + 1 : start + 9]
    assert groups.split("  ") and "ours" in groups and "FR-EN (paper)" in groups
    assert header.split() == ["mapping", "n", "BLEU", "support", "BLEU", "verdict"]
    assert softmax.split()[:7] == ["softmax", "2", "30.50", "±0.71", "3.5", "±0.7", "36.38"]
    assert softmax.endswith("not comparable: profile demo (+1)") and tuned.endswith("not comparable: profile demo (+2)")
    assert tuned.split()[:6] == ["tuned", "(lam=0.5,", "best", "of", "2", "on"] and "36.9?" in tuned
    assert lead.split()[:5] == ["lead", "baseline", "(first", "8", "words)"] and "12.3" in lead
    assert "“hello”" in constant and set(dashes.strip()) == {"-", " "}
    assert len({len(x) for x in (header, softmax, tuned)}) == 1, "columns are aligned"
    assert groups.index("FR-EN") <= header.rindex("BLEU"), "the paper's group stands over its column"


def test_markdown_is_a_table(made):
    lines = render.to_markdown(tables.build(*made(), RECORDS)).splitlines()
    rows = [x for x in lines if x.startswith("|")]
    rows, further = rows[: 2 + 2 + 3], rows[2 + 2 + 3 :]
    assert {x.replace("\\|", "").count("|") for x in rows} == {7}
    assert further[0] == "| mapping | BLEU | support |" and further[2] == "| softmax | [24.15, 36.85] | [-2.9, 9.9] |"
    assert rows[0] == "| mapping | n | ours BLEU | ours support | FR-EN (paper) BLEU | verdict |"
    assert rows[2] == "| softmax | 2 | 30.50 ±0.71 | 3.5 ±0.7 | 36.38 | not comparable: profile demo (+1) |"
    assert "| **34.00 ±1.41** |" in rows[3] and any("**Bold**" in x for x in lines)


def test_csv_holds_every_number_at_full_precision(made):
    found = list(csv.DictReader(io.StringIO(render.to_csv(tables.build(*made(), RECORDS)))))
    ours = next(r for r in found if (r["row"], r["source"], r["metric"]) == ("tuned", "ours", "test/bleu"))
    assert (float(ours["mean"]), float(ours["n"])) == (34.0, 2) and float(ours["std"]) == pytest.approx(
        2**0.5, rel=1e-5
    )
    assert float(ours["ci95_half"]) == pytest.approx(12.7062 * 2**0.5 / 2**0.5, rel=1e-4)
    assert ours["selected"] == "lam=0.5, best of 2 on dev" and ours["column"] == "A | B & C_1"
    why = "not comparable: profile demo; the experiment claims no comparison"
    theirs = [r for r in found if r["source"] == "published"]
    assert [(r["row"], float(r["mean"]), r["verdict"]) for r in theirs] == [
        ("softmax", 36.38, why),
        ("tuned", 36.9, why),
    ]
    assert {r["row"] for r in found if r["source"] == "baseline"} == {f"{b} baseline" for b in BASELINES}
    assert {r["table"] for r in found} == {"fake"}


def test_latex_is_escaped_and_rectangular(made):
    text = render.to_latex(tables.build(*made(), RECORDS))
    assert r"A table: 100\% \& more" in text and r"C\_1" in text and r"30.50 $\pm$0.71" in text
    body = [x for x in text.splitlines() if x.endswith("\\\\")]
    assert {x.replace(r"\&", "").count("&") for x in body[1:]} == {5}
    assert "\\multicolumn{2}{c}{ours}" in body[0]
    for begin, end in (("\\begin{table}", "\\end{table}"), ("\\begin{tabular}", "\\end{tabular}")):
        assert text.count(begin) == text.count(end) == 1
    assert "_" not in text.replace(r"\_", "")


def test_files_are_written_beside_each_other(made, tmp_path):
    paths = render.write(tables.build(*made(), RECORDS), tmp_path / "tables" / "fake_demo")
    assert [p.name for p in paths] == ["fake_demo.txt", "fake_demo.md", "fake_demo.csv", "fake_demo.tex"]
    assert all(p.stat().st_size > 100 for p in paths)
    assert paths[0].read_text(encoding="utf-8").startswith("A table: 100% & more\n")
