"""The papers' figures: what is drawn, against formulas."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from scipy import stats

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
