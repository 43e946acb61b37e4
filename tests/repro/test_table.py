"""The table on a store made by hand: selection on dev, spread, failures, footers; its four renderings and files."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from made_table import AMBIGUOUS, BASELINES, COLUMN, FACTS, RECORDS, SOFTMAX, TUNED, block, cell_of

from repro.tables import build as tables
from repro.tables import render, screen
from repro.tables.footers import GROUPS, concerns, of_settings


def test_selection_takes_the_best_dev_point_over_seeds(made):
    plan, store = made()
    softmax, tuned, *_ = block(plan, store).rows
    assert [f.cell_id for f in tuned.results] == [cell_of(plan, 1, 0.5, seed).training_id for seed in (1, 2)]
    assert tuned.detail == "lam=0.5, best of 2 on dev"
    assert tuned.values[0].summary.mean == 34.0
    assert softmax.detail == ""


def test_selection_can_minimise_and_what_is_not_a_number_is_never_the_best(made, monkeypatch):
    scores = {**SOFTMAX, **TUNED, (1, 0.0, 1): (float("nan"), 39.0)}
    assert block(*made(scores)).rows[1].detail.startswith("lam=0.5")
    monkeypatch.setitem(COLUMN, "select", {"metric": "dev/accuracy", "mode": "min"})
    assert block(*made()).rows[1].detail.startswith("lam=0.0")


@pytest.mark.parametrize("word", ["failed", "not run yet"])
def test_a_row_without_its_cells_is_shown_as_such(made, word):
    plan, store = made({**SOFTMAX, (1, 0.0, 1): None, (1, 0.0, 2): None})
    failed = [cell_of(plan, 1, 0.0, seed) for seed in (1, 2) if word == "failed"]
    for cell in failed:
        cell.entry(store).set_status("failed", error="RuntimeError")
    assert [v.text() for v in block(plan, store).rows[1].values] == [word, word, "-"]
    for rendered, count in ((render.to_text, 2), (render.to_markdown, 1), (render.to_latex, 2), (render.to_screen, 1)):
        lines = rendered(tables.build(plan, store, RECORDS)).splitlines()
        assert next(x for x in lines if x.strip(" |").startswith("tuned")).count(word) == count
    lost = [line for line in render.to_screen(tables.build(plan, store, RECORDS)).splitlines() if "lam=" in line]
    assert lost == [f"  tuned (lam=0.0), seed {cell.seed} failed: RuntimeError" for cell in failed]


def test_a_row_that_was_never_run_says_how_long_it_takes(made, monkeypatch):
    """As long as the finished cells of its mapping, here an hour each; if there are none, as is assumed."""
    never = {**SOFTMAX, (1, 0.0, 1): None, (1, 0.0, 2): None}
    plan, store = made(never)
    said = [text for text in block(plan, store).footers if text.startswith("tuned: ")]
    assert said == ["tuned: not run yet (2 cells)."]
    assumed = tables.build(plan, store, hours=lambda config: 1.5 * config["seed"]).blocks[0].footers
    assert "tuned: not run yet (2 cells, about 4.5 hours (assumed))." in assumed
    plan, store = made({**never, (2, None, 1): (60.0, 30.0)})
    rows = plan.experiment.rows
    plan.experiment = replace(plan.experiment, rows=(*rows, replace(rows[1], label="twin")))
    found = type(plan.slots[0]).results

    def slow(cell, store):
        made = found(cell, store)
        return replace(made, seconds=3600.0) if made and cell.row == 2 else made

    monkeypatch.setattr(type(plan.slots[0]), "results", slow)
    assert "tuned: not run yet (2 cells, about 2 hours)." in block(plan, store).footers
    cell_of(plan, 2, None, 1).entry(store).path("metrics.json").write_text("{")  # what is damaged did run
    damaged = block(plan, store)
    assert [v.text() for v in damaged.rows[2].values] == ["missing", "missing", "-"]
    assert "twin: 1 of 1 cells are missing." in damaged.footers
    monkeypatch.undo()
    plan, store = made({**SOFTMAX, (1, 0.0, 3): None})
    assert "tuned: not run yet (1 cell)." in block(plan, store).footers


@pytest.mark.parametrize("broken", [(1, 0.5, 2), (1, 0.0, 1)], ids=["of the chosen point", "of the grid"])
def test_a_row_with_some_cells_failed_says_so(made, broken):
    """A mean of fewer seeds, or the best of fewer points, must not look like the whole."""
    plan, store = made({**SOFTMAX, **TUNED, broken: None})
    cell_of(plan, *broken).entry(store).set_status("failed", error="RuntimeError: out of memory\nmore")
    text = render.to_text(tables.build(plan, store, RECORDS))
    assert "tuned: 1 of 4 cells failed." in text and "\n  No best row: fewer than two rows have converged" in text


def test_the_best_is_of_the_points_that_have_a_score(made):
    found = block(*made({**SOFTMAX, **TUNED, (1, 0.0, 1): None, (1, 0.0, 2): None})).rows[1]
    assert found.detail == "lam=0.5, best of 1 on dev (1 without a score)"


@pytest.mark.parametrize("name", ["metrics.json", "weights", "manifest.json"])
def test_a_damaged_cell_is_named_and_the_others_stay(made, name):
    plan, store = made()
    bad = cell_of(plan, 0, None, 1)
    bad.entry(store).path("metrics.json" if name == "weights" else name).write_text("[]")
    built = block(plan, store)
    assert built.rows[0].values[0].summary.n == 1 and built.rows[1].values[0].summary.n == 2
    assert any(bad.training_id in f and "is damaged" in f for f in built.alerts)
    assert any("1 of 2 cells are missing" in f for f in built.footers)


def test_unavailable_columns_say_why(made):
    table = tables.build(*made(unavailable="the files are behind a licence"), RECORDS)
    for text in (render.to_text(table), render.to_markdown(table), render.to_latex(table)):
        plain = text.replace("### ", "").replace("\n\n", ": ").replace("\n  ", ": ")
        assert "Gigaword: not run: the files are behind a licence" in plain


def test_data_that_replace_the_real_ones_are_named_in_the_title(made):
    label = block(*made(facts=FACTS | {"stands_for": "invented"})).label
    assert label.startswith("GENERATED DATA (toy") and label.endswith("A | B & C_1")
    assert block(*made(facts=FACTS | {"stands_for": "NMT-Benchmark"})).label == "A | B & C_1"


@pytest.mark.parametrize(
    "text, concerned",
    [
        ("with softmax: scaled", True), ("**with oscarmax**: exact", False), ("with oscarmax, with softmax: exact", True), ("laha2018: no file named", True),
        ("**martins2020**: code", False), ("demo, cpu: small", True), ("paper: large", False), ("cpu, laha2018: both", False),
        ("data: LibreOffice help, 12,000 paragraphs", False), ("model: one layer", True), ("on duc2004: digits", False), ("on own: mine", True),
        ("Word vectors: random, as softmax: not in the paper", True), ("no head at all", True),
    ],
)  # fmt: skip
def test_a_deviation_says_what_it_concerns(text, concerned):
    words = {"demo", "laha2018", "with softmax", "with sparsemax", "on own", *GROUPS} - {"data"}
    assert concerns(text, words) == concerned


BOTH = "lower case; 3 words (laha2018, niculae2017: A, `f(x)`; 4; martins2020: not stated) and more"


@pytest.mark.parametrize(
    "paper, printed",
    [
        ("laha2018", " (paper: A, `f(x)`; 4)"), ("niculae2017", " (paper: A, `f(x)`; 4)"), ("peters2018", ""),
        ("martins2020", " (the paper does not state it)"), ("", ""),
    ],
)  # fmt: skip
def test_a_table_prints_what_its_own_paper_has(made, monkeypatch, paper, printed):
    plan, store = made()
    monkeypatch.setattr(plan, "experiment", replace(plan.experiment, paper=paper, deviations=()))
    for slot in plan.slots:
        slot.config["task"]["deviations"] = [BOTH, "model: small (demo)"]
    said = [f"lower case; 3 words{printed} and more", "model: small (demo)"]
    assert of_settings(plan, plan.slots) == said
    task = plan.slots[0].task
    built = tables.build(plan, store, RECORDS, deviations={task: {"all": [f"In all: {BOTH}"]}})
    assert built.deviations == [*said, f"In all: {said[0]}"]


@pytest.mark.parametrize("where", ["command line", "column"])
def test_deviations_of_a_setting_s_data_are_not_those_of_other_data(made, monkeypatch, where):
    if where == "column":
        monkeypatch.setitem(COLUMN, "overrides", ["data=files"])
    plan, _ = made()
    for slot in plan.slots:
        slot.config["task"]["deviations"] = ["data: LibreOffice help", "model: one layer"]
    if where == "command line":
        assert of_settings(plan, plan.slots) == ["data: LibreOffice help", "model: one layer"]
        plan.overrides = ("data=files", "data.path=mine.tsv")
    assert of_settings(plan, plan.slots) == ["model: one layer"]


HEADERS = ["mapping", "runs", "BLEU", "support", "first row", "BLEU", "verdict", "converged"]
ROW = ["softmax", "2", "30.50 ±0.71", "3.5 ±0.7", "", "36.38", "not comparable", "yes: best epoch 2 of 3"]


SCREEN = """\
A table: 100% & more
profile demo, 2 runs each: shows that it works, ranks nothing; not comparable with the paper

A | B & C_1
                                                  BLEU, minus  FR-EN (paper)
  mapping                             BLEU     ±    first row           BLEU
  softmax                            30.50  0.71                       36.38
  tuned (lam=0.5, best of 2 on dev)  34.00  1.41        +3.50          36.9?
  baseline: lead                     12.35
  baseline: constant                  1.00
  baseline: nearest neighbour        29.70
? Columns may be swapped."""


def test_the_screen(made, monkeypatch):
    """The main things in a hundred columns; in fewer, what matters least is left out and labels are broken."""
    table = tables.build(*made(), AMBIGUOUS)
    monkeypatch.setenv("COLUMNS", "100")
    assert render.to_screen(table) == SCREEN
    widths = {}
    for width in (100, 80, 60, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        said = render.to_screen(table)
        widths[width] = max(map(len, said.splitlines()))
        assert widths[width] <= width and "34.00" in said and "tuned (lam=0.5" in said, said
        assert [word in said for word in ("36.9?", "1.41", "+3.50")] == [width > 60, width > 60, width > 40]
    table.blocks[0].alerts.append("a long reason " * 20)
    assert max(map(len, render.to_screen(table).splitlines())) <= 40


def test_a_screen_has_the_first_score_of_every_test_set(made):
    """And three scores at most, if there are fewer sets; scores on dev come last."""
    table = tables.build(*made())
    row = table.blocks[0].rows[0]

    def shown(*metrics):
        row.values = [replace(row.values[0], metric=metric) for metric in metrics]
        return [metrics[i] for i in screen._scores(table.blocks[0])]

    assert shown("dev/a", "test/a", "test/b", "test/c", "test/d") == ["test/a", "test/b", "test/c"]
    assert shown("dev/a", "x/a", "x/b", "y/a", "z/a", "z/b", "w/a") == ["x/a", "y/a", "z/a", "w/a"]
    assert shown("dev/a", "test/a") == ["dev/a", "test/a"] and shown("dev/a") == ["dev/a"]


def test_a_long_table_shows_the_best_rows(made, monkeypatch):
    monkeypatch.setattr(screen, "MOST_ROWS", 2)
    block = tables.build(*made()).blocks[0]
    first, second = block.own
    third = replace(second, label="third", values=[replace(second.values[0], runs=[35.0]), *second.values[1:]])
    nothing = replace(second, label="none", values=[replace(second.values[0], runs=[]), *second.values[1:]])
    block.rows[2:2] = [nothing, third]
    assert [row.label for row in screen.rows(block)][:2] == [first.label, "third"]
    assert screen.notes(block) == ["2 rows with lower scores are in the table's files."]


def test_csv_holds_every_number_at_full_precision(made):
    found = list(csv.DictReader(io.StringIO(render.to_csv(tables.build(*made(), RECORDS)))))
    ours = next(r for r in found if (r["row"], r["source"], r["metric"]) == ("tuned", "ours", "test/bleu"))
    assert [float(ours[k]) for k in ("mean", "n", "std")] == pytest.approx([34.0, 2, 2**0.5], rel=1e-5)
    assert ours["ci95_half"] == "", "two seeds: no interval over seeds"
    assert ours["selected"] == "lam=0.5, best of 2 on dev" and ours["column"] == "A | B & C_1"
    trained = next(r for r in found if (r["row"], r["metric"]) == ("tuned", "convergence"))
    assert trained["verdict"] == "yes: best epoch 2 of 3" and trained["mean"] == ""
    theirs = [(r["row"], float(r["mean"]), r["verdict"]) for r in found if r["source"] == "published"]
    why = "not comparable: profile demo; the experiment does not claim to be comparable"
    assert theirs == [("softmax", 36.38, why), ("tuned", 36.9, why)]
    assert {r["row"] for r in found if r["source"] == "baseline"} == {f"{b} baseline" for b in BASELINES}


def test_latex_is_escaped_and_rectangular(made):
    text = render.to_latex(tables.build(*made(), RECORDS))
    assert r"\caption{A table: 100\% \& more: A | B \& C\_1" in text and r"30.50 $\pm$0.71" in text
    lines = [line[:-2].replace(r"\&", "").split("&") for line in text.splitlines() if line.endswith(r"\\")]
    rows = [[cell.strip() for cell in line] for line in lines]
    titles = {4: "BLEU, minus first row", 5: "FR-EN (paper) BLEU"}
    assert rows[0] == [titles.get(i, header) for i, header in enumerate(HEADERS)]
    assert rows[1] == [cell.replace("±", r"$\pm$") for cell in ROW] and {len(row) for row in rows} == {8}
    for begin, end in (("\\begin{table}", "\\end{table}"), ("\\begin{tabular}", "\\end{tabular}")):
        assert text.count(begin) == text.count(end) == 1
