"""What a report draws: heat maps, curves, comparisons with the paper, and samples."""

from __future__ import annotations

import base64
import re
import sys

import numpy as np
import pytest
from made_report import ROWS, Made, Page

from repro.report import figures
from repro.report.heat import groups, runs
from repro.report.samples import SAMPLES, choose, confusion
from repro.tables import build as tables

pytest.importorskip("jinja2")


def curves(text: str) -> str:
    return text[text.index('id="e1-curves"') : text.index('id="e1-attention"')]


def test_zeros_are_those_of_the_metric_not_of_what_is_drawn(reported):
    _, text = reported()
    said = re.findall(r"test set: (\d+)% zeros, support ([\d.]+)", text)[:3]
    assert said == [("0", "6.0"), ("30", "5.0"), ("60", "4.0")]
    assert "dev attention: share of exact zeros" in curves(text)


def test_a_curve_of_other_weights_than_the_table_s_is_not_drawn(tmp_path):
    """Training may count the zeros of a softmax beside the density that the table is about."""
    text = Made(tmp_path, curve_zeros=0.0).write()
    plot = re.findall(r'<svg class="plot".*?</svg>', curves(text), re.S)[-1]
    drawn = re.findall(r"clip-path[^>]*style=\"fill: none; stroke: var\(--c(\d)\)", plot)
    assert drawn == ["0"], "softmax has no zeros in either"


def test_without_matplotlib_the_report_says_so(tmp_path, monkeypatch):
    made = Made(tmp_path)
    for module in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = made.write()
    assert "pip install matplotlib" in text and 'class="plot"' not in text
    assert 'class="heat" viewBox' in text, "heat maps need no matplotlib"


def test_heat_maps_leave_exactly_the_zeros_grey(reported):
    made, text = reported()
    for label in ROWS[1:]:
        indices = [int(i) for i in re.findall(r"<b>Test example (\d+)\.</b>", text)]
        assert len(indices) == 3
        panels = re.findall(rf'<g transform="[^"]*"><title>{label}</title>(.*?)</g>', text)
        assert len(panels) == 3
        for index, panel in zip(indices, panels):
            weights = made.weights[label][index]  # [outputs, source]: output down, source across
            steps, tokens = weights.shape
            assert re.search(rf'class="zero" width="{tokens * 15}" height="{steps * 15}"', panel)
            (ground, *tints) = re.findall(r'<path class="(paper|w\d+)" d="([^"]*)"', panel)
            drawn = [tuple(map(int, m)) for m in re.findall(r"M(\d+) (\d+)h(\d+)", ground[1])]
            covered = {(y // 15, (x + k) // 15) for x, y, width in drawn for k in range(0, width, 15)}
            assert ground[0] == "paper" and covered == set(zip(*map(list, np.nonzero(weights))))
            assert sum(d.count("M") for _, d in tints) == len(drawn)
            strongest = max(tints, key=lambda t: int(t[0][1:]))[1]
            step, token = np.unravel_index(weights.argmax(), weights.shape)
            assert f"M{token * 15} {step * 15}h" in strongest


def test_equal_neighbours_have_no_border_and_other_equal_weights_a_letter():
    row = [0.0, 0.0, 0.2, 0.2, 0.1, 0.2, 0.0, 0.3 + 1e-3]
    assert runs(row) == [(0, 2), (2, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    assert groups(row) == [[2, 3, 5]], "three equal weights, one of them apart"
    assert groups([0.5, 0.5, 0.0, 0.0]) == [], "neighbours need no letter, zeros never have one"
    third = float(np.float32(1) / np.float32(3))
    assert runs([third, third + 2e-8]) == [(0, 2)] and runs([1e-9, 0.0]) == [(0, 1), (1, 2)]


def test_curves_have_one_line_per_row_in_the_row_s_colour(reported):
    plots = re.findall(r'<svg class="plot".*?</svg>', curves(reported()[1]), re.S)
    assert len(plots) == 3
    for plot in plots:
        strokes = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*style="fill: none; stroke: var\(--c(\d)\)', plot)
        assert [int(colour) for _, colour in strokes] == [0, 1, 2]
        # Three epochs, equally far apart.
        for path, _ in strokes:
            x = [float(v) for v in re.findall(r"[ML] ([\d.]+) ", path)]
            assert len(x) == 3 and x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.05)


@pytest.mark.parametrize("comparable", [True, False])
def test_published_against_ours_is_drawn_only_where_comparable(tmp_path, comparable):
    text = Made(tmp_path, comparable).write()
    assert ("paper R-1: ours minus published; line: 95 % interval" in text) is comparable
    assert ('class="verdict not-comparable"' in text) is not comparable


def shown(page) -> list[int]:
    return [int(i) for i in re.findall(r"<summary><span class=\"dim\">(\d+)</span>", page)]


def test_samples_are_the_same_examples_for_every_row_and_spread_over_the_test_set(reported):
    _, text = reported()
    found = shown(text)
    assert len(found) == SAMPLES and found == sorted(set(found))
    assert np.diff([-1, *found, 30]).max() <= 6 and "not picked by hand" in text
    outputs = [r for r in Page(text).rows if len(r) == 3 and r[0].split() and r[0].split()[-1] in ROWS]
    assert len(outputs) == len(found) * len(ROWS)


def test_half_of_the_samples_are_failures_where_there_are_any():
    scores = [
        {i: {"sentence": {"accuracy": float(i % 10 != 0)}} for i in range(100)},
        {i: {"sentence": {"accuracy": 1.0}} for i in range(100)},
    ]
    found, how = choose(range(100), scores, ["accuracy"])
    assert len(found) == SAMPLES == len(set(found)) and sum(i % 10 == 0 for i in found) >= 4
    assert "4 of these are failures" in how and "the 10 of 100 test examples" in how
    all_right, how = choose(range(100), scores[1:], ["accuracy"])
    assert len(all_right) == SAMPLES and "failures" not in how
    all_wrong, _ = choose(range(3), [{i: {"sentence": {"accuracy": 0.0}} for i in range(3)}], ["accuracy"])
    assert all_wrong == [0, 1, 2]


def test_a_classifiers_confusion_matrix_counts_labels_by_outputs(tmp_path):
    records = [{"label": t, "output": o} for t, o in ("ab", "ab", "aa", "bc", "bb")]
    assert confusion(records) == [("a", [1, 2, 0]), ("b", [0, 1, 1]), ("c", [0, 0, 0])]
    assert confusion([{"output": "a"}]) == [] == confusion([{"label": f"{i}", "output": "0"} for i in range(21)])
    made = Made(tmp_path)
    level = made.level(0)
    level.write_predictions([record | {"label": "<b>"} for record in level.predictions()])
    level.finish()
    text = made.write()
    assert text.count("Confusion matrix of ") == 1 and '<tr><th scope="row">&lt;b&gt;</th>' in text


def test_images_of_questions_stand_beside_them(tmp_path, monkeypatch):
    import fake_family

    monkeypatch.setattr(fake_family, "pictures", lambda config: lambda key: f"image {key}".encode(), raising=False)
    made = Made(tmp_path)
    for r in range(len(ROWS)):
        level = made.level(r)
        level.write_predictions([record | {"image": f"k{record['index']}"} for record in level.predictions()])
        level.finish()
    text = made.write()
    drawn = [base64.b64decode(x).decode() for x in re.findall(r'<img src="data:image/png;base64,([^"]+)"', text)]
    maps, samples = drawn[:3], drawn[3:]
    assert samples == [f"image k{i}" for i in shown(text)]
    assert maps == [f"image k{i}" for i in re.findall(r"<b>Test example (\d+)\.</b>", text)]


def test_the_picture_of_a_table_has_every_seed_and_the_mean_curve(made):
    plan, store = made()
    assert figures.runs(tables.build(plan, store), "s") == "", "no curves, no picture"
    for slot in plan.slots:
        rows = (f"{epoch},{50 + slot.row + slot.seed + 3 * epoch}" for epoch in (1, 2, 3))
        slot.entry(store).path("curves.csv").write_text("\n".join(("epoch,dev/accuracy", *rows)))
    text = figures.runs(tables.build(plan, store), "s")
    assert text == figures.runs(tables.build(plan, store), "s") and ">dev accuracy</text>" in text
    drawn: dict[str, list[str]] = {"softmax": [], "tuned": []}
    for part in text.split('<g id="of ')[1:]:
        drawn[part.partition('"')[0]].append(part)
    dots = [part.partition("</g>")[0] for label in drawn for part in drawn[label][:2]]
    x = [float(n) for part in dots for n in re.findall(r'<use [^>]*x="([\d.]+)"', part)]
    assert affine(x, [30.5, 30.0, 31.0, 34.0, 33.0, 35.0]), "the mean, then the seeds"
    paths = [drawn[label][3].partition("clip-path")[0] for label in drawn]
    y = [float(n) for path in paths for n in re.findall(r"[ML] [\d.]+ ([\d.]+)", path)]
    assert affine(y, [54.5, 57.5, 60.5, 55.5, 58.5, 61.5]), "the mean over seeds, epoch by epoch"


def affine(places, values) -> bool:
    assert len(places) == len(values)
    return np.abs(np.polyval(np.polyfit(values, places, 1), values) - places).max() < 0.01
