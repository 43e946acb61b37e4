"""The report: complete in itself, true to the store, written whatever is missing; its figures and test examples."""

from __future__ import annotations

import base64
import re
import sys

import fake_family
import numpy as np
import pytest
from made_report import ROWS, Made, Page

from repro.report import page as report
from repro.report.examples import SAMPLES, choose, confusion
from repro.tables import build as tables

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'


def test_the_page_is_whole_and_loads_nothing(reported):
    _, text = reported((1, 2))
    page = Page(text)
    assert len(text) < 3_000_000
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        assert tag != "img" or (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
        for name in ("href", "action", "data"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?i)(https?:|//|file:|data:|javascript:|/)", value), f"{tag} {name}={value}"
    assert "@import" not in text and "could not be made" not in text
    for tag, kind in re.findall(r'document\.querySelectorAll\("(\w+)(?:\.(\w+))?"', text.partition("<script>")[2]):
        assert any(t == tag and kind in (a.get("class") or "") for t, a in page.elements), "what the script looks for"
    identifiers = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers)) and any(tag == "img" for tag, _ in page.elements)


def test_the_table_shows_our_numbers_their_spread_and_the_best(reported):
    _, text = reported((1, 2))
    page = Page(text)
    # Two seeds score 30 + row + seed: mean 31.5 + row, sample standard deviation sqrt(1/2).
    # Every example scores one more than softmax's, with both seeds.
    assert page.row("sparsemax")[1:] == ["32.50", "0.71", "0.30", "+1.00", "36.13"], "the screen"
    whole = [r[1:] for r in page.rows if len(r) == 8 and r[0].split() == ["sparsemax"]]
    assert whole == [["2", "32.50 ±0.71", "0.30 ±0.00", "+1.00", "36.13", "not comparable", "yes: best epoch 3 of 4"]]
    assert any(r[0].split() == ["sparsemax"] and r[1:] == ["32.00, 33.00", "0.30, 0.30"] for r in page.rows), "the runs"
    assert page.row("baseline: lead")[1:4] == ["12.50", "", "-"]
    assert page.row("baseline: lead (first 7 words)")[1:4] == ["", "12.50", "-"]
    opened = text[: text.index("<details")]
    unfolded = Page(f"<main>{opened.partition('<main>')[2]}</main>")
    assert unfolded.row("softmax")[1] == "31.50"
    folded = re.findall(r"<details class=\"more\"><summary>(.*?)</summary>", text)
    assert len(folded) == 5 and len(re.findall("<h2", text)) == 1
    assert "not comparable with the paper" in page.text and "a small model" in page.text
    head = next(r for r in page.rows if r and r[0] == "state")
    assert head[5:8] == ["dev accuracy", "R-1", "zeros"]
    of_fusedmax = [r[5:8] for r in page.rows if len(r) == len(head) and r[2] == "fusedmax"]
    assert of_fusedmax == [["62.00", "33.00", "0.60"], ["62.00", "34.00", "0.60"]]


def test_the_page_escapes_what_models_and_data_say(tmp_path):
    made = Made(tmp_path, text=EVIL, label=f"row {EVIL} $x$")
    made.fail(2, error=EVIL, traceback=f"Traceback\n{EVIL}")
    built = tables.build(made.plan, made.store, made.records)
    built.deviations.append(f"`mapping.mode=paper` {EVIL}")
    text = report.write(built, made.plan, made.store, tmp_path / "r.html").read_text()
    page = Page(text)
    assert EVIL in page.text and "<img src=x" not in text and "<code>mapping.mode=paper</code>" in text
    assert [tag for tag, _ in page.elements].count("script") == 1


def test_failed_cells_are_shown_with_their_tracebacks(tmp_path):
    made = Made(tmp_path)
    made.fail(1, error="ValueError: broken", traceback="Traceback (most recent call last):\n  deep inside")
    made.fail(2)
    page = Page(made.write())
    assert all(said in page.text for said in ("ValueError: broken", "deep inside"))
    assert [page.row(row)[1] for row in ("sparsemax", "fusedmax")] == ["failed", "not run yet"]
    assert "1 cells done" in page.text and "1 cells failed" in page.text and "1 cells queued" in page.text


FILES = ("curves.csv", "provenance.json", "metrics.json", "manifest.json")
OF_EVALUATION = ("predictions.jsonl.gz", "attention.safetensors", "metrics.json", "manifest.json")


@pytest.mark.parametrize("how", ["absent", "damaged"])
@pytest.mark.parametrize(("level", "name"), [*(("entry", n) for n in FILES), *(("level", n) for n in OF_EVALUATION)])
def test_missing_and_damaged_files_leave_a_report(tmp_path, level, name, how):
    made = Made(tmp_path)
    for r in range(len(ROWS)):
        path = getattr(made, level)(r).path(name)
        path.unlink()
        if how == "damaged":
            path.write_bytes(b"\xff\x00not what was asked for\n{")
    page = Page(made.write())
    assert "Made-up table" in page.text and any(a.get("class") == "note" for _, a in page.elements)
    if (name, how) != ("manifest.json", "absent"):
        assert "is damaged" in page.text and "3 cells damaged" in page.text


def test_damage_after_the_table_was_built_leaves_a_report(tmp_path):
    made = Made(tmp_path)
    built = tables.build(made.plan, made.store, made.records)
    made.level(1).path("predictions.jsonl.gz").write_bytes(b"\x1f\x8b broken")
    made.entry(0).path("curves.csv").unlink()
    text = report.write(built, made.plan, made.store, tmp_path / "r.html").read_text()
    assert "no output stored" in text and Page(text).row("softmax")


def test_an_experiment_without_cells_has_a_report(tmp_path):
    made = Made(tmp_path)
    made.plan.unavailable[0] = "the corpus is licensed"
    made.plan.slots = []
    page = Page(made.write())
    assert "the corpus is licensed" in page.text


def test_without_matplotlib_a_report_has_notes_in_place_of_drawings(tmp_path, monkeypatch):
    for module in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = Made(tmp_path).write()
    assert "import of matplotlib halted" in text and "<img" not in text and Page(text).row("softmax")


def test_links_lead_to_the_cells(reported):
    made, text = reported()
    links = [a["href"] for tag, a in Page(text).elements if tag == "a" and "cells/" in (a.get("href") or "")]
    assert len(links) == len(ROWS)
    assert all((made.root / "report" / link / "metrics.json").is_file() for link in links)


def shown(page) -> list[int]:
    return [int(i) for i in re.findall(r'<div class="sample"><p><span class="dim">(\d+)</span>', page)]


def test_samples_are_the_same_examples_for_every_row_and_spread_over_the_test_set(reported):
    _, text = reported()
    found = shown(text)
    assert len(found) == SAMPLES and found == sorted(set(found))
    assert np.diff([-1, *found, 30]).max() <= 6 and "not picked by hand" in text
    outputs = [r for r in Page(text).rows if len(r) == 3 and r[0].split() and r[0].split()[-1] in ROWS]
    assert len([r for r in outputs if "out put" in r[1]]) == len(found) * len(ROWS)


def test_half_of_the_samples_are_failures_where_there_are_any():
    accuracies = (lambda i: float(i % 10 != 0)), (lambda i: 1.0)
    scores = [{i: {"sentence": {"accuracy": of(i)}} for i in range(100)} for of in accuracies]
    found, how = choose(range(100), scores, ["accuracy"])
    assert len(found) == SAMPLES == len(set(found)) and sum(i % 10 == 0 for i in found) >= 4
    assert "4 of these are failures" in how and "the 10 of 100 test examples" in how
    all_right, how = choose(range(100), scores[1:], ["accuracy"])
    assert len(all_right) == SAMPLES and "failures" not in how
    all_wrong, _ = choose(range(3), [{i: {"sentence": {"accuracy": 0.0}} for i in range(3)}], ["accuracy"])
    assert all_wrong == [0, 1, 2]


def test_a_classifiers_confusion_matrix_counts_labels_by_outputs():
    records = [{"label": t, "output": o} for t, o in ("ab", "ab", "aa", "bc", "bb")]
    assert confusion(records) == [("a", [1, 2, 0]), ("b", [0, 1, 1]), ("c", [0, 0, 0])]
    assert confusion([{"output": "a"}]) == [] == confusion([{"label": f"{i}", "output": "0"} for i in range(21)])


def test_a_report_has_the_confusion_matrix_of_a_row_with_labels_and_images_beside_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(fake_family, "pictures", lambda config: lambda key: f"image {key}".encode(), raising=False)
    made = Made(tmp_path)
    for r in range(len(ROWS)):
        level, labels = made.level(r), {} if r else {"label": "<b>"}
        level.write_predictions([one | labels | {"image": f"k{one['index']}"} for one in level.predictions()])
        level.finish()
    text = made.write()
    assert text.count("Confusion matrix of ") == 1 and '<tr><th scope="row">&lt;b&gt;</th>' in text
    drawn = [base64.b64decode(x).decode() for x in re.findall(r'<img src="data:image/png;base64,([^"]+)"', text)]
    maps, samples = drawn[:3], drawn[3:]
    assert samples == [f"image k{i}" for i in shown(text)]
    assert maps == [f"image k{i}" for i in re.findall(r"<b>Test example (\d+)\.</b>", text)]
