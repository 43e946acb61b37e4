"""The table on a store made by hand: selection on dev, spread, failures, verdicts, and the four renderings."""

from __future__ import annotations

import csv
import io
import statistics

import pytest

from sparse_attention.repro import table as tables
from sparse_attention.repro.cell import Cell
from sparse_attention.repro.plan import Plan, Slot
from sparse_attention.repro.protocol import Prepared
from sparse_attention.repro.store import write_json

COLUMN = {
    "label": "A | B & C_1", "select": {"metric": "dev/acc", "mode": "max"},
    "show": [{"metric": "test/bleu", "label": "BLEU"}, {"metric": "test/support", "label": "support", "decimals": 1}],
    "published": [{"label": "FR-EN (paper)", "dataset": "D", "metrics": ["BLEU"], "against": ["test/bleu"]}],
}  # fmt: skip
RECORDS = [
    {"mapping": "softmax", "dataset": "D", "metric": "BLEU", "value": 36.38, "decimals": 2},
    {
        "mapping": "tuned",
        "dataset": "D",
        "metric": "BLEU",
        "value": 36.9,
        "decimals": 1,
        "ambiguous": "Columns may be swapped.",
    },
]
FACTS = {
    "name": "toy", "provenance": "generated", "pairs": {"train": 1200, "test": 40}, "sha256": "abcdef0123456789", "notes": ["Read me."],
}  # fmt: skip
BASELINES = {"lead": {"test/bleu": 12.345, "test/words": 8}, "constant": {"test/bleu": 1.0, "test/text": "hello"}}

# (row, lam, seed) -> dev accuracy, test BLEU; the best dev point (lam=0.5) is not the best test point
SOFTMAX = {(0, None, 1): (60.0, 30.0), (0, None, 2): (61.0, 31.0)}
TUNED = {
    (1, 0.0, 1): (70.0, 39.0), (1, 0.0, 2): (50.0, 41.0),
    (1, 0.5, 1): (65.0, 33.0), (1, 0.5, 2): (66.0, 35.0),
}  # fmt: skip


@pytest.fixture
def made(store):
    """`made(scores, ...)`: (plan, store) whose finished cells have these scores; None makes a cell that is not finished."""

    def make(scores=None, comparable=False, facts=FACTS, unavailable=None, bleu_by_example=None):
        scores = SOFTMAX | TUNED if scores is None else scores
        rows = [{"label": "softmax", "published": "softmax"}, {"label": "tuned", "published": "tuned"}]
        experiment = {
            "name": "fake", "title": "A table: 100% & more", "profile": "demo", "comparable": comparable, "rows": rows,
            "columns": [COLUMN] + ([COLUMN | {"label": "Gigaword"}] if unavailable else []), "seeds": [1, 2], "footers": ["Mind the gap."],
        }  # fmt: skip
        plan = Plan(experiment, unavailable={1: unavailable} if unavailable else {})
        for (row, lam, seed), numbers in scores.items():
            config = {"task": {"name": "t"}, "mapping": {"name": "m"}, "seed": seed}
            cell = Cell(config, Prepared("data", facts, BASELINES), f"id{row}{lam}{seed}")
            point = () if lam is None else (("mapping.lam", lam),)
            plan.slots.append(Slot(row, 0, point, seed, cell))
            if numbers is not None:
                metrics = {"dev/acc": numbers[0], "test/bleu": numbers[1], "test/support": 2.0 + seed}
                write_json(
                    cell.entry(store).path("metrics.json"), {"metrics": metrics, "signatures": {"test/bleu": "sig|v1"}}
                )
                write_json(cell.entry(store).path("provenance.json"), {"code": {"commit": "cafe", "dirty": False}})
        return plan, store

    return make


def block(plan, store, failed=None):
    return tables.build(plan, store, RECORDS, failed).blocks[0]


def test_selection_takes_the_best_dev_point_over_seeds(made):
    softmax, tuned, *_ = block(*made()).rows
    assert tuned.cells == ["id10.51", "id10.52"]
    assert tuned.detail == "lam=0.5, best of 2 on dev"
    assert tuned.values[0].summary.mean == 34.0
    assert softmax.detail == ""


def test_selection_can_minimise(made, monkeypatch):
    monkeypatch.setitem(COLUMN, "select", {"metric": "dev/acc", "mode": "min"})
    assert block(*made()).rows[1].cells == ["id10.01", "id10.02"]


def test_a_dev_score_that_is_not_a_number_is_never_the_best(made):
    scores = {**SOFTMAX, **TUNED, (1, 0.0, 1): (float("nan"), 39.0)}
    assert block(*made(scores)).rows[1].cells == ["id10.51", "id10.52"]


def test_mean_and_deviation_over_two_seeds(made):
    softmax, tuned, *_ = block(*made()).rows
    assert softmax.values[0].text() == f"30.50 ±{statistics.stdev([30, 31]):.2f}"
    assert tuned.values[0].text() == "34.00 ±1.41"
    assert tuned.values[1].text() == "3.5 ±0.7"


def test_one_seed_has_no_spread(made):
    table = tables.build(*made({(0, None, 1): (60.0, 30.0), (1, 0.0, 1): (1.0, 2.0)}), RECORDS)
    assert table.blocks[0].rows[0].values[0].text() == "30.00"
    assert "one run each: no spread" in table.footers[0]


def test_verdicts(made):
    plan, store = made(comparable=True)
    softmax, tuned, lead, _ = block(plan, store).rows
    assert (softmax.verdicts, tuned.verdicts) == (
        ["below"],
        ["agrees"],
    )  # 34 against 36.9: within 1 + 2 * 1.41 / sqrt 2
    assert lead.verdicts == []
    assert [r.verdicts for r in block(*made()).rows[:2]] == [["not comparable"]] * 2


def test_a_failed_row_is_shown_as_failed(made):
    plan, store = made({**SOFTMAX, (1, 0.0, 1): None, (1, 0.0, 2): None})
    failed = {"id10.01": "RuntimeError", "id10.02": "RuntimeError"}
    tuned = block(plan, store, failed).rows[1]
    assert [v.text() for v in tuned.values] == ["failed", "failed"]
    for render in (tables.to_text, tables.to_markdown, tables.to_latex):
        line = next(
            x
            for x in render(tables.build(plan, store, RECORDS, failed)).splitlines()
            if x.strip(" |").startswith("tuned")
        )
        assert line.count("failed") == 2


def test_a_missing_row_is_shown_as_missing(made):
    plan, store = made({**SOFTMAX, (1, 0.0, 1): None})
    assert [v.text() for v in block(plan, store).rows[1].values] == ["missing", "missing"]


@pytest.mark.parametrize(
    "broken", [(1, 0.5, 2), (1, 0.0, 1)], ids=["a seed of the chosen point", "a point of the grid"]
)
def test_a_row_with_some_cells_failed_says_so(made, broken):
    """A mean of fewer seeds, or the best of fewer points, must not look like the whole."""
    plan, store = made({**SOFTMAX, **TUNED, broken: None})
    text = tables.to_text(
        tables.build(plan, store, RECORDS, {f"id{broken[0]}{broken[1]}{broken[2]}": "RuntimeError: out of memory"})
    )
    assert "1 of 4" in text and "failed" in text


def test_unavailable_columns_say_why(made):
    table = tables.build(*made(unavailable="the files are behind a licence"), RECORDS)
    for text in (tables.to_text(table), tables.to_markdown(table), tables.to_latex(table)):
        assert "Gigaword: not run: the files are behind a licence" in text.replace("\n  ", ": ").replace(
            "### ", ""
        ).replace("\n\n", ": ")


def test_generated_text_is_named_in_the_title(made):
    label = block(*made(facts=FACTS | {"stands_for": "libreoffice_help"})).label
    assert label.startswith("GENERATED PAIRS") and label.endswith("A | B & C_1")


def test_footers_carry_what_a_number_needs(made):
    table = tables.build(*made(), RECORDS)
    text = tables.to_text(table)
    for wanted in ("Data: generated", "sha256 abcdef012345", "Read me.", "sig|v1", "Seeds: 1, 2 (mean ± standard",
                   "Mind the gap.", "? Columns may be swapped.", "Code: cafe.", "not comparable with the paper's"):  # fmt: skip
        assert wanted in text
        assert wanted in tables.to_markdown(table)


def test_text(made):
    lines = tables.to_text(tables.build(*made(), RECORDS)).splitlines()
    start = next(i for i, x in enumerate(lines) if x.strip() == "A | B & C_1")
    groups, header, _, softmax, tuned, dashes, lead, constant = lines[start + 1 : start + 9]
    assert groups.split("  ") and "ours" in groups and "FR-EN (paper)" in groups
    assert header.split() == ["mapping", "BLEU", "support", "BLEU", "verdict"]
    assert softmax.split() == ["softmax", "30.50", "±0.71", "3.5", "±0.7", "36.38", "not", "comparable"]
    assert tuned.split()[:6] == ["tuned", "(lam=0.5,", "best", "of", "2", "on"] and "36.9?" in tuned
    assert lead.split() == ["lead", "baseline", "(first", "8", "words)", "12.35", "-", "-"] or "12.3" in lead
    assert "“hello”" in constant and set(dashes.strip()) == {"-", " "}
    assert len({len(x) for x in (header, softmax, tuned)}) == 1, "columns are aligned"
    assert groups.index("FR-EN") <= header.rindex("BLEU"), "the paper's group stands over its column"


def test_markdown_is_a_table(made):
    lines = tables.to_markdown(tables.build(*made(), RECORDS)).splitlines()
    rows = [x for x in lines if x.startswith("|")]
    assert len(rows) == 2 + 2 + 2
    assert {x.replace("\\|", "").count("|") for x in rows} == {6}
    assert rows[0] == "| mapping | ours BLEU | ours support | FR-EN (paper) BLEU | verdict |"
    assert rows[2] == "| softmax | 30.50 ±0.71 | 3.5 ±0.7 | 36.38 | not comparable |"


def test_csv_holds_every_number_at_full_precision(made):
    found = list(csv.DictReader(io.StringIO(tables.to_csv(tables.build(*made(), RECORDS)))))
    ours = next(r for r in found if (r["row"], r["source"], r["metric"]) == ("tuned", "ours", "test/bleu"))
    assert (float(ours["mean"]), float(ours["n"])) == (34.0, 2) and float(ours["std"]) == pytest.approx(
        2**0.5, rel=1e-5
    )
    assert ours["selected"] == "lam=0.5, best of 2 on dev" and ours["column"] == "A | B & C_1"
    theirs = [r for r in found if r["source"] == "published"]
    assert [(r["row"], float(r["mean"]), r["verdict"]) for r in theirs] == [
        ("softmax", 36.38, "not comparable"), ("tuned", 36.9, "not comparable"),
    ]  # fmt: skip
    assert {r["row"] for r in found if r["source"] == "baseline"} == {"lead baseline", "constant baseline"}
    assert {r["table"] for r in found} == {"fake"}


def test_latex_is_escaped_and_rectangular(made):
    text = tables.to_latex(tables.build(*made(), RECORDS))
    assert r"A table: 100\% \& more" in text and r"C\_1" in text and r"30.50 $\pm$0.71" in text
    body = [x for x in text.splitlines() if x.endswith("\\\\")]
    assert {x.replace(r"\&", "").count("&") for x in body[1:]} == {4}
    assert "\\multicolumn{2}{c}{ours}" in body[0]
    for begin, end in (("\\begin{table}", "\\end{table}"), ("\\begin{tabular}", "\\end{tabular}")):
        assert text.count(begin) == text.count(end) == 1
    assert "_" not in text.replace(r"\_", "")


def test_significance_marks_a_row_that_differs_from_the_first(made):
    plan, store = made()
    import random

    rng = random.Random(1)
    for slot in plan.slots:
        better = 0.0 if slot.row == 0 else 5.0
        records = [{"set": "test", "index": i, "sentence": {"support": rng.random() + better}} for i in range(40)]
        slot.cell.entry(store).write_predictions(records)
    softmax, tuned, *_ = block(plan, store).rows
    bleu, support = tuned.values
    assert softmax.values[1].p_value is None and support.p_value < 0.01 and support.text().endswith("*")
    assert bleu.p_value is None, "no per-example scores of this metric: no test"
    assert "* differs from the first row" in tables.to_text(tables.build(plan, store, RECORDS))


def test_files_are_written_beside_each_other(made, tmp_path):
    paths = tables.write(tables.build(*made(), RECORDS), tmp_path / "tables" / "fake_demo")
    assert [p.name for p in paths] == ["fake_demo.txt", "fake_demo.md", "fake_demo.csv", "fake_demo.tex"]
    assert all(p.stat().st_size > 100 for p in paths)
    assert paths[0].read_text(encoding="utf-8").startswith("A table: 100% & more\n")
