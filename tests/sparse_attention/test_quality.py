import math

import pytest
import torch

import sparse_attention
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
    apart = quality.attention_statistics(torch.tensor([[0.2, 0.0, 0.3, 0.0, 0.5]]))
    assert (apart["contiguity"], apart["segments"], apart["groups"]) == (0, 3, 3)
    assert quality.attention_statistics(torch.zeros(1, 3))["contiguity"] == 1  # no support: one run at most
    nothing = quality.attention_statistics(p[2:], mask[2:])
    assert nothing.pop("rows") == 0 and len(nothing) == 8 and all(map(math.isnan, nothing.values()))


def test_clusters_are_equal_weights_wherever_they_are():
    """Oscarmax ties words that are apart, which groups, runs of neighbours, do not show."""
    apart = torch.tensor([[0.3, 0.1, 0.3, 0.0, 0.3], [0.4, 0.3, 0.2, 0.1, 0.0]])
    found = quality.attention_statistics(apart)
    assert found["groups"] == 4 and found["clusters"] == pytest.approx((2 / 4 + 4 / 4) / 2)
    for relative, count in ((1e-7, 1), (1e-5, 2)):
        near = torch.tensor([1e-3, 1e-3 * (1 + relative)], dtype=torch.float64)
        assert quality.attention_statistics(near)["clusters"] == count / 2
    mask = torch.tensor([True, False, True, True, True])
    assert quality.attention_statistics(apart[0], mask)["clusters"] == pytest.approx(1 / 3)
    assert quality.attention_statistics(torch.zeros(1, 3))["clusters"] == 1
    scores = torch.tensor([[1.0, 0.2, 1.04, 0.9, 0.1]], dtype=torch.float64)
    few = quality.attention_statistics(sparse_attention.oscarmax(scores, lam=0.1))
    many = quality.attention_statistics(sparse_attention.sparsemax(scores))
    assert few["clusters"] < many["clusters"] == 1 and few["support"] == many["support"] == 3


def test_rationale_overlap_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.3, 0.2]])
    marked = torch.tensor([[True, False, False, True], [True, False, False, False], [False] * 4])
    got = quality.rationale_overlap(p, marked)
    assert got["texts"] == 2 and got["mass"] == pytest.approx(0.75)
    assert got["precision"] == pytest.approx((1 / 3 + 1) / 2) and got["recall"] == 0.75
    assert got["f1"] == pytest.approx((0.4 + 1) / 2)


def test_rationales_under_masks_and_without_marks():
    p = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.25, 0.75]])
    marked, keep = torch.tensor([[True, True, True], [True, False, False]]), torch.tensor([[True, True, False]] * 2)
    got = quality.rationale_overlap(p, marked, keep)
    assert got["precision"] == 0.5 and got["recall"] == 0.25 and got["mass"] == 0.25
    assert got["f1"] == pytest.approx((2 / 3 + 0) / 2) and got["texts"] == 2
    none = quality.rationale_overlap(p, marked & False)
    assert none.pop("texts") == 0 and len(none) == 4 and all(map(math.isnan, none.values()))
    with pytest.raises(ValueError, match=r"attention \(2, 3\) and rationale \(2, 2\)"):
        quality.rationale_overlap(p, marked[:, :2])


def test_the_alignment_error_rate_of_och_and_ney():
    found = [{(0, 0), (1, 1)}, {(5, 5)}, {(0, 0), (0, 1), (0, 2), (0, 3)}]
    sure, possible = [{(0, 0)}, {(5, 5), (6, 6), (7, 7)}, {(0, 3)}], [{(1, 1)}, set(), {(0, 0), (0, 1)}]
    got = quality.alignment_error_rate(found, sure, possible)  # A = 7, S = 5, A & S = 3, A & P = 6
    assert got == {"aer": pytest.approx(1 - 9 / 12), "precision": pytest.approx(6 / 7), "recall": pytest.approx(3 / 5)}
    perfect = quality.alignment_error_rate([{(0, 0), (1, 1), (2, 1)}], [{(0, 0), (1, 1)}], [{(2, 1)}])
    assert perfect == {"aer": 0.0, "precision": 1.0, "recall": 1.0}
    empty = quality.alignment_error_rate([set()], [set()], [{(1, 1)}])
    assert set(empty) == {"aer", "precision", "recall"} and all(map(math.isnan, empty.values()))
    missed = quality.alignment_error_rate([set()], [{(0, 0)}], [set()])
    assert missed["aer"] == 1 and missed["recall"] == 0 and math.isnan(missed["precision"])
    for lists in (([], [set()], []), ([], [], [set()]), ([set()], [], [])):
        with pytest.raises(ValueError, match="one set of links per sentence"):
            quality.alignment_error_rate(*lists)
    p = torch.tensor([[0.6, 0.4], [0.0, 1.0], [0.0, 0.0], [0.5, 0.5]])
    assert quality.links(p) == {(0, 0), (1, 1), (0, 3)}
