"""The encoder-decoder with fertilities: one attention in training and search, a sink, coverage vectors, gradients."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sparse_attention as sa
from tasks.config.models import build as built
from tasks.data.symbols import FIRST, PAD
from tasks.fairseq_plugin.fertility import Tags
from tasks.fairseq_plugin.seq2seq import Tokens
from tasks.layers.lstm import Tagger
from tasks.seq2seq.models import lstm_fertility
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import Hypothesis, ranked

WORDS = 20
MAPPINGS = ["fertility_softmax", "fertility_sparsemax"]
KINDS = [{"constant": 1.0}, {"fertility": "actual"}, {"fertility": "predicted"}]
KINDS += [{"fertility": "guided", "coverage": True}]


@pytest.fixture(scope="module")
def fertile(build):
    """As `build`, of one layer; guided fertilities are 1, 2 and 3."""

    def make(mapping, params=None, **options):
        model = build(mapping, params, of=lstm_fertility, layers=1, tagger_dim=4, **options)
        if model.options.fertility == "guided":
            model.of_type.copy_(1 + torch.arange(WORDS + FIRST) % 3)
        return model

    return make


def given(inputs, model):
    """Fertilities of the pairs where the model wants them."""
    if model.options.fertility != "actual":
        return {}
    return {"fertility": torch.randint(3, inputs["src_tokens"].shape, generator=torch.Generator().manual_seed(5))}


@pytest.mark.parametrize("mapping", [*MAPPINGS, "softmax"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("feeding", [True, False])
def test_training_is_what_the_search_sees(
    fertile, sentences, assert_search_sees_training, assert_alone_as_in_a_batch, mapping, kind, feeding
):
    model = fertile(mapping, input_feeding=feeding, bidirectional=True, **kind)
    assert_search_sees_training(model, sentences[0], **given(sentences[0], model))
    if "constant" in kind:
        assert_alone_as_in_a_batch(model, *sentences)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_words_get_no_more_than_their_fertility_and_padding_nothing(fertile, build, sentences, mapping):
    model = fertile(mapping, constant=1.0, init_range=2.0)
    inputs, _ = sentences
    _, attention = model(**inputs)
    padding = inputs["src_tokens"].eq(PAD)
    assert attention.masked_select(padding.unsqueeze(1).expand_as(attention)).eq(0).all()
    assert 0.9 < attention.sum(1).max() <= 1 + 1e-6, "below: no word was used up"
    without, plain = fertile("softmax", sink=False), build("softmax", layers=1)
    plain.load_state_dict(without.state_dict())
    torch.testing.assert_close(without(**inputs), plain(**inputs))
    with pytest.raises(ValueError, match=r"remaining fertility is too small.*model.sink=true"):
        fertile("fertility_softmax", constant=1.0, sink=False)(**inputs)
    with pytest.raises(ValueError, match=r"model\.fertility=actual needs"):
        fertile("fertility_softmax", fertility="actual")(**inputs)
    for options in ({"fertility": "guided"}, {"coverage_loss": 0.5}):
        with pytest.raises(ValueError, match="need pairs that we encoded"):
            fertile("fertility_softmax", **options).adopt(None)


def test_predicted_fertilities_are_expected_values_from_1_to_10(fertile, sentences):
    """And the most likely ones from 0 in cells from before, whose stored options do not have `forward_links`."""
    (inputs, _), model = sentences, fertile("fertility_softmax", fertility="predicted")
    tokens, lengths, real = inputs["src_tokens"], inputs["src_lengths"], inputs["src_tokens"].ne(PAD)
    p = model.tagger(tokens, lengths).softmax(-1)
    assert p.size(-1) == 11 and not p[..., 0].any()
    expected = sum(k * p[..., k] for k in range(1, 11))
    words = model.encode(tokens, lengths)["fertility"][:, :-1]
    torch.testing.assert_close(words[real], expected[real])
    assert words[real].min() >= 1
    node = {"name": "lstm_fertility", "embed_dim": 6, "hidden_dim": 8, "layers": 1, "tagger_dim": 4}
    node |= {"fertility": "predicted"}
    earlier = built("seq2seq", node, {"name": "fertility_softmax"}, WORDS + FIRST, WORDS + FIRST).eval()
    scores = earlier.tagger(tokens, lengths)
    assert scores.isfinite().all()
    assert torch.equal(earlier.encode(tokens, lengths)["fertility"][:, :-1][real].long(), scores.argmax(-1)[real])


def test_coverage_vectors_by_hand(fertile, sentences):
    model = fertile("softmax", sink=False, coverage=True, input_feeding=False)
    inputs, _ = sentences
    _, attention = model(**inputs)
    memory = model.encode(inputs["src_tokens"], inputs["src_lengths"])
    x = model.target_embed(inputs["prev_output_tokens"])
    queries, _ = model.decoder(x, tuple(memory[k].transpose(0, 1).contiguous() for k in ("h", "c")))
    received = torch.zeros_like(attention[:, 0])
    for t in range(attention.size(1)):
        keys = torch.tanh(memory["keys"] + received.unsqueeze(2) * model.cover.weight[:, 0])
        p = sa.softmax(model.attention.scores(queries[:, t : t + 1], keys).squeeze(1), mask=memory["mask"])
        torch.testing.assert_close(attention[:, t], p)
        received = received + p


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("coverage", [False, True])
def test_gradients_by_finite_differences_through_the_whole_decoder_over_three_steps(fertile, batch, mapping, coverage):
    model = fertile(mapping, {"c": 0.2}, constant=1.0, coverage=coverage, seed=2)
    inputs, target = batch([[3, 5, 7, 2], [1, 4]], [[2, 9], [8, 6]])
    tested = ("decoder", "attention", "cover")
    names, values = zip(*((n, p) for n, p in model.named_parameters() if any(part in n for part in tested)))

    def loss(*given):
        logits, _ = torch.func.functional_call(model, dict(zip(names, given)), (), inputs)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    assert inputs["prev_output_tokens"].size(1) == 3
    assert torch.autograd.gradcheck(loss, values, eps=1e-6, atol=1e-6, fast_mode=True)


def test_penalties_by_hand():
    """Wu et al. 2016, equation 14: the short output leaves a word without attention."""
    short = Hypothesis([5, 2], torch.tensor([[1.0, 0.0], [1.0, 0.0]]), -1.0)
    long = Hypothesis([5, 6, 2], torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.0, 0.0]]), -1.2)
    both = Decode(length="wu", len_penalty=0.6, coverage_penalty=0.2)
    first, second = ranked([short, long], both)
    assert first.ids == long.ids and first.score == pytest.approx(-1.2 / (8 / 6) ** 0.6)
    assert second.score == pytest.approx(-1.0 / (7 / 6) ** 0.6 + 0.2 * np.log(0.1))


def test_the_authors_tagger_has_no_fertility_0_and_halves_the_loss_of_1_in_training():
    """As torch's NLLLoss with weights: loss and average; dev and taggers from 0 have no weights."""
    criterion = Tags(SimpleNamespace(target_dictionary=None))
    tokens, target = torch.tensor([[5, 6, 7, PAD]]), torch.tensor([[1, 2, 1, 0]])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([3])}, "target": target}
    sample |= {"ntokens": 3, "nsentences": 1}
    for least, training in itertools.product((0, 1), (False, True)):
        torch.manual_seed(0)
        tagger = Tagger(WORDS + FIRST, 4, 4, dropout=0.0, least=least)
        scores = tagger(tokens, torch.tensor([3]))
        assert scores[..., 0].eq(-torch.inf).all() == bool(least) and scores[..., 1:].isfinite().all()
        wrapped = torch.nn.Module().train(training)
        wrapped.net, wrapped.forward = tagger, tagger.forward
        loss, size, log = criterion(wrapped, sample)
        weight = 0.5 if least and training else 1.0
        of_1, of_2, last = (-scores[0, i].log_softmax(-1)[k].item() for i, k in enumerate((1, 2, 1)))
        assert loss.item() == pytest.approx(weight * of_1 + of_2 + weight * last, rel=1e-5)
        assert float(size) == float(log["sample_size"]) == 1 + 2 * weight and log["ntokens"] == 3
        weights = torch.tensor([1.0, weight, *[1.0] * 9])
        mean = torch.nn.NLLLoss(weight=weights)(scores[0, :3].log_softmax(-1), target[0, :3])
        torch.testing.assert_close(loss / size, mean)


def test_the_coverage_loss_by_hand(fertile, sentences):
    """The sum over steps and words of min(attention, attention received before), in training only."""
    inputs, target = sentences[0], sentences[0]["prev_output_tokens"]
    sample = {"net_input": inputs, "target": target, "ntokens": target.numel()}
    made = [fertile("softmax", sink=False, coverage=True, coverage_loss=weight) for weight in (0.0, 0.7)]
    criterion, found = Tokens(SimpleNamespace(sentence_avg=False, smoothing=0.0), None), []
    for net in made:
        wrapped = torch.nn.Module()
        wrapped.net, wrapped.forward = net, lambda net=net, **x: ((made := net(**x))[0], {"attn": [made[1]]})
        for wrapped.training in (True, False):
            found.append(criterion.summed(wrapped, sample)[0].item())
    p, expected = made[0](**inputs)[1], 0.0
    for b, t, s in np.ndindex(*p.shape):
        if target[b, t] != PAD:
            expected += min(p[b, t, s].item(), sum(p[b, u, s].item() for u in range(t)))
    without, dev, weighted, dev_weighted = found
    assert without == dev == dev_weighted and weighted - without == pytest.approx(0.7 * expected, rel=1e-6) != 0
