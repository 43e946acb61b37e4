"""The figures and claims of Laha et al. 2018 from finished cells."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.multilabel import figures
from tasks.multilabel.figures import CLAIMS, Point, differences, verdict


def point(row, setting, value, **scores):
    return Point(setting, value, row, {k: dict(enumerate(v, 1)) for k, v in scores.items()})


def test_claims_are_judged_on_the_differences_per_seed():
    claim = CLAIMS[0]
    made = []
    for value, low, high in ((2, (0.7, 0.8), (0.9, 0.9)), (9, (0.9, 0.9), (0.8, 0.9))):
        made += [
            point("sparsemax+huber", "mean_labels", value, f1=low),
            point("sparsemax+hinge", "mean_labels", value, f1=high),
        ]
    found = differences(made, claim)
    np.testing.assert_allclose(found["mean_labels", 2], [0.2, 0.1])
    np.testing.assert_allclose(found["mean_labels", 9], [-0.1, 0.0])
    assert verdict(found, 1)[:2] == ("does not hold", 1)  # one of two is not most
    assert verdict({k: v for k, v in found.items() if k[1] == 2}, 1) == ("holds", 1, pytest.approx(0.15))
    assert verdict(found, -1)[0] == "does not hold"
    three = {
        1: np.array([0.2, 0.4]),
        2: np.array([0.1]),
        3: np.array([0.0]),
    }  # no difference is none in the claim's favour
    assert verdict(three, 1) == ("mostly", 2, pytest.approx(0.4 / 3))
    assert verdict(three | {3: np.array([-0.9])}, 1)[0] == "does not hold"  # most values, but not their mean
    assert verdict({1: np.array([-0.2])}, -1) == ("holds", 1, pytest.approx(-0.2))
    assert "mean_labels 9 (-0.0500)" in figures.claims(made)


def test_figures_are_written_with_their_numbers(tmp_path):
    made = [
        point(row, setting, value, f1=(0.8 + 0.01 * i, 0.82), labels=(2.0, 2.1), jsd=(0.1, 0.2), true_labels=(2.0, 2.0))
        for i, (_, row) in enumerate([(0, "softmax+log"), (1, "sparsemax+huber")])
        for setting, value in (("mean_labels", 2), ("mean_labels", 3), ("length", 200))
    ]  # fmt: skip
    files = figures.draw(made, "f1", ("mean_labels", "length"), tmp_path / "figure5")
    assert [f.suffix for f in files] == [".png", ".svg"]
    svg = files[1].read_text()
    again = figures.draw(made, "f1", ("mean_labels", "length"), tmp_path / "figure5")[1].read_text()
    assert svg == again, "the same numbers give the same file"
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    lines = figures.numbers(made).splitlines()
    assert len(lines) == 1 + 6 * 4 * 2
    assert "mean_labels,2,sparsemax+huber,f1,1,0.81" in lines


def test_points_are_collected_from_finished_cells():
    def cell(row, value, seed, f1, name="synthetic"):
        config = {"data": {"name": name, "setting": "mean_labels", "value": value}, "seed": seed}
        return row, config, {"test/f1": f1, "dev/f1": 0.0}

    cells = [
        cell("softmax+log", 3, 1, 0.8),
        cell("sparsemax+hinge", 2, 1, 0.6),
        cell("softmax+log", 2, 1, 0.7),
        cell("softmax+log", 3, 2, 0.9),
    ]
    found = figures.collect([*cells, cell("softmax+log", 2, 1, 0.1, name="yeast")])
    assert [(p.row, p.value) for p in found] == [("softmax+log", 2), ("softmax+log", 3), ("sparsemax+hinge", 2)]
    assert found[1].scores == {"f1": {1: 0.8, 2: 0.9}}


def test_every_figure_that_has_cells_is_written(tmp_path):
    made = [point("sparsemax+hinge", "length", 200, f1=(0.8,), labels=(2.0,), jsd=(0.1,), true_labels=(2.0,))]
    names = {path.name for path in figures.write(made, "laha2018", tmp_path)}
    assert names == {
        "laha2018_figure5.png", "laha2018_figure5.svg", "laha2018_jsd.png", "laha2018_jsd.svg",
        "laha2018_figure5_numbers.csv", "laha2018_figure5_claims.md",
    }  # fmt: skip
    assert not figures.write([], "laha2018", tmp_path)
