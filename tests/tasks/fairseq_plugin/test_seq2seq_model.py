"""The encoder-decoder: training and decoding see the same attention, padding is never seen, the mapping matters."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import sparse_attention as sa
from tasks.fairseq_plugin.criterion import TokenCrossEntropy
from tasks.fairseq_plugin.seq2seq_model import Seq2SeqConfig, Seq2SeqModel

# Small gamma: untrained scores are flat, and the sparse mappings shall have zeros here.
MAPPINGS = [("softmax", {}), ("sparsemax", {"gamma": 0.1}), ("fusedmax", {"lam": 0.1, "gamma": 0.1})]
SHAPES = [
    pytest.param({"input_feeding": f, "bidirectional": b, "attention": a}, id=f"{a}{'-feeding' * f}{'-bidirectional' * b}")
    for f in (True, False) for b in (True, False) for a in ("general", "dot", "additive")
]  # fmt: skip


def whole(model, net_input):
    """Teacher forcing: logits [B, T, V] and attention [B, T, S] of all steps at once."""
    logits, extra = model(**net_input)
    return logits, extra["attn"][0]


@pytest.mark.parametrize("mapping, params", MAPPINGS, ids=[m for m, _ in MAPPINGS])
@pytest.mark.parametrize("options", SHAPES)
def test_training_path_equals_step_by_step_decoding(build, sentences, mapping, params, options):
    model = build(mapping, params, **options)
    net_input = sentences["net_input"]
    with torch.no_grad():
        logits, attention = whole(model, net_input)
        encoded = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
        state: dict = {}
        for t in range(logits.size(1)):
            step, extra = model.decoder(
                net_input["prev_output_tokens"][:, : t + 1], encoder_out=encoded, incremental_state=state
            )
            torch.testing.assert_close(step[:, -1], logits[:, t], atol=1e-5, rtol=0)
            torch.testing.assert_close(extra["attn"][0][:, -1], attention[:, t], atol=1e-5, rtol=0)


@pytest.mark.parametrize("mapping, params", MAPPINGS, ids=[m for m, _ in MAPPINGS])
@pytest.mark.parametrize("options", SHAPES)
def test_attention_is_a_distribution_over_words_only(build, sentences, mapping, params, options):
    model = build(mapping, params, **options)
    padding = sentences["net_input"]["src_tokens"].eq(1)
    for training in (False, True):
        _, attention = whole(model.train(training), sentences["net_input"])
        torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
        assert attention.min() >= 0
        assert attention.masked_select(padding.unsqueeze(1).expand_as(attention)).eq(0).all()
        assert padding.any()


@pytest.mark.parametrize("mapping, params", MAPPINGS, ids=[m for m, _ in MAPPINGS])
@pytest.mark.parametrize("options", SHAPES)
def test_a_sentence_alone_gives_the_same_as_in_a_padded_batch(build, sentences, mapping, params, options):
    model = build(mapping, params, **options)
    net_input, target = sentences["net_input"], sentences["target"]
    logits, attention = whole(model, net_input)
    for i, length in enumerate(net_input["src_lengths"].tolist()):
        steps = int(target[i].ne(1).sum())
        alone = {
            "src_tokens": net_input["src_tokens"][i : i + 1, :length], "src_lengths": net_input["src_lengths"][i : i + 1],
            "prev_output_tokens": net_input["prev_output_tokens"][i : i + 1, :steps],
        }  # fmt: skip
        one, one_attention = whole(model, alone)
        torch.testing.assert_close(one[0], logits[i, :steps])
        torch.testing.assert_close(one_attention[0], attention[i, :steps, :length])


def test_the_encoder_is_torchs_lstm_read_word_by_word(build, sentences):
    """The joined states of the two directions, by hand for one unpadded sentence."""
    model = build(bidirectional=True, layers=1)
    tokens = sentences["net_input"]["src_tokens"][:1]
    out = model.encoder(tokens, torch.tensor([tokens.size(1)]))
    forward, (h, c) = model.encoder.lstm(model.encoder.embed(tokens))
    torch.testing.assert_close(out["states"], forward)
    torch.testing.assert_close(out["h"], torch.cat((h[0], h[1]), -1).unsqueeze(0))
    torch.testing.assert_close(out["c"], torch.cat((c[0], c[1]), -1).unsqueeze(0))
    half = forward.size(-1) // 2
    torch.testing.assert_close(out["h"][0, :, :half], forward[:, -1, :half])  # read to the end
    torch.testing.assert_close(out["h"][0, :, half:], forward[:, 0, half:])  # read to the beginning


@pytest.mark.parametrize("attention", ["general", "dot", "additive"])
def test_one_decoder_step_by_hand(build, batch, attention):
    """The equations of the module's first lines, for the first step."""
    model = build("sparsemax", attention=attention, layers=1)
    sample = batch([[3, 5, 7]], [[2]])["net_input"]
    logits, weights = whole(model, sample)
    d, source = model.decoder, model.encoder(sample["src_tokens"], sample["src_lengths"])
    word = d.embed(sample["prev_output_tokens"][:, :1])
    q, _ = d.lstm(torch.cat((word, torch.zeros(1, 1, 8, dtype=word.dtype)), -1), (source["h"], source["c"]))
    h = source["states"]
    if attention == "additive":
        s = d.scores
        scores = torch.stack([torch.tanh(s.query(q[0, 0]) + s.key(h[0, j])) @ s.energy.weight[0] for j in range(3)])
    else:
        query = d.scores.query.weight @ q[0, 0] if attention == "general" else q[0, 0]
        scores = torch.stack([query @ h[0, j] for j in range(3)])
    p = sa.sparsemax(scores)
    a = torch.tanh(d.attend_out.weight @ torch.cat((p @ h[0], q[0, 0])))
    torch.testing.assert_close(weights[0, 0], p)
    torch.testing.assert_close(logits[0, 0], d.generator.weight @ a + d.generator.bias)


@pytest.mark.parametrize("feeding", [True, False])
def test_mask_padding_false_differs_in_training_only(build, sentences, feeding):
    masked, open_ = (build("softmax", mask_padding=m, input_feeding=feeding, dropout=0.0) for m in (True, False))
    net_input, padding = sentences["net_input"], sentences["net_input"]["src_tokens"].eq(1).unsqueeze(1)
    for model in (masked, open_):
        model.eval()
    torch.testing.assert_close(whole(masked, net_input), whole(open_, net_input))
    logits, attention = whole(open_.train(), net_input)
    assert attention.masked_select(padding.expand_as(attention)).gt(0).all()
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
    assert not torch.allclose(logits, whole(masked.train(), net_input)[0])
    torch.testing.assert_close(whole(masked, net_input)[0], whole(masked.eval(), net_input)[0])  # no dropout


def criterion(symbols, **options):
    settings = {"sentence_avg": False, "label_smoothing": 0.0} | options
    task = SimpleNamespace(target_dictionary=symbols)
    return TokenCrossEntropy(SimpleNamespace(**settings), task)


@pytest.mark.parametrize("feeding", [True, False])
def test_the_mapping_changes_the_training_loss_and_its_gradient(build, sentences, symbols, feeding):
    losses, gradients = {}, {}
    for mapping, params in [*MAPPINGS, ("sparsegen_lin", {"lam": 0.5}), ("entmax", {"alpha": 1.5})]:
        model = build(mapping, params, input_feeding=feeding, dropout=0.0).train()
        loss, *_ = criterion(symbols)(model, sentences)
        loss.backward()
        losses[mapping], gradients[mapping] = loss.item(), model.encoder.embed.weight.grad.norm().item()
    assert len({round(v, 6) for v in losses.values()}) == len(losses)
    assert len({round(v, 6) for v in gradients.values()}) == len(losses)
    assert all(0 < g < 1e6 for g in gradients.values())


def test_criterion_by_hand(build, sentences, symbols):
    model = build("sparsemax", {"gamma": 0.1})
    loss, size, log = criterion(symbols)(model, sentences)
    logits, attention = whole(model, sentences["net_input"])
    nll = correct = zeros = kept = steps = 0
    for i in range(5):
        length = int(sentences["net_input"]["src_lengths"][i])
        for t, gold in enumerate(sentences["target"][i].tolist()):
            if gold == symbols.pad():
                continue
            nll -= F.log_softmax(logits[i, t].float(), -1)[gold].item()
            correct += logits[i, t].argmax().item() == gold
            weights = attention[i, t, :length].tolist()
            zeros, kept, steps = zeros + weights.count(0.0), kept + length, steps + 1
    assert loss.item() == pytest.approx(nll, rel=1e-5)
    assert size == log["ntokens"] == steps == 24
    assert (int(log["ncorrect"]), int(log["attention_zeros"]), int(log["attention_kept"])) == (correct, zeros, kept)
    assert int(log["attention_steps"]) == steps and zeros > 0
    assert criterion(symbols, sentence_avg=True)(model, sentences)[1] == 5


def test_criterion_adds_up_over_batches(build, sentences, symbols):
    from fairseq.logging import metrics

    log = criterion(symbols)(build("sparsemax", {"gamma": 0.1}), sentences)[2]
    halves = [{k: v / 2 for k, v in log.items()} for _ in range(2)]
    with metrics.aggregate(new_root=True) as totals:
        TokenCrossEntropy.reduce_metrics(halves)
    found = totals.get_smoothed_values()
    tokens = log["ntokens"]
    bits = log["loss"].item() / tokens / 0.6931471805599453
    assert found["loss"] == pytest.approx(bits, abs=1e-3)
    assert found["ppl"] == pytest.approx(2**bits, rel=1e-2)
    assert found["accuracy"] == pytest.approx(100 * int(log["ncorrect"]) / tokens, abs=1e-2)
    assert found["attention_zeros"] == pytest.approx(int(log["attention_zeros"]) / int(log["attention_kept"]), abs=1e-3)
    support = (int(log["attention_kept"]) - int(log["attention_zeros"])) / int(log["attention_steps"])
    assert found["attention_support"] == pytest.approx(support, abs=1e-2)


def test_initial_weights_are_those_of_opennmt(symbols):
    """Uniform in [-r, r] throughout, padding's vector zero, biases included."""
    cfg = Seq2SeqConfig(mapping="softmax", embed_dim=64, hidden_dim=64, layers=1)
    assert cfg.init_range == 0.1
    torch.manual_seed(1)
    model = Seq2SeqModel.build_model(cfg, SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols))
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        assert values.abs().max() <= 0.1, name
        if values.numel() > 1000:
            assert values.abs().max() > 0.099 and abs(values.mean()) < 0.005, name
            assert values.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.06), name
    for side in (model.encoder, model.decoder):
        assert side.embed.weight[symbols.pad()].eq(0).all()


def test_two_directions_need_an_even_size(build):
    with pytest.raises(ValueError, match="hidden_dim=7"):
        build(hidden_dim=7, bidirectional=True)


def test_an_unknown_mapping_is_refused(symbols):
    task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
    with pytest.raises(ValueError, match="'sparsemax'"):
        Seq2SeqModel.build_model(Seq2SeqConfig(mapping="sparsmax"), task)
    with pytest.raises(ValueError, match="lam"):
        Seq2SeqModel.build_model(Seq2SeqConfig(mapping="fusedmax", mapping_params=json.dumps({"lam": -1})), task)
