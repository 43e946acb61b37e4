"""Faithfulness and groups: against a model whose answers are known, and the identities of cells that never asked for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repro.identity import Cell
from repro.protocol import Prepared, TestSet
from tasks.classification.faithfulness import SHARES, attended, faithfulness, further
from tasks.classification.predict import predict
from tasks.config.compose import module_of


class Spotter(torch.nn.Module):
    """Says class 1 with probability .9 when the text has the word, .2 otherwise, and attends to that word or to the last one."""

    def __init__(self, word: int, honest: bool) -> None:
        super().__init__()
        self.word, self.honest, self.unused = word, honest, torch.nn.Parameter(torch.zeros(1))

    def forward(self, texts, lengths):
        has = texts[0].eq(self.word)
        probability = torch.where(has.any(1), 0.9, 0.2)
        last = torch.zeros_like(texts[0]).scatter_(1, lengths[0].unsqueeze(1) - 1, 1)
        at = torch.where(has.any(1, keepdim=True) & torch.tensor(self.honest), has.long(), last).float()
        logits = torch.stack((1 - probability, probability), 1).log()
        return logits, {"attention": {"words": at / at.sum(1, keepdim=True)}}


@pytest.mark.parametrize("honest", [True, False])
def test_of_a_model_that_looks_at_one_word(toy, honest):
    split = toy("toy_reviews", train=60, dev=10, test=30).splits["test"]
    word = int(np.bincount(np.concatenate([split.fields[0][i] for i in range(len(split))])).argmax())
    texts = [np.asarray(split.fields[0][i]) for i in range(len(split))]
    model = Spotter(word, honest)
    got = faithfulness(model, split, list(predict(model, split, 7)), lambda share: None)
    with_word = np.array([word in text for text in texts])
    alone = np.array([(text == word).sum() for text in texts])
    if honest:  # taking out the word (all its places where so many are allowed) turns .9 into .2; alone it is enough
        shares = [[min(max(1, np.ceil(s * len(text))), n) == n for s in SHARES] for text, n in zip(texts, alone) if n]
        assert got["comprehensiveness"] == pytest.approx(0.7 * np.mean(shares) * with_word.mean(), abs=1e-6)
        assert got["sufficiency"] == pytest.approx(0, abs=1e-6)
    else:  # the last word says nothing, unless it is the word
        ends = np.array([text[-1] == word for text in texts])
        lone = with_word & ends & (alone == 1)
        assert got["comprehensiveness"] == pytest.approx(0.7 * lone.mean(), abs=1e-6)
        assert got["sufficiency"] == pytest.approx(0.7 * (with_word & ~ends).mean(), abs=1e-6)


def test_attended_words_have_weight():
    weights = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert attended(weights, 0.01).nonzero()[0].tolist() == [1]
    assert attended(weights, 0.2).nonzero()[0].tolist() == [1, 4]
    assert attended(weights, 0.5).nonzero()[0].tolist() == [1, 3, 4]


def test_a_trained_model_gives_both(toy, build_model):
    data = toy("toy_entailment", train=60, dev=10, test=30)
    model = build_model("snli_attentive", data, "sparsemax", embed_dim=8, hidden_dim=8)
    batches = list(predict(model, data.splits["test"], 16))
    got = further(model, data.splits["test"], batches, ["attention", "faithfulness"])
    assert set(got) == {"attention_groups", "attention_clusters", "comprehensiveness", "sufficiency"}
    assert all(-1 <= got[name] <= 1 for name in ("comprehensiveness", "sufficiency")) and got["attention_groups"] >= 1
    assert 0 < got["attention_clusters"] <= 1
    assert further(model, data.splits["test"], batches, []) == {}


def test_asking_for_them_changes_the_evaluation_alone(composed):
    plain, asked = composed(["task=imdb"]), composed(["task=imdb", "task.scores=[faithfulness]"])
    before = {**plain, "task": {k: v for k, v in plain["task"].items() if k != "scores"}}  # a cell of an older version
    test = TestSet("test", "0", "")
    cells = [Cell(config, module_of(config), Prepared("0", "")) for config in (before, plain, asked)]
    assert len({cell.training_id for cell in cells}) == 1
    ids = [cell.evaluation_id(test) for cell in cells]
    assert ids[0] == ids[1] != ids[2] and cells[0].cell_id == cells[1].cell_id
