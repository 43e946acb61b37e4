"""The encoder-decoder: training and search see the same attention, padding is never seen, the mapping matters."""

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import sparse_attention as sa
from repro.options import read
from tasks.data.symbols import PAD
from tasks.seq2seq.models import lstm, lstm_continuous

# Small gamma: untrained scores are flat, and the sparse mappings shall have zeros here.
MAPPINGS = [("softmax", {}), ("sparsemax", {"gamma": 0.1}), ("fusedmax", {"lam": 0.1, "gamma": 0.1})]
ROWS = [n for n in sa.names("simplex") if sa.spec(n).over == "row" and sa.spec(n).domain == "real"]
KEYS = ("input_feeding", "bidirectional", "attention")
BOTH = (True, False)
WAYS = itertools.product(BOTH, BOTH, ("general", "dot", "additive"))
SHAPES = [dict(zip(KEYS, way)) for way in WAYS]


class Coverage(nn.Module):
    """Softmax of the scores minus the attention received so far: a mapping with a state."""

    spec = SimpleNamespace(stateful=True, inputs=("lengths",))

    def start(self, mask, lengths):
        assert mask.shape == (len(lengths), int(lengths.max()))
        return {"received": torch.zeros_like(mask, dtype=torch.float64)}

    def step(self, scores, state, mask):
        p = sa.softmax(scores - 3 * state["received"], mask=mask)
        return p, {"received": state["received"] + p}


EVERY = list(itertools.product([*MAPPINGS, (Coverage(), None)], SHAPES))
SHARP = [(m, {"gamma": 0.1} if "gamma" in sa.spec(m).defaults else {}) for m in ROWS]
EVERY += itertools.product(SHARP, [{"input_feeding": f} for f in BOTH])
DENSITY = {"of": lstm_continuous, "rbf": 6, "widths": [0.1, 0.3]}
OTHERS = [{}, {"input_feeding": False, "bidirectional": True}, {"attention": "additive"}, {"discrete": "sparsemax"}]
EVERY += [((density, None), DENSITY | more) for density in lstm_continuous.ON_THE_LINE for more in OTHERS]


@pytest.mark.parametrize("mapping, options", EVERY, ids=str)
def test_training_is_what_the_search_sees(
    build, sentences, assert_search_sees_training, assert_alone_as_in_a_batch, mapping, options
):
    model = build(*mapping, **options)
    assert_search_sees_training(model, sentences[0])
    assert_alone_as_in_a_batch(model, *sentences)
    for training in (False, True):
        _, attention = model.train(training)(**sentences[0])
        torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
        padding = sentences[0]["src_tokens"].eq(PAD).unsqueeze(1).expand_as(attention)
        assert attention.min() >= 0 and attention.masked_select(padding).eq(0).all()


@pytest.mark.parametrize("feeding", [True, False])
def test_mask_padding_false_differs_in_training_only(build, sentences, feeding):
    masked, open_ = (build("softmax", mask_padding=m, input_feeding=feeding, dropout=0.0) for m in (True, False))
    inputs = sentences[0]
    padding = inputs["src_tokens"].eq(PAD).unsqueeze(1)
    torch.testing.assert_close(masked(**inputs), open_(**inputs))
    logits, attention = open_.train()(**inputs)
    assert attention.masked_select(padding.expand_as(attention)).gt(0).all()
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
    assert not torch.allclose(logits, masked.train()(**inputs)[0])
    torch.testing.assert_close(masked(**inputs)[0], masked.eval()(**inputs)[0])  # no dropout


def test_the_mappings_own_parameter_is_left_as_it_is():
    options = read(lstm.Options, {"embed_dim": 8, "hidden_dim": 8, "share_embeddings": True}, "model")
    learned = sa.make("sparsegen_lin", lam=nn.Parameter(torch.tensor(0.5)))
    model = lstm.Model(options, 9, 9, {"cross": learned})
    assert learned.lam.item() == 0.5
    assert model.source_embed.weight is model.target_embed.weight is model.generator.weight


def test_a_processor_without_a_half_precision_lstm_runs_half_precision(monkeypatch):
    """oneDNN refuses it there; with it and without it the numbers are the same."""
    from tasks.layers.lstm import Lstm

    torch.manual_seed(1)
    layer, x, run = Lstm(3, 4, batch_first=True), torch.randn(2, 5, 3), torch.lstm

    def refusing(given, *more):
        half = given.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
        if half and torch._C._get_mkldnn_enabled():
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")
        return run(given, *more)

    def outputs():
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(x)[0]
        return mixed, copy.deepcopy(layer).bfloat16()(x.bfloat16())[0]

    here, full = outputs(), layer(x)[0]
    monkeypatch.setattr(nn.modules.rnn._VF, "lstm", refusing)
    with pytest.raises(RuntimeError, match="primitive descriptor"), torch.autocast("cpu", torch.bfloat16):
        nn.LSTM(3, 4)(x)
    assert torch.backends.mkldnn.enabled
    for there, same in zip(outputs(), here):
        assert torch.equal(there, same)
        torch.testing.assert_close(there.float(), full, atol=0.02, rtol=0.05)
