"""The classifiers: nothing depends on padding or batching, gradients flow to what the paper says, reference computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tasks.fairseq_plugin  # noqa: F401  (registers the models)
from tasks.classification.encode import PAD, SEPARATOR
from tasks.fairseq_plugin.classifier_layers import AdditiveScores, BiLstm, WordVectors
from tasks.fairseq_plugin.classifier_task import TextsDataset, predict
from tasks.fairseq_plugin.imdb_model import DocumentCnn, ImdbConfig, ImdbModel
from tasks.fairseq_plugin.snli_model import Gru, SnliConfig, SnliModel

KINDS = [
    ("softmax", "none"), ("sparsemax", "none"), ("fusedmax", "none"), ("continuous_softmax", "none"), ("continuous_sparsemax", "none"),
    ("continuous_biweight", "none"), ("continuous_softmax", "softmax"), ("continuous_sparsemax", "sparsemax"),
]  # fmt: skip
SMALL = {"embed_dim": 6, "hidden_dim": 5, "score_dim": 4, "rbf": 16, "embed_range": 1.0}


def imdb(encoded, mapping: str, discrete: str = "none", **more) -> ImdbModel:
    torch.manual_seed(0)
    model = ImdbModel(ImdbConfig(mapping=mapping, discrete=discrete, **(SMALL | more)), encoded)
    with torch.no_grad():  # as after training: attention that is not flat
        for name, parameter in model.named_parameters():
            if name.startswith(("scores", "attend", "cnn")):
                parameter.mul_(4)
    return model.eval()


def snli(encoded, mapping: str = "softmax", **more) -> SnliModel:
    torch.manual_seed(0)
    return SnliModel(SnliConfig(mapping=mapping, embed_dim=6, hidden_dim=5, embed_range=1.0, **more), encoded).eval()


def alone_and_together(model, split, rows):
    dataset = TextsDataset(split, shuffle=False)
    batch = dataset.collater([dataset[i] for i in rows])
    with torch.no_grad():
        together, extra = model(**batch["net_input"])
        alone = [model(**dataset.collater([dataset[i]])["net_input"]) for i in rows]
    return together, extra["attention"], alone


@pytest.mark.parametrize(("mapping", "discrete"), KINDS)
def test_a_review_does_not_depend_on_its_batch(toy, mapping, discrete):
    split = toy("toy_reviews").splits["test"]
    model = imdb(toy("toy_reviews"), mapping, discrete)
    together, attention, alone = alone_and_together(model, split, range(12))
    assert torch.allclose(together, torch.cat([logits for logits, _ in alone]), atol=1e-5)
    for name, p in attention.items():
        for row, (_, extra) in zip(p, alone):
            own = extra["attention"][name][0]
            assert torch.allclose(row[: len(own)], own, atol=1e-6) and not row[len(own) :].any()
    assert together.std(0).min() > 1e-3, "a model that says the same of every text would pass"


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax", "fusedmax", "oscarmax"])
def test_a_pair_does_not_depend_on_its_batch(toy, mapping):
    data = toy("toy_entailment")
    together, attention, alone = alone_and_together(snli(data, mapping), data.splits["test"], range(12))
    assert torch.allclose(together, torch.cat([logits for logits, _ in alone]), atol=1e-5)
    assert torch.allclose(attention["premise"].sum(-1), torch.ones(12), atol=1e-5)
    assert together.std(0).min() > 1e-4


def test_texts_of_one_and_two_words(toy):
    data = toy("toy_reviews")
    for mapping, discrete in KINDS:
        model = imdb(data, mapping, discrete)
        logits, _ = model([torch.tensor([[5, PAD], [5, 6]])], [torch.tensor([1, 2])])
        single, _ = model([torch.tensor([[5]])], [torch.tensor([1])])
        assert logits.isfinite().all() and torch.allclose(logits[:1], single, atol=1e-5), mapping


@pytest.mark.parametrize(("mapping", "discrete"), KINDS)
def test_the_loss_reaches_every_parameter(toy, mapping, discrete):
    data = toy("toy_reviews")
    model = imdb(data, mapping, discrete).train()
    dataset = TextsDataset(data.splits["train"], shuffle=False)
    batch = dataset.collater([dataset[i] for i in range(32)])
    logits, _ = model(**batch["net_input"])
    nn.functional.cross_entropy(logits, batch["target"]).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize(
    ("mapping", "discrete"),
    [("continuous_softmax", "none"), ("continuous_sparsemax", "none"), ("continuous_sparsemax", "softmax")],
)
def test_gradients_of_the_attention_against_differences(toy, mapping, discrete):
    data = toy("toy_reviews")
    model = imdb(data, mapping, discrete).double()
    dataset = TextsDataset(data.splits["train"], shuffle=False)
    batch = dataset.collater([dataset[i] for i in range(3)])
    weight = model.attend.predictor.linear.weight if discrete == "none" else model.scores.key.weight

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(model(**batch["net_input"])[0], batch["target"])

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = 1e-5
    with torch.no_grad():
        weight.add_(step * direction)
        above = loss()
        weight.sub_(2 * step * direction)
        below = loss()
    assert float((gradient * direction).sum()) == pytest.approx(
        float((above - below) / (2 * step)), rel=1e-5, abs=1e-10
    )


def test_the_bilstm_is_torchs(toy):
    torch.manual_seed(0)
    ours, theirs = BiLstm(3, 4), nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            source = ours.backwards if name.endswith("_reverse") else ours.forwards
            parameter.copy_(dict(source.named_parameters())[name.removesuffix("_reverse")])
    x, lengths = torch.randn(4, 7, 3), torch.tensor([7, 1, 4, 5])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    real = torch.arange(7) < lengths.unsqueeze(1)
    assert torch.allclose(ours(x, lengths)[real], expected[real], atol=1e-6)


def test_the_gru_follows_its_equations(toy):
    torch.manual_seed(0)
    layer = Gru(3, 4)
    x, h = torch.randn(2, 3, 3), torch.randn(2, 4)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    states, last = layer(x, mask, h)
    w_z, w_r = (w.detach().numpy() for w in layer.gates.weight.chunk(2))
    b_z, b_r = (b.detach().numpy() for b in layer.gates.bias.chunk(2))
    u_z, u_r = (u.detach().numpy() for u in layer.state_gates.weight.chunk(2))
    w, b, u = (t.detach().numpy() for t in (layer.candidate.weight, layer.candidate.bias, layer.state_candidate.weight))
    for row, length in enumerate((3, 1)):
        state = h[row].numpy()
        for t in range(length):
            word = x[row, t].numpy()
            z = 1 / (1 + np.exp(-(w_z @ word + b_z + u_z @ state)))
            r = 1 / (1 + np.exp(-(w_r @ word + b_r + u_r @ state)))
            proposed = np.tanh(w @ word + u @ (r * state) + b)
            state = z * (proposed - state) + state
            assert np.allclose(states[row, t].detach(), state, atol=1e-5)
        assert np.allclose(last[row].detach(), state, atol=1e-5)


def test_the_cnn_sees_only_windows_inside_the_text():
    torch.manual_seed(0)
    cnn = DocumentCnn(3, 6)
    states = torch.randn(1, 5, 3)
    expected = torch.relu(cnn.conv(states.transpose(1, 2))).amax(-1)
    padded = torch.cat((states, 9 * torch.randn(1, 4, 3)), 1)
    mask = torch.arange(9).unsqueeze(0) < 5
    assert torch.allclose(cnn(padded, mask), expected, atol=1e-6)


def test_additive_scores_have_no_output_bias():
    layer = AdditiveScores(3, 4, 2)
    states, query = torch.randn(2, 5, 3), torch.randn(2, 2)
    expected = torch.stack(
        [
            torch.stack(
                [
                    layer.energy.weight[0] @ torch.tanh(layer.key.weight @ s + layer.key.bias + layer.query.weight @ q)
                    for s in row
                ]
            )
            for row, q in zip(states, query)
        ]
    )
    assert torch.allclose(layer(states, query), expected, atol=1e-5) and layer.energy.bias is None


def test_pretrained_vectors_stay_and_the_others_learn(toy):
    data = toy("toy_reviews")
    rows = np.array([4, 7, data.size - 1])
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    given = type(data)(
        data.name, data.vocab, data.classes, data.splits, data.sha256, data.folder, data.report, vectors, rows
    )
    layer = WordVectors(given, 50, 0.05)
    everything = torch.arange(data.size)
    before = layer(everything).detach().clone()
    assert np.array_equal(before[rows], vectors) and not before[PAD].any() and layer.dim == 3
    assert before[[SEPARATOR, 5, 6]].any(-1).all() and len(torch.unique(before, dim=0)) == data.size
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    layer(everything).square().sum().backward()
    optimizer.step()
    after = layer(everything)
    assert torch.equal(after[rows], before[rows]) and not after[PAD].any()
    assert (after[[SEPARATOR, 5, 6]] != before[[SEPARATOR, 5, 6]]).any(-1).all()


def test_l2_counts_weights_only(toy):
    model = snli(toy("toy_entailment"), l2=0.5)
    wanted = sum(p.square().sum() for n, p in model.named_parameters() if p.ndim == 2 and not n.startswith("vectors"))
    assert model.penalty().item() == pytest.approx(0.25 * float(wanted), rel=1e-5)
    assert snli(toy("toy_entailment"), l2=0.0).penalty() == 0.0


def test_word_dropout_hides_words_in_training_only(toy):
    model = snli(toy("toy_entailment"), word_dropout=0.999999, dropout=0.0)
    texts = [torch.tensor([[5, 6, 7, PAD]]), torch.tensor([[8, 9]])]
    others = [torch.tensor([[10, 11, 12, PAD]]), torch.tensor([[13, 14]])]
    assert not torch.allclose(model(texts, [])[0], model(others, [])[0])
    model.train()
    assert torch.allclose(model(texts, [])[0], model(others, [])[0])


def test_weights_start_in_their_bounds(toy):
    torch.manual_seed(0)
    model = SnliModel(SnliConfig(embed_dim=40, hidden_dim=60), toy("toy_entailment"))
    gate = 4 * (6 / 120) ** 0.5
    for layer, bound in ((model.premise.gates, gate), (model.hypothesis.state_gates, gate), (model.premise.candidate, gate / 4),
                         (model.output, 4 * (6 / 63) ** 0.5), (model.project, (6 / 100) ** 0.5)):  # fmt: skip
        assert 0.97 * bound < layer.weight.abs().max() <= bound
    assert not any(
        layer.bias.any() for layer in model.modules() if isinstance(layer, nn.Linear) and layer.bias is not None
    )


def test_predictions_come_back_to_their_examples(toy):
    data = toy("toy_reviews")
    model = imdb(data, "sparsemax")
    split = data.splits["test"]
    small, large = (
        {int(i): row for b in predict(model, split, n) for i, row in zip(b.index, b.log_probs)} for n in (7, 100)
    )
    assert sorted(small) == list(range(len(split)))
    assert all(torch.allclose(small[i], large[i], atol=1e-5) for i in small)
