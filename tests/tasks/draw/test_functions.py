"""The papers' figures: what is drawn, against formulas."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from scipy import stats

from tasks.draw import documents
from tasks.draw.functions import FIGURES, PANELS, drawn, page


def columns(name: str) -> list[dict]:
    return [panel.columns for panel in PANELS[name]()]


def test_two_scores_against_closed_forms():
    value, weight = columns("niculae2017_figure2")
    t = weight["t"]
    np.testing.assert_allclose(weight["softmax"], 1 / (1 + np.exp(-t)), atol=1e-12)
    np.testing.assert_allclose(weight["sparsemax"], np.clip((t + 1) / 2, 0, 1), atol=1e-12)
    shrunk = np.sign(t) * np.maximum(np.abs(t) - 2 * 0.1, 0)  # the two scores are drawn together by lambda each
    np.testing.assert_allclose(weight["fusedmax lambda=.1"], np.clip((shrunk + 1) / 2, 0, 1), atol=1e-9)
    np.testing.assert_allclose(value["softmax"], np.logaddexp(t, 0), atol=1e-12)
    p = weight["sparsemax"]
    np.testing.assert_allclose(value["sparsemax"], p * t - (p**2 + (1 - p) ** 2) / 2 + 0.5, atol=1e-12)
    for name in set(value) - {"t"}:  # a maximum is the derivative's integral
        np.testing.assert_allclose(np.gradient(value[name], t)[1:-1], weight[name][1:-1], atol=0.02)


def test_regions_and_densities():
    for columns_, lam in zip(columns("laha2018_figure2"), (-1.0, 0.0, 0.5)):
        difference = columns_["z1"] - columns_["z2"]
        np.testing.assert_allclose(columns_["p1"], np.clip((1 + difference / (1 - lam)) / 2, 0, 1), atol=1e-9)
    soft, sparse, ratio = columns("laha2018_figure1")
    z1, z2 = soft["z1"], soft["z2"]
    np.testing.assert_allclose(soft["p1"], 1 / (1 + np.exp(z2 - z1)), atol=1e-12)
    np.testing.assert_allclose(sparse["p1"], np.clip((1 + z1 - z2) / 2, 0, 1), atol=1e-12)
    inside = (z1 >= 0) & (z2 >= 0) & (z1 + z2 > 0)
    np.testing.assert_allclose(ratio["p1"][inside], (z1 / np.where(inside, z1 + z2, 1))[inside], atol=1e-12)
    assert np.isnan(ratio["p1"][~inside]).all()
    smooth, peaked = columns("martins2020_figure1_line")
    t = smooth["t"]
    np.testing.assert_allclose(peaked["Laplace (alpha = 1)"], stats.laplace.pdf(t), atol=1e-12)
    np.testing.assert_allclose(peaked["triangular (alpha = 2)"], stats.triang.pdf(t, 0.5, -1, 2), atol=1e-12)
    np.testing.assert_allclose(smooth["Gaussian (alpha = 1)"], stats.norm.pdf(t), atol=1e-12)
    assert np.trapezoid(smooth["truncated paraboloid (alpha = 2)"], t) == pytest.approx(1, abs=1e-3)
    gaussian, paraboloid = columns("martins2020_figure1_plane")
    assert gaussian["density"].min() > 0 and (paraboloid["density"] == 0).mean() > 0.5


def test_drawn_twice_they_are_the_same_bytes():
    first = drawn("martins2020_figure1_line")
    assert first == drawn("martins2020_figure1_line")
    rows = list(csv.reader(first["martins2020_figure1_line.csv"].decode().splitlines()))
    assert len(rows) == 2 * (1 + 601) and b"<svg" in first["martins2020_figure1_line.svg"]
    assert all(figure["published"] in page() and f"]({name}.svg)" in page() for name, figure in FIGURES.items())
    assert FIGURES.keys() == PANELS.keys()


def cell(row, value, seed, setting="mean_labels", name="synthetic", **scores):
    config = {"data": {"name": name, "setting": setting, "value": value}, "seed": seed}
    return row, config, {f"test/{score}": number for score, number in scores.items()} | {"dev/f1": 0.0}


def scored(row, value, seed, setting, f1):
    return cell(row, value, seed, setting, f1=f1, labels=2.0 + seed / 10, jsd=0.1 * seed, true_labels=2.0)


def test_every_figure_that_has_cells_is_written_with_its_numbers(tmp_path):
    made = documents.collect(
        scored(row, value, seed, "length", 0.8 + 0.01 * i + 0.02 * (seed == 2))
        for i, row in enumerate(("softmax+log", "sparsemax+huber"))
        for value in (200, 300)
        for seed in (1, 2)
    )
    files = {path.name: path.read_bytes() for path in documents.write(made, "laha2018", tmp_path)}
    drawn = {f"laha2018_{figure}.{ending}" for figure in ("figure5", "jsd") for ending in ("png", "svg")}
    assert files.keys() == drawn | {"laha2018_figure5_numbers.csv"}, "of no cells with a mean number of labels"
    assert b"<svg" in files["laha2018_jsd.svg"] and files["laha2018_jsd.png"][:4] == b"\x89PNG"
    lines = files["laha2018_figure5_numbers.csv"].decode().splitlines()
    assert len(lines) == 1 + 4 * 4 * 2 and "length,200,sparsemax+huber,f1,1,0.81" in lines
    row = "| document length 200 | 0.810 ±0.014 | 0.820 ±0.014 | 2.15 ±0.07 | 2.15 ±0.07 |"
    assert row in documents.page(made).splitlines()
    assert not documents.write(documents.collect([]), "laha2018", tmp_path)


def test_points_are_collected_from_finished_cells():
    cells = [cell("softmax+log", 3, 1, f1=0.8), cell("sparsemax+hinge", 2, 1, f1=0.6)]
    cells += [cell("softmax+log", 2, 1, f1=0.7), cell("softmax+log", 3, 2, f1=0.9)] * 2  # a cell of two slots
    found = documents.collect([*cells, cell("softmax+log", 2, 1, name="yeast", f1=0.1)])
    assert found[["row", "value", "seed", "number"]].values.tolist() == [
        ["softmax+log", 2, 1, 0.7],
        ["softmax+log", 3, 1, 0.8],
        ["softmax+log", 3, 2, 0.9],
        ["sparsemax+hinge", 2, 1, 0.6],
    ]
