from __future__ import annotations

import math

import pytest
import torch

from sparse_attention import quality


def test_statistics_counted_by_hand():
    p = torch.tensor([[0.25, 0.25, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 5])
    mask = torch.tensor([[True] * 5, [False, True, True, True, False], [False] * 5])
    s = quality.attention_statistics(p, mask)
    assert s["rows"] == 2
    assert s["support"] == (3 + 1) / 2
    assert s["zeros"] == (2 + 2) / (5 + 3)
    assert s["groups"] == (2 + 1) / 2 and s["segments"] == (2 + 1) / 2
    assert s["contiguity"] == (0.5 + 1) / 2
    assert s["entropy"] == pytest.approx((0.5 * math.log(4) + 0.5 * math.log(2)) / 2)
    assert s["max_weight"] == 0.75
    # A hole in the mask joins its two sides.
    joined = quality.attention_statistics(torch.tensor([0.5, 0.0, 0.5]), torch.tensor([True, False, True]))
    assert joined["groups"] == 1 and joined["segments"] == 1 and joined["zeros"] == 0
    assert math.isnan(quality.attention_statistics(p[2:], mask[2:])["support"])


def test_alignment_error_rate_of_och_and_ney():
    sure, possible = [{(0, 0), (1, 1)}], [{(2, 1)}]
    perfect = quality.alignment_error_rate([{(0, 0), (1, 1), (2, 1)}], sure, possible)
    assert perfect == {"aer": 0.0, "precision": 1.0, "recall": 1.0}
    got = quality.alignment_error_rate([{(0, 0), (3, 1)}], sure, possible)
    assert got["aer"] == pytest.approx(1 - (1 + 1) / (2 + 2)) and got["recall"] == 0.5
    with pytest.raises(ValueError, match="one set of links per sentence"):
        quality.alignment_error_rate([set()], [], [])
    p = torch.tensor([[0.6, 0.4], [0.0, 1.0], [0.0, 0.0]])
    assert quality.links(p) == {(0, 0), (1, 1)}
    assert quality.links(p, threshold=0.3) == {(0, 0), (1, 0), (1, 1)}


def test_rationale_overlap_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.3, 0.2]])
    marked = torch.tensor([[True, False, False, True], [True, False, False, False], [False] * 4])
    got = quality.rationale_overlap(p, marked)
    assert got["texts"] == 2 and got["mass"] == pytest.approx(0.75)
    assert got["precision"] == pytest.approx((1 / 3 + 1) / 2) and got["recall"] == 0.75
    assert got["f1"] == pytest.approx((0.4 + 1) / 2)
