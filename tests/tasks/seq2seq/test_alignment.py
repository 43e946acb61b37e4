from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.config.options import read
from tasks.data import NullProgress, open_data
from tasks.data.symbols import EOS
from tasks.load import evaluate
from tasks.seq2seq.alignment import alignment_metrics, diagonal, forced, merged, places
from tasks.seq2seq.encode import encode, encode_test
from tasks.seq2seq.options import Encode


@pytest.mark.parametrize(
    "tokens, words, subword, owner",
    [
        (["the", "third", "@-@", "party"], ["the", "third-party"], "none", [0, 1, 1, 1]),
        (["l'", "heu@@", "re", "."], ["L'heure", "."], "bpe", [0, 0, 0, 1]),
        (["\u2581the", "\u2581do", "g", "."], ["the", "dog."], "sentencepiece", [0, 1, 1, 1]),
        (["``", "dog"], ['"', "dog"], "none", None),
    ],
)
def test_tokens_are_of_words(tokens, words, subword, owner):
    assert places(tokens, words, subword) == owner


def test_subwords_are_merged_by_hand():
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # two parts of the first target word
    got = merged(weights, [0, 0, 1], [0, 0, 1], (2, 2))
    torch.testing.assert_close(got, torch.tensor([[0.85, 0.15], [0.0, 1.0]]))


def test_forced_attention_is_that_of_saying_the_reference(build, dataset, tmp_path):
    """Against the model's own steps, one word at a time."""
    pairs = [("a b c", "x y"), ("b a", "y z x"), ("c", "z")]
    encoded = encode(dataset(pairs, pairs), read(Encode, {}, "encode"), tmp_path, NullProgress())
    split, model = encoded.splits["dev"], build("sparsemax", words=3)
    for i, weights in enumerate(forced(model, split, batch_size=2)):
        source = torch.from_numpy(np.asarray(split.source[i], dtype=np.int64))[None]
        memory = model.encode(source, torch.tensor([source.size(1)]))
        state, before = model.start(memory), EOS
        for row, word in zip(weights, split.target[i]):
            _, p, state = model.step(torch.tensor([before]), memory, state)
            torch.testing.assert_close(row, p[0].float())
            before = int(word)
        assert len(weights) == len(split.target[i])


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


def test_the_diagonal_and_equal_weights_count_as_they_should(toy_aligned):
    assert diagonal(4, 2) == {(0, 0), (0, 1), (1, 2), (1, 3)} and diagonal(2, 4) == {(1, 0), (3, 1)}
    split = toy_aligned.splits["test"]
    both = {
        tuple(map(int, split.source[i])): {(s, t) for _, t in split.gold[i][0] for s in range(len(split.source[i]))}
        for i in range(len(split))
    }
    found = alignment_metrics(Oracle(both), toy_aligned, 7)  # all source words, with a weight of 1 each
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


@pytest.mark.parametrize("name, count", [("hansards", 60), ("pud_enfr", 2)])
def test_gold_alignments_go_with_the_direction(mirror, name, count):
    node = {"name": name, "mirror": str(mirror), "limits": {}}
    french, english = (
        open_data(node | {"source_lang": s, "target_lang": t}, "").read(NullProgress())["test"]
        for s, t in (("fr", "en"), ("en", "fr"))
    )
    assert len(french) == len(english) == count
    for one, other in zip(french, english):
        assert (one.source, one.references[0]) == (other.references[0], other.source)
        assert one.possible == {(t, s) for s, t in other.possible}
        sizes = len(one.source.split()), len(one.references[0].split())
        assert all(s < sizes[0] and t < sizes[1] for s, t in one.possible)
