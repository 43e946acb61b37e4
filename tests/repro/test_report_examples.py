"""The test examples of a report: the same for every row, spread over the test set, with failures among them."""

from __future__ import annotations

import base64
import re

import fake_family
import numpy as np
from made_report import ROWS, Made, Page

from repro.report.examples import SAMPLES, choose, confusion


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
