"""Attention and the aligner against planted and human alignments; what is measured of repetitions, by hand."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import digamma

from repro.options import read
from sparse_attention.quality import alignment_error_rate
from tasks.data import NullProgress, open_data
from tasks.data.errors import DataError
from tasks.data.symbols import PAD
from tasks.seq2seq import aligner, fertility
from tasks.seq2seq.aligner import grow_diag_final_and
from tasks.seq2seq.alignment import alignment_metrics, diagonal, merged, places
from tasks.seq2seq.batches import Pairs
from tasks.seq2seq.encode import encode, encode_test
from tasks.seq2seq.options import Encode
from tasks.seq2seq.repetition import drop_score, loops, rep_score
from tasks.seq2seq.scores import meteor
from tasks.use import evaluate


def test_tokens_are_of_words_and_their_weights_are_merged():
    for tokens, words, subword, owner in (
        ("the third @-@ party", "the third-party", "none", [0, 1, 1, 1]),
        ("l' heu@@ re .", "L'heure .", "bpe", [0, 0, 0, 1]),
        ("\u2581the \u2581do g .", "the dog.", "sentencepiece", [0, 1, 1, 1]),
        ("`` dog", '" dog', "none", None),
    ):
        assert places(tokens.split(), words.split(), subword) == owner
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # two parts of the first target word
    got = merged(weights, [0, 0, 1], [0, 0, 1], (2, 2))
    torch.testing.assert_close(got, torch.tensor([[0.85, 0.15], [0.0, 1.0]]))


class Oracle(torch.nn.Module):
    """Attends to what each word was made from; the end of sentence to the first word."""

    def __init__(self, rows) -> None:
        super().__init__()
        self.rows, self.unused = rows, torch.nn.Parameter(torch.zeros(1))

    def forward(self, source, lengths, before):
        weights = torch.zeros(len(source), before.size(1), source.size(1))
        for row, words in enumerate(source.tolist()):
            for s, t in self.rows[tuple(words[: int(lengths[row])])]:
                weights[row, t, s] = 1
        return None, weights


def test_attention_to_the_planted_alignment_has_no_error(toy_aligned):
    split = toy_aligned.splits["test"]
    model = Oracle({tuple(map(int, split.source[i])): split.gold[i][0] for i in range(len(split))})
    perfect = {"aer": 0.0, "alignment_precision": 1.0, "alignment_recall": 1.0, "alignment_left_out": 0.0}
    found = alignment_metrics(model, toy_aligned, 7)
    plain = found.pop("diagonal_aer")
    assert found.pop("alignment_mass") == pytest.approx(1.0) and found == perfect and 0 < plain < 1
    shifted = {words: {(max(s - 1, 0), t) for s, t in links} for words, links in model.rows.items()}
    wrong = alignment_metrics(Oracle(shifted), toy_aligned, 7)
    assert wrong["aer"] > 0.5 and wrong["diagonal_aer"] == plain, "the diagonal knows no weights"
    assert diagonal(4, 2) == {(0, 0), (0, 1), (1, 2), (1, 3)} and diagonal(2, 4) == {(1, 0), (3, 1)}
    every = {words: {(s, t) for _, t in links for s in range(len(words))} for words, links in model.rows.items()}
    found = alignment_metrics(Oracle(every), toy_aligned, 7)  # all source words, with a weight of 1 each
    assert found["alignment_mass"] >= 1 and found["aer"] > 0.3, "the error counts the first of equal weights alone"


@pytest.fixture
def toy_aligned(tmp_path):
    """The generated test set, encoded by a vocabulary of toy's own training pairs."""
    limits = {"train": 3000, "dev": 10, "test": 10}
    data = open_data({"name": "toy", "limits": limits}, tmp_path)
    trained = encode(data, read(Encode, {}, "encode"), tmp_path, NullProgress())
    data = open_data({"name": "toy_aligned", "limits": {"test": 40}}, tmp_path)
    return encode_test(data, trained.folder, tmp_path, NullProgress())


def test_a_finished_cell_is_scored_on_it(learned):
    """By the name of the data set, as every further test set; a cell of another direction is refused."""
    _, entry = learned("sparsemax")
    asked = ["data=toy_aligned", "data.limits.test=20", "task.scores=[bleu, attention]"]
    found = evaluate(str(entry.folder), asked).metrics
    assert 0 < found["toy_aligned/aer"] <= 1 and found["toy_aligned/alignment_left_out"] == 0
    assert found["toy_aligned/attention_groups"] >= found["toy_aligned/attention_segments"] >= 1
    assert 0 < found["toy_aligned/attention_clusters"] <= 1


def test_gold_alignments_go_with_the_direction(mirror):
    node = {"name": "hansards", "mirror": str(mirror), "limits": {}}
    directions = (node | {"source_lang": s, "target_lang": t} for s, t in (("fr", "en"), ("en", "fr")))
    french, english = (open_data(asked, "").read(NullProgress())["test"] for asked in directions)
    assert len(french) == len(english) == 60
    for one, other in zip(french, english):
        assert (one.source, one.references[0]) == (other.references[0], other.source)
        assert one.possible == {(t, s) for s, t in other.possible}
        sizes = len(one.source.split()), len(one.references[0].split())
        assert all(s < sizes[0] and t < sizes[1] for s, t in one.possible)


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


def test_planted_alignments_are_found_and_an_unseen_pair_is_aligned(tmp_path):
    sources, targets, links = planted(600)
    found = aligner.train(sources, targets, (30, 30))
    assert alignment_error_rate(found.align(sources, targets), links, links)["aer"] < 0.06
    diagonal = [{(min(t, len(s) - 1), t) for t in range(len(x))} for s, x in zip(sources, targets)]
    assert alignment_error_rate(diagonal, links, links)["aer"] > 0.3
    others, said, new = planted(60, seed=2)
    assert alignment_error_rate(found.align(others, said), new, new)["aer"] < 0.08
    assert found.align([np.array([3]), np.array([], int)], [np.array([], int), np.array([4])]) == [set(), set()]
    found.save(tmp_path / "aligner.npz")
    assert aligner.load(tmp_path / "aligner.npz").align(others, said) == found.align(others, said)
    again = aligner.train(sources, targets, (30, 30)).there
    assert np.array_equal(again.keys, found.there.keys) and np.array_equal(again.t, found.there.t)
    with pytest.raises(DataError, match="nothing can be aligned"):
        aligner.train([np.array([], int)], [np.array([1])], (5, 5))


def test_links_of_one_direction_are_those_of_the_aligners_own_model(dataset, tmp_path):
    """And what is counted of them: a target word once. A word without a link has an actual fertility of 1, also with both directions."""
    sources, targets, _ = planted(200)
    found = aligner.train(sources, targets, (30, 30))
    best = found.there.best(sources, targets)
    forward = found.forward(sources, targets)
    assert forward == [{(int(s), t) for t, s in enumerate(row) if s >= 0} for row in best]
    assert forward != found.align(sources, targets)
    names = [f"w{w}" for w in range(30)]
    pairs = [(" ".join(names[w] for w in s), " ".join(names[w] for w in t)) for s, t in zip(sources, targets)]
    plain = encode(dataset(pairs, pairs[:20]), read(Encode, {}, "encode"), tmp_path, NullProgress())
    theirs, ours = (fertility.aligned(plain, tmp_path, NullProgress(), forward=one) for one in (True, False))
    assert theirs.sha256 != ours.sha256
    own, train = fertility.aligner_of(theirs), theirs.splits["train"]
    counted, linked = fertility.counts(own, train, forward=True), own.there.best(train.source, train.target)
    of_rows = [np.bincount(row[row >= 0], minlength=len(source)) for row, source in zip(linked, train.source)]
    assert np.array_equal(counted.flat, np.maximum(np.concatenate(of_rows), 1))
    assert np.array_equal(fertility.stored(train).flat, counted.flat)
    assert np.array_equal(fertility.counts(own, train).flat, fertility.stored(ours.splits["train"]).flat)
    assert not np.array_equal(counted.flat, fertility.counts(own, train).flat)
    most = np.ones(theirs.sizes[0])
    np.maximum.at(most, np.asarray(train.source.flat), counted.flat)
    assert np.array_equal(np.load(theirs.folder / fertility.TYPES), most)
    for one in (theirs, ours):
        split = one.splits["train"]
        given, flat = Pairs(split, training=True).batch([*range(len(split))])["net_input"], fertility.stored(split).flat
        words = given["src_tokens"].ne(PAD)
        assert (flat.min(), given["fertility"][words].min()) == (int(one is theirs), 1)
        assert given["fertility"][words].sum() == np.maximum(flat, 1).sum()


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
    there = SimpleNamespace(best=lambda source, target: [np.array([-1, 0]), np.array([0])])  # -1: linked to nothing
    back = SimpleNamespace(best=lambda target, source: [np.array([1, -1]), np.array([0])])
    assert aligner.Aligner(there, back).align([], []) == [{(0, 1)}, {(0, 0)}]


def test_repetition_and_dropped_words_by_hand():
    said = [["the", "cat", "the", "cat", "sat", "sat"]]
    wanted = [["the", "cat", "sat"]]
    # "the cat" twice: 1 more than the reference; "sat sat" once: 2 * 1
    assert rep_score(said, wanted) == pytest.approx(100 * 3 / 3)
    assert rep_score(wanted, wanted) == 0 and rep_score([["a", "a"]], [["a", "a"]]) == 0
    assert loops(said) == pytest.approx(1000 * 2 / 6)  # "the cat" ends at word 4, "sat" at word 6
    assert loops([["a", "a", "a"]]) == pytest.approx(1000 * 2 / 3)
    links = {(1, 2): {(0, 0), (1, 1)}, (1,): {(0, 0)}, (9,): {(1, 0)}}
    stub = SimpleNamespace(align=lambda source, target: [links[tuple(row)] for row in target])
    for output, reference, dropped in (((1, 2), (1,), 50), ((9,), (1,), 100), ((1,), (1, 2), 0)):
        assert drop_score(stub, [[5, 6]], [output], [reference]) == dropped


def test_meteor_knows_words_and_stems():
    one = meteor(["cats sleep", "a b"], [["cats sleep"], ["c d", "a b"]])["sentence"]["meteor"]
    assert one[0] == one[1] > 90
    stemmed, other = meteor(["cat sleeps", "dog ran"], [["cats sleep"]] * 2)["sentence"]["meteor"]
    assert stemmed > 90 > other == 0
