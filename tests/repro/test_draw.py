"""Pictures: heat maps show exact zeros and equal weights, curves and dots show the numbers of the cells; those of `draw`."""

import base64
import re
from dataclasses import replace

import numpy as np
import pytest
from made_report import ROWS, Made

from repro.report import draw
from repro.report.data import predictions_of
from repro.report.draw import groups, heat, runs, shade
from repro.report.examples import heat_maps
from repro.tables.build import build
from tasks.commands import driver


@pytest.mark.parametrize(
    ("row", "joined", "lettered"),
    [
        ([0.5, 0.5, 0, 0], [(0, 2), (2, 4)], []),  # neighbours need no letter, zeros never have one
        ([0, 0.25, 0.5, 0.25], [(0, 1), (1, 2), (2, 3), (3, 4)], [[1, 3]]),
        ([0.2, 0.3, 0.3, 0.2], [(0, 1), (1, 3), (3, 4)], [[0, 3]]),
        ([0.2, 0.2, 0.1, 0.2, 0.3 + 1e-3], [(0, 2), (2, 3), (3, 4), (4, 5)], [[0, 1, 3]]),
        ([1.0], [(0, 1)], []),
        ([1e-8, 0, 1 - 1e-8], [(0, 1), (1, 2), (2, 3)], []),
        ([1 / 3, float(np.float32(1 / 3))], [(0, 2)], []),
        ([float("nan"), 0.5, float("nan")], [(0, 1), (1, 2), (2, 3)], []),
    ],
)
def test_equal_neighbours_are_joined_and_other_equal_weights_share_a_letter(row, joined, lettered):
    assert runs(row) == joined and groups(row) == lettered


def test_a_heat_map_is_grey_exactly_where_a_weight_is_zero():
    weights = np.array([[0.0, 0.25, 0.25, 0.5, 0.25], [1e-9, 0.0, np.nan, 1.0, 0.0]])
    with draw.canvas((2, 2)) as figure:
        axis = figure.add_subplot()
        heat(axis, weights, ["a", "b"], ["one", "a\x00b", "three", "a" * 16])
        (image,), (borders,) = axis.get_images(), axis.get_lines()
        assert (np.asarray(image.get_array()) == shade(0.0)).all(-1).tolist() == (weights == 0).tolist()
        assert [t.get_text() for t in axis.get_xticklabels()] == ["one", "a\ufffdb", "three", "a" * 14 + "…", ""]
        assert [(t.get_text(), t.get_position()) for t in axis.texts] == [("a", (s + 0.5, 0.5)) for s in (1, 2, 4)]
        x, y = (np.reshape(v, (-1, 3))[:, :2].tolist() for v in borders.get_data())
    upright = {(a[0], b[0]) for a, b in zip(x, y) if a[0] == a[1]}
    assert upright == {(1, 0), (3, 0), (4, 0), *((s, 1) for s in (1, 2, 3, 4))}, "none between the two quarters"
    depth = shade([1e-9, 0.3, 0.7, 1.0]).sum(-1)
    assert (np.diff(depth) < 0).all() and (shade(np.nan) == shade(1.0)).all()


def plots(text: str, caption: str) -> str:
    found = re.search(rf'<figcaption>{caption}</figcaption><img [^>]*src="data:image/svg.xml;base64,([^"]*)"', text)
    return base64.b64decode(found[1]).decode()


STROKES = re.compile(
    r'<path d="(M[^"]*)" clip-path[^>]*style="fill: none; stroke(?:-dasharray: [^;]*; stroke-dashoffset: [^;]*; stroke)?: (#\w+); stroke-width: 1.3'
)


def test_curves_have_one_line_per_row_in_the_row_s_colour(reported):
    for caption in ("dev accuracy", "dev perplexity", "dev attention: share of exact zeros"):
        strokes = STROKES.findall(plots(reported()[1], caption))
        assert [colour for _, colour in strokes] == [*draw.COLOURS[:3]]
        for path, _ in strokes:  # three epochs, equally far apart
            x = [float(v) for v in re.findall(r"[ML] ([\d.]+) ", path)]
            assert len(x) == 3 and x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.05)


def test_a_curve_of_other_weights_than_the_table_s_is_not_drawn(tmp_path):
    """Training may count the zeros of a softmax beside the density that the table is about."""
    drawn = STROKES.findall(plots(Made(tmp_path, curve_zeros=0.0).write(), "dev attention: share of exact zeros"))
    assert [colour for _, colour in drawn] == [draw.COLOURS[0]], "softmax has no zeros in either"


def test_one_run_per_row_draws_the_scores(reported):
    _, text = reported()
    assert "R-1 of each row" in text and "R-1 minus that of" not in text
    said = re.findall(r"test set: (\d+)% zeros, support ([\d.]+)", text)[: len(ROWS)]
    assert said == [("0", "6.0"), ("30", "5.0"), ("60", "4.0")], "of the metric, not of what is drawn"


@pytest.fixture
def drawn(tmp_path):
    """`drawn(labels)`: what is printed of an experiment that draws these rows; the outputs for one example are right."""
    made = Made(tmp_path)
    (best,) = [e["index"] for e in heat_maps(*_read(made), "test", None)][1:2]
    for r in range(len(ROWS)):
        level = made.level(r)
        told = [x | {"output": "quite off"} for x in level.predictions()]
        told[best]["output"] = told[best]["references"][0]
        level.write_predictions(told)
        level.finish()

    def make(labels):
        made.plan.experiment = replace(made.plan.experiment, draw=tuple(labels))
        return best, driver.drawings(build(made.plan, made.store), made.plan)

    return make


def _read(made):
    rows = build(made.plan, made.store).blocks[0].own
    return rows, predictions_of(rows, "test")


def test_the_rows_that_an_experiment_names_are_drawn_for_the_best_example_of_the_report(drawn, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    best, text = drawn(ROWS[1:])
    about, *pictures = text.split("\n\n")
    assert about == f"Attention for a test example: plain words {best}\nReference: reference plain words"
    assert [picture.partition(": reference plain words\n")[0] for picture in pictures[:-1]] == list(ROWS[1:])
    assert all(len(re.findall(r"^ +(?:out|put|</s>) [░▒▓█· ]+$", picture, re.M)) == 3 for picture in pictures[:-1])
    shades, look = pictures[-1].split("\n", 1)
    assert shades == "· exactly no weight  ░ above 0  ▒ from 0.25  ▓ from 0.5  █ from 0.75" and look.startswith(
        "What to see: "
    )
    assert "\033" not in text and max(map(len, "\n".join(pictures).splitlines())) <= 80


def test_rows_that_are_not_run_are_not_drawn(drawn):
    assert drawn(["nobody"])[1] == "No row is left to draw: nobody.\n"
