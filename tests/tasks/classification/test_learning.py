"""Training: every kind of attention learns, one that cannot choose does not; a test set's scores, faithfulness too."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import sparse_attention as sa
from tasks.classification.faithfulness import SHARES, attended, faithfulness
from tasks.classification.metrics import baselines, dev_scores, macro_f1, score
from tasks.classification.predict import collate, predict

REVIEWS = {"embed_dim": 16, "embed_range": 0.1, "hidden_dim": 12, "score_dim": 12, "start_variance": 0.04}
SELF = {"embed_dim": 16, "hidden_dim": 16, "ff_dim": 16, "heads": 2, "dropout": 0.0}
PAIRS = {"embed_dim": 32, "embed_range": 2.0, "hidden_dim": 32, "dropout": 0.0, "l2": 0.0}


@pytest.fixture(scope="module")
def uniform():
    """A registered mapping that cannot choose: equal weights on all kept positions."""

    def equal(scores, mask=None):
        kept = torch.ones_like(scores) if mask is None else mask.to(scores.dtype).expand_as(scores)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1) + 0 * scores

    sa.register("uniform", paper="none", summary="equal weights", replace=True)(equal)
    return "uniform"


def test_macro_f1_by_hand():
    """F1 of a: 2 * 2 / (2 + 3); of b: 2 * 1 / (2 + 1)."""
    records = [{"label": t, "output": o} for t, o in ("aa", "aa", "ba", "bb", "cd")]
    assert macro_f1(records[:4]) == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
    assert macro_f1(records) == pytest.approx(100 * (4 / 5 + 2 / 3) / 4)  # c and d have none right


def test_the_epoch_can_be_selected_by_macro_f1_on_dev(toy, build_model):
    """scikit-learn's, of the predictions; other metrics cost no predictions, and training goes on after it."""
    data = toy("toy_reviews", train=20, dev=30, test=5)
    model = build_model("imdb_bilstm", data, **REVIEWS).train()
    found = dev_scores(model, data, "macro_f1", 0, 1)
    assert model.training and dev_scores(model, data, "accuracy", 0, 1) == {}
    model.eval()
    dev = data.splits["dev"]
    with torch.no_grad():
        outputs = [model(*collate(dev, [i]))[0].argmax().item() for i in range(len(dev.labels))]
    records = [{"label": int(t), "output": o} for t, o in zip(dev.labels, outputs)]
    assert found == {"dev/macro_f1": pytest.approx(macro_f1(records), abs=1e-4)} and 0 < found["dev/macro_f1"] < 100


# sizes, data, and how it is trained
MODELS = {
    "imdb_bilstm": (REVIEWS, {"name": "toy_reviews"}, {"epochs": 4, "lr": 0.02}),
    "imdb_transformer": (SELF, {"name": "toy_reviews"}, {"epochs": 4, "lr": 0.01}),
    "snli_attentive": (PAIRS, {"name": "toy_entailment", "train": 3000}, {"epochs": 12, "lr": 0.005}),
}
# model, mapping, model.discrete, the least and the highest accuracy, and the places that attend
LEARNED = [("imdb_transformer", mapping, "none", 95, 100, ["words"]) for mapping in ("softmax", "sparsemax")]
LEARNED += [("imdb_bilstm", mapping, "none", 97, 100, ["words"]) for mapping in ("softmax", "sparsemax")]
LEARNED += [("imdb_bilstm", "continuous_softmax", "none", 90, 100, ["density"])]
LEARNED += [("imdb_bilstm", "continuous_sparsemax", "softmax", 95, 100, ["words", "density"])]
PAIRED = [("softmax", 95, 100), ("sparsemax", 50, 100), ("uniform", 0, 85)]  # sparsemax would need more epochs
LEARNED += [pytest.param("snli_attentive", m, "none", *of, ["premise"], marks=pytest.mark.slow) for m, *of in PAIRED]


@pytest.mark.parametrize("name, mapping, discrete, least, most, places", LEARNED)
def test_it_is_learned_by_attention_that_can_choose(
    toy, build_model, trained, uniform, name, mapping, discrete, least, most, places
):
    """Of pairs: which colour belongs to which thing, three classes of equal size."""
    sizes, limits, how = MODELS[name]
    sizes, data = sizes | ({"discrete": discrete} if name == "imdb_bilstm" else {}), toy(**limits)
    model = trained(build_model(name, data, mapping, **sizes), data, **how)
    found = score(data, predict(model, data.splits["test"]), keep_attention=50)
    assert least <= found.metrics["test/accuracy"] <= most
    assert name == "snli_attentive" or found.metrics["test/loss"] < 0.4
    right = sum(r["label"] == r["output"] for r in found.predictions)
    assert found.metrics["test/accuracy"] == pytest.approx(right / len(found.predictions) * 100)
    if (name, mapping) == ("imdb_bilstm", "sparsemax"):
        assert found.metrics["test/attention_zeros"] > 0.3 and found.metrics["test/attention_marked_texts"] == 100
    shown = [r for r in found.predictions if "source_tokens" in r]
    assert len(shown) == 50 == len(found.attention) and {tuple(r["output_tokens"]) for r in shown} == {(*places,)}
    for record in shown:
        weights = found.attention[f"test/{record['index']}"]
        assert weights.shape == (len(places), len(record["source_tokens"]))
        assert places[0] == "density" or float(weights[0].sum()) == pytest.approx(1, abs=1e-4)


def test_the_regression_without_attention_is_scikit_learn_s_on_the_tokens(toy):
    """Of a pair, it sees the second text alone."""
    data = toy("toy_reviews", train=200, dev=10, test=100)
    train, test = ([" ".join(line) for line in data.splits[s].tokens[0]] for s in ("train", "test"))
    vocabulary = sorted({w for t in train for w in t.split()})
    words = TfidfVectorizer(token_pattern=r"\S+", lowercase=False, vocabulary=vocabulary)
    model = LogisticRegression(max_iter=1000).fit(words.fit_transform(train), data.splits["train"].labels)
    expected = 100 * model.score(words.transform(test), data.splits["test"].labels)
    found = baselines(data, data)
    assert found["bag of words"] == {"test/accuracy": pytest.approx(expected)} and expected > 90
    assert found["majority"]["test/accuracy"] < 60
    data.splits["train"].labels[:] = 1 - data.splits["train"].labels
    assert baselines(data, data) == found, "kept beside the test set"
    assert "bag of words" not in baselines(replace(data, splits={"test": data.splits["test"]}), data)
    pairs = toy("toy_entailment", train=300, dev=10, test=100)
    found = baselines(pairs, pairs)
    assert set(found) == {"majority", "bag of words, second text alone"}
    for first, same in ((1, True), (0, False)):  # the first text has other words
        texts = {k: replace(s, fields=(s.fields[1], s.fields[first])) for k, s in pairs.splits.items()}
        asked = replace(pairs, splits=texts, sha256=f"{first}")
        assert (baselines(asked, asked) == found) == same


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


def test_a_model_gives_both_and_scores_of_a_further_test_set_stand_under_its_name(toy, build_model):
    data = toy("toy_entailment", train=60, dev=10, test=30)
    model = build_model("snli_attentive", data, "sparsemax", embed_dim=8, hidden_dim=8)
    batches = list(predict(model, data.splits["test"], 16))
    got = faithfulness(model, data.splits["test"], batches, lambda share: None)
    assert all(-1 <= got[name] <= 1 for name in ("comprehensiveness", "sufficiency"))
    asked = score(data, batches, "other", 1, ["attention"]).metrics
    assert asked["other/attention_groups"] >= 1 and 0 < asked["other/attention_clusters"] <= 1
    found = score(data, batches, name="other", keep_attention=1)
    assert asked.keys() - found.metrics.keys() == {"other/attention_groups", "other/attention_clusters"}
    assert all(name.startswith("other/") for name in found.metrics) and list(found.attention) == ["other/0"]
    assert {r["set"] for r in found.predictions} == {"other"}
    weights = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0])
    for share, words in ((0.01, [1]), (0.2, [1, 4]), (0.5, [1, 3, 4])):  # attended words have weight
        assert attended(weights, share).nonzero()[0].tolist() == words
