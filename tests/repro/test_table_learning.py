"""A row still learns if its mean curve is shown to rise; more seeds make that surer, not likelier."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from repro.convergence import CONVERGED, LEARNING, UNKNOWN, Convergence
from repro.protocol import Metric
from repro.tables.learning import doubt, learning

ACCURACY = Metric("accuracy", "%", 1, 1, 1.0, "", "mean")
KNOWN = {"accuracy": ACCURACY, "loss": replace(ACCURACY, name="loss", better=-1)}
RISING, REST = [40.0, 41.0, 42.0, 43.0, 44.0], [40.0, 43.0, 44.0, 44.1, 43.9]


@pytest.mark.parametrize(
    "curves, sign, learns",
    [
        ([RISING] * 3, 1, True), ([[c + s / 9 for c in RISING] for s in range(3)], 1, True), ([REST] * 3, 1, False), ([RISING] * 3, -1, False),
        ([REST, REST, RISING], 1, False), ([[-v for v in RISING], [-v * 1.1 for v in RISING], [-v for v in RISING]], -1, True), ([RISING], 1, True),
    ],
)  # fmt: skip
def test_a_row_still_learns_if_its_mean_curve_is_shown_to_rise(curves, sign, learns):
    assert learning(curves, sign) is learns


def test_a_row_that_has_converged_is_rarely_doubted_and_one_that_learns_is_found():
    rng = np.random.RandomState(0)

    def doubted(slope, seeds):
        noise = rng.normal(0, 0.1, (500, seeds, 6)) + slope * np.arange(6)
        return np.mean([learning(curves.tolist(), 1) for curves in noise])

    assert doubted(0.0, 3) < 0.05 and doubted(0.0, 9) < 0.05, "more seeds do not make it worse"
    assert doubted(0.3, 3) > 0.6 and doubted(0.3, 9) > 0.99
    with pytest.raises(ValueError, match="a slope needs 3 epochs, got 2"):
        learning([[1.0, 2.0]], 1)


def test_what_a_claim_may_doubt(tmp_path):
    (tmp_path / "curves.csv").write_text("epoch,dev/loss,dev/accuracy\n1,3.0,16.1\n2,1.2,33.7\n3,1.3,40.1\n")
    row = [SimpleNamespace(folder=tmp_path)] * 2
    judged = Convergence(CONVERGED, "best epoch 2 of 3")
    assert doubt(judged, row, "accuracy", KNOWN) == LEARNING, "the curve of the score that picks the epoch decides"
    assert doubt(Convergence(LEARNING), row, "loss", KNOWN) == LEARNING, "a loss that falls"
    assert doubt(judged, [SimpleNamespace(folder=tmp_path / "none")], "loss", KNOWN) == ""
    for state in (LEARNING, UNKNOWN):
        assert doubt(Convergence(state), [SimpleNamespace(folder=tmp_path / "none")], "loss", KNOWN) == state, (
            "no curve"
        )
    assert doubt(Convergence(UNKNOWN, "no better than a constant answer"), row, "accuracy", KNOWN) == UNKNOWN
    assert doubt(Convergence(""), [SimpleNamespace(folder=tmp_path / "none")], "loss", KNOWN) == "", (
        "a fit without epochs"
    )
