"""The classifiers: nothing depends on padding or batching, gradients reach every parameter, reference computations."""

import numpy as np
import pytest
import torch
from torch import nn

import sparse_attention as sa
from tasks.classification.models.imdb_bilstm import DocumentCnn
from tasks.classification.predict import collate
from tasks.config import models
from tasks.data.symbols import EOS, PAD
from tasks.layers.lstm import BiLstm
from tasks.layers.words import WordVectors

KINDS = [("softmax", "none"), ("sparsemax", "none"), ("fusedmax", "none"), ("continuous_softmax", "none")]
KINDS += [("continuous_sparsemax", "none"), ("continuous_biweight", "none"), ("continuous_softmax", "softmax")]
KINDS += [("continuous_sparsemax", "sparsemax")]
IMDB = {"embed_dim": 6, "hidden_dim": 5, "score_dim": 4, "rbf": 16, "embed_range": 1.0}
SNLI = {"embed_dim": 6, "hidden_dim": 5, "embed_range": 1.0}


@pytest.mark.parametrize(("mapping", "discrete"), KINDS)
def test_a_review_does_not_depend_on_its_batch(toy, build_model, assert_no_part_of_the_batch, mapping, discrete):
    data, sharp = toy("toy_reviews"), ("scores", "attend", "cnn")
    model = build_model("imdb_bilstm", data, mapping, sharp, discrete=discrete, **IMDB)
    assert_no_part_of_the_batch(model, data.splits["test"], spread=1e-3)
    logits, _ = model([torch.tensor([[5, PAD], [5, 6]])], [torch.tensor([1, 2])])
    single, _ = model([torch.tensor([[5]])], [torch.tensor([1])])
    assert logits.isfinite().all() and torch.allclose(logits[:1], single, atol=1e-5), "texts of one and two words"


SELF = {"embed_dim": 6, "hidden_dim": 8, "ff_dim": 6, "heads": 2, "embed_range": 3.0}
ROWS = [n for n in models.row_mappings() if sa.spec(n).domain == "real"]


@pytest.mark.parametrize("mapping", ROWS)
def test_self_attention_with_every_mapping(
    toy, build_model, assert_no_part_of_the_batch, assert_loss_reaches_every_parameter, weights_asked, mapping
):
    data = toy("toy_reviews")
    model = build_model("imdb_transformer", data, mapping, ("in_proj_weight", "attend"), **SELF)
    # in float32, two layers and mappings with ties turn the rounding of another batch size into up to 3e-4
    extra = assert_no_part_of_the_batch(model.double(), data.splits["test"], spread=1e-3)
    assert torch.allclose(extra["attention"]["words"].sum(-1), torch.ones(12).double())
    model.float()
    weights_asked.clear()
    model(*collate(data.splits["test"], range(5)))
    assert weights_asked == [False] * len(model.layers)
    if mapping != "hardmax":  # which has no gradient
        assert_loss_reaches_every_parameter(model, data.splits["train"])


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax", "fusedmax", "oscarmax"])
def test_a_pair_does_not_depend_on_its_batch(toy, build_model, assert_no_part_of_the_batch, mapping):
    data = toy("toy_entailment")
    extra = assert_no_part_of_the_batch(build_model("snli_attentive", data, mapping, **SNLI), data.splits["test"])
    assert torch.allclose(extra["attention"]["premise"].sum(-1), torch.ones(12), atol=1e-5)


def test_combined_scores_are_divided_by_the_root_of_the_states_size(toy, build_model):
    """By 16 with the paper's sizes; not in discrete rows, nor in cells from before the option."""
    encoded = toy("toy_reviews", train=20, dev=5, test=5)

    def words(scaled, mapping="continuous_softmax", discrete="softmax"):
        model = build_model("imdb_bilstm", encoded, mapping, discrete=discrete, scaled=scaled, **IMDB)
        for name, parameter in model.named_parameters():
            if name.startswith("scores"):
                torch.nn.init.uniform_(parameter, -2, 2, generator=torch.Generator().manual_seed(len(name)))
        torch.manual_seed(3)
        texts, lengths = torch.randint(4, 9, (2, 7)), torch.tensor([7, 7])
        return model([texts], [lengths])[1]["attention"]["words"].detach()

    plain, scaled = words(False), words(True)
    power = scaled ** (2 * IMDB["hidden_dim"]) ** 0.5  # softmax(z / s)^s is softmax(z), but for its sum
    torch.testing.assert_close(power / power.sum(1, keepdim=True), plain, rtol=1e-4, atol=1e-6)
    assert (plain - scaled).abs().max() > 0.01
    torch.testing.assert_close(words(True, "softmax", "none"), words(False, "softmax", "none"))
    node = {"name": "imdb_bilstm", "discrete": "softmax", **IMDB}
    for given, scale in (({}, 1.0), ({"scaled": True}, 10**-0.5)):
        made = models.build("classification", {**node, **given}, {"name": "continuous_softmax"}, encoded)
        assert made.scale == pytest.approx(scale)


def test_the_bilstm_is_torchs_and_the_cnn_sees_only_windows_inside_the_text():
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
    cnn = DocumentCnn(3, 6)
    expected = torch.relu(cnn.conv(x[:1, :5].transpose(1, 2))).amax(-1)
    assert torch.allclose(cnn(x[:1], torch.arange(7).unsqueeze(0) < 5), expected, atol=1e-6)


def test_pretrained_vectors_stay_and_the_others_learn(toy):
    data = toy("toy_reviews")
    rows = np.arange(data.size - 3, data.size)
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    layer = WordVectors(data.size, 50, 0.05, vectors, fixed=True)
    everything = torch.arange(data.size)
    before = layer(everything).detach().clone()
    assert np.array_equal(before[rows], vectors) and not before[PAD].any() and layer.dim == 3
    assert before[[EOS, 5, 6]].any(-1).all() and len(torch.unique(before, dim=0)) == data.size
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    layer(everything).square().sum().backward()
    optimizer.step()
    after = layer(everything)
    assert torch.equal(after[rows], before[rows]) and not after[PAD].any()
    assert (after[[EOS, 5, 6]] != before[[EOS, 5, 6]]).any(-1).all()


@pytest.mark.parametrize("name", ["snli_attentive", "esim"])
def test_word_dropout_hides_words_in_training_only(toy, build_model, name):
    model = build_model(name, toy("toy_entailment"), word_dropout=0.999999, dropout=0.0, **SNLI)
    lengths = [torch.tensor([3]), torch.tensor([2])]
    texts = [torch.tensor([[5, 6, 7, PAD]]), torch.tensor([[8, 9]])]
    others = [torch.tensor([[10, 11, 12, PAD]]), torch.tensor([[13, 14]])]
    assert not torch.allclose(model(texts, lengths)[0], model(others, lengths)[0])
    model.train()
    assert torch.allclose(model(texts, lengths)[0], model(others, lengths)[0])
