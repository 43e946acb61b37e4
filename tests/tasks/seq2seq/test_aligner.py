"""The aligner finds planted and human alignments; what is measured of repetitions, by hand."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import digamma

from sparse_attention.quality import alignment_error_rate
from tasks.data.errors import DataError
from tasks.seq2seq import aligner
from tasks.seq2seq.aligner import grow_diag_final_and
from tasks.seq2seq.repetition import drop_score, loops, rep_score
from tasks.seq2seq.scores import meteor


def planted(sentences: int, words: int = 30, seed: int = 1):
    """Sources, targets and links: word w becomes w, w twice where w is a multiple of 5, nothing where w is 7; neighbours may swap."""
    rng = random.Random(seed)
    sources, targets, links = [], [], []
    for _ in range(sentences):
        source = [rng.randrange(words) for _ in range(rng.randint(3, 8))]
        order = list(range(len(source)))
        for i in range(len(order) - 1):
            if rng.random() < 0.2:
                order[i], order[i + 1] = order[i + 1], order[i]
        said = [(i, source[i]) for i in order for _ in range(0 if source[i] == 7 else 2 if source[i] % 5 == 0 else 1)]
        if said:
            sources.append(np.array(source))
            targets.append(np.array([w for _, w in said]))
            links.append({(i, t) for t, (i, _) in enumerate(said)})
    return sources, targets, links


@pytest.fixture(scope="module")
def trained():
    sources, targets, links = planted(600)
    return aligner.train(sources, targets, (30, 30)), sources, targets, links


def test_planted_alignments_are_found_and_an_unseen_pair_is_aligned(trained, tmp_path):
    found, sources, targets, links = trained
    assert alignment_error_rate(found.align(sources, targets), links, links)["aer"] < 0.06
    diagonal = [{(min(t, len(s) - 1), t) for t in range(len(x))} for s, x in zip(sources, targets)]
    assert alignment_error_rate(diagonal, links, links)["aer"] > 0.3
    others, said, new = planted(60, seed=2)
    assert alignment_error_rate(found.align(others, said), new, new)["aer"] < 0.08
    assert found.align([np.array([3]), np.array([], int)], [np.array([], int), np.array([4])]) == [set(), set()]
    found.save(tmp_path / "aligner.npz")
    assert aligner.load(tmp_path / "aligner.npz").align(others, said) == found.align(others, said)


def test_the_same_pairs_give_the_same_model(trained):
    again = aligner.train(*trained[1:3], (30, 30))
    assert np.array_equal(again.there.keys, trained[0].there.keys) and np.array_equal(again.there.t, trained[0].there.t)
    with pytest.raises(DataError, match="nothing can be aligned"):
        aligner.train([np.array([], int)], [np.array([1])], (5, 5))


def test_one_iteration_by_hand():
    """Two sentences, with the definitions written out for each target word."""
    sources, targets, lam = [[0, 1], [1]], [[2, 3], [3]], aligner.LAM
    made = aligner.fit([np.array(s) for s in sources], [np.array(t) for t in targets], (2, 4), iterations=1)
    counts: dict[tuple[int, int], float] = {}
    for s, t in zip(sources, targets):
        for i, f in enumerate(t, 1):
            prior = [np.exp(-lam * abs(i / len(t) - j / len(s))) for j in range(1, len(s) + 1)]
            posterior = [(2, aligner.P0)] + [(e, (1 - aligner.P0) * p / sum(prior)) for e, p in zip(s, prior)]
            assert sum(p for _, p in posterior) == pytest.approx(1.0)
            for e, p in posterior:
                counts[e, f] = counts.get((e, f), 0.0) + p
    for key, t in zip(made.keys, made.t):
        e, f = divmod(int(key), 4)
        row = sum(n + aligner.ALPHA for (a, _), n in counts.items() if a == e)
        expected = np.exp(digamma(counts[e, f] + aligner.ALPHA) - digamma(row))
        assert t == pytest.approx(expected, rel=1e-5)


def test_symmetrisation_by_hand():
    forward, backward = {(0, 0), (1, 1), (2, 3)}, {(0, 0), (1, 1), (1, 2), (3, 4)}
    assert grow_diag_final_and(forward, backward) == {(0, 0), (1, 1), (1, 2), (2, 3), (3, 4)}
    assert grow_diag_final_and(set(), {(4, 0)}) == {(4, 0)}
    assert grow_diag_final_and({(0, 0), (0, 5)}, {(0, 0)}) == {(0, 0)}  # its source word has a link already


def test_a_word_linked_to_nothing_has_no_link():
    there = SimpleNamespace(best=lambda source, target: [np.array([-1, 0]), np.array([0])])
    back = SimpleNamespace(best=lambda target, source: [np.array([1, -1]), np.array([0])])
    assert aligner.Aligner(there, back).align([], []) == [{(0, 1)}, {(0, 0)}]


def test_repetition_by_hand():
    said = [["the", "cat", "the", "cat", "sat", "sat"]]
    wanted = [["the", "cat", "sat"]]
    # "the cat" twice: 1 more than the reference; "sat sat" once: 2 * 1
    assert rep_score(said, wanted) == pytest.approx(100 * 3 / 3)
    assert rep_score(wanted, wanted) == 0 and rep_score([["a", "a"]], [["a", "a"]]) == 0
    assert loops(said) == pytest.approx(1000 * 2 / 6)  # "the cat" ends at word 4, "sat" at word 6
    assert loops([["a", "a", "a"]]) == pytest.approx(1000 * 2 / 3)


def test_dropped_words_by_hand():
    links = {(1, 2): {(0, 0), (1, 1)}, (1,): {(0, 0)}, (9,): {(1, 0)}}
    stub = SimpleNamespace(align=lambda source, target: [links[tuple(row)] for row in target])
    assert drop_score(stub, [[5, 6]], [(1, 2)], [(1,)]) == 50
    assert drop_score(stub, [[5, 6]], [(9,)], [(1,)]) == 100 and drop_score(stub, [[5, 6]], [(1,)], [(1, 2)]) == 0


def test_meteor_knows_words_and_stems():
    one = meteor(["cats sleep", "a b"], [["cats sleep"], ["c d", "a b"]])["sentence"]["meteor"]
    assert one[0] == one[1] > 90
    stemmed, other = meteor(["cat sleeps", "dog ran"], [["cats sleep"]] * 2)["sentence"]["meteor"]
    assert stemmed > 90 > other == 0
