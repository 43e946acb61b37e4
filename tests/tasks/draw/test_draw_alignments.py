"""Figures of alignments: which pairs are drawn, that structures average to what is drawn, what is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tasks.commands import attending, reproduce
from tasks.config.request import REPRODUCE, Request
from tasks.draw import alignments


def record(index: int, words: int, label: str, right: bool = True) -> dict:
    told = {"index": index, "label": label, "output": label if right else "other", "source_tokens": ["w"] * words}
    return told | {"texts": ["w " * words, "v"]}


def test_right_pairs_of_typical_length_come_first_one_of_each_class_in_turn():
    records = [record(0, 8, "a", right=False), record(1, 20, "a"), record(2, 8, "b"), record(3, 9, "b")]
    rows = [dict(enumerate([*records, record(4, 7, "a")]))] * 2
    rows[1] = dict(rows[1])
    assert alignments.choose(rows, 4) == [2, 4, 3, 1]
    del rows[1][2]["texts"]
    assert alignments.choose(rows, 9) == [3, 4, 1, 0]


def test_a_figure_has_a_line_a_row_and_its_data_all_structures(tmp_path):
    p = np.array([[0.75, 0.25], [0.25, 0.75]])
    matching = alignments.Panel("matching", "x", p, np.array([0.75, 0.25]), np.array([[0, 1], [1, 0]]))
    softmax = alignments.Panel("softmax", "y", p, np.zeros(0), np.zeros((0, 2), dtype=int))
    examples = [alignments.Example((["a", "b&"], ["c", "<d>"]), "x", [softmax, matching])]
    alignments.draw(examples, [tmp_path / "f.svg", tmp_path / "f.png"], "caption", most=1)
    assert (tmp_path / "f.png").stat().st_size > 5000 and "</svg>" in (tmp_path / "f.svg").read_text(encoding="utf-8")
    alignments.write_data(examples, tmp_path / "f.json", "caption")
    (told,) = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["examples"]
    assert told["second"] == ["c", "<d>"] and told["rows"][0]["structures"] == []
    assert told["rows"][1]["structures"][1] == {"weight": 0.25, "words": [1, 0]}
    assert alignments.one_hot(np.array([1, -1]), 2).tolist() == [[0, 1], [0, 0]]


@pytest.mark.slow
def test_structures_of_a_finished_table_average_to_the_alignment(tmp_path, isolated):
    overrides = ["profile=demo", "data=toy_entailment", "data.limits={train: 120, dev: 20, test: 20}"]
    overrides += ["encode.vocab_size=null", "model.embed_dim=8", "model.hidden_dim=8", "train.max_epochs=1"]
    overrides += [f"paths.outputs={tmp_path}", f"paths.data={isolated / 'data'}", "runtime.workers=1"]
    overrides += ["runtime.device=cpu"]
    assert reproduce.main(Request.read(overrides, REPRODUCE, ["peters2018_snli"])) == 0
    found = attending.finished("peters2018_snli", overrides)
    pairs = attending.stored_pairs(found, 3)
    examples = attending.aligned(found, [*pairs, (("red apple", "green apple here"), "own")])
    assert [e.label for e in examples] == [*[label for _, label in pairs], "own"]
    for example in examples:
        for panel in example.panels:
            n, m = (len(words) for words in example.texts)
            assert panel.alignment.shape == (n, m)
            assert (len(panel.weights) > 0) == panel.label.startswith("SparseMAP")
            if len(panel.weights):
                assert (np.diff(panel.weights) <= 0).all()
                average = sum(w * alignments.one_hot(s, m) for w, s in zip(panel.weights, panel.structures))
                np.testing.assert_allclose(average, panel.alignment, atol=1e-5)
