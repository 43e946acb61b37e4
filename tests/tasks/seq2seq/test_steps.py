"""The loop of few operations gives what the plain loop gives, and starts few."""

from collections import Counter

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.layers import lstm as lstm_module
from tasks.layers import steps
from tasks.layers.attention import MultiheadAttention
from tasks.seq2seq.models import lstm, lstm_continuous, lstm_fertility

KINDS = {"general": False, "dot": True, "additive": False}
MODELS = [("sparsemax", {"gamma": 0.1}, {"attention": kind, "bidirectional": both}) for kind, both in KINDS.items()]
MODELS += [
    ("entmax", {"alpha": "learned"}, {"score_scale": 0.5, "layers": 3}),
    ("fertility_sparsemax", {}, {"of": lstm_fertility, "input_feeding": True}),
    ("softmax", {}, {"of": lstm_fertility, "input_feeding": True, "coverage": True, "sink": False}),
    ("softmax", {}, {"layers": 1, "input_feeding": True}),
    ("continuous_softmax", {}, {"of": lstm_continuous, "attention": "general"}),
]


@pytest.mark.parametrize("mapping, params, options", MODELS, ids=str)
def test_outputs_and_gradients_are_those_of_the_plain_loop(build, sentences, monkeypatch, mapping, params, options):
    model, found = build(mapping, params, **options), []
    for quick in (False, True):
        monkeypatch.setattr(lstm.Model, "_launching", lambda self, x, quick=quick: quick)
        logits, attention = model(**sentences[0])
        (logits.log_softmax(-1)[..., 3].sum() + attention.square().sum()).backward()
        named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append((logits, attention, named))
        model.zero_grad()
    assert len(found[0][2]) > 10
    torch.testing.assert_close(*found)


def test_gradients_with_dropout_and_where_nothing_depends_on_the_query(monkeypatch):
    """Against finite differences; `weights` of the second call do not depend on the query, as those of uniform attention."""
    torch.manual_seed(1)
    lstm_ = torch.nn.LSTM(3 + 4, 4, 2, batch_first=True).double()
    sizes = (2, 3, 3), (2, 2, 4), (2, 2, 4), (2, 4), (2, 5, 4), (4, 8), (2, 4, 5)
    given = [torch.randn(size, dtype=torch.double, requires_grad=True) for size in sizes]

    def features(words, h, c, feed, states, out, matrix, constant=False):
        torch.manual_seed(2)
        loop = steps.Decoder(lstm_, words, (h, c, feed), states, out, matrix, 0.5)
        for _ in range(3):
            scores = loop.query()[1]
            loop.read(torch.full_like(scores, 0.2) if constant else scores.softmax(-1))
        return loop.features()

    torch.autograd.gradcheck(features, given)
    torch.autograd.gradcheck(lambda *some: features(*some, given[-1].detach(), constant=True), given[:-1])
    assert 0.2 < features(*given).eq(0).double().mean() < 0.8
    monkeypatch.setattr(torch.Tensor, "bernoulli_", lambda x, p: x.fill_(p == 0.5))
    whole = features(*given)
    monkeypatch.setattr(torch.Tensor, "bernoulli_", lambda x, p: x.fill_(p != 0.5))
    assert whole.abs().max() > 1 and features(*given).eq(0).all(), "what is kept is doubled"


@pytest.mark.parametrize("lengths", [(5, 3, 3, 1), (2, 7, 1, 7)], ids=["sorted", "not sorted"])
def test_packing_is_torchs_on_the_host_by_length_and_at_once(lengths):
    torch.manual_seed(1)
    encoder = lstm_module.Lstm(3, 4, 2, batch_first=True, bidirectional=True).double()
    x, lengths, calls = torch.randn(4, 8, 3).double(), torch.tensor(lengths), []
    out, last = encoder(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected = pad_packed_sequence(out, batch_first=True, total_length=8)[0], last
    with Count() as counted:
        torch.testing.assert_close(lstm_module.packed_at_once(encoder, x, lengths), expected)
    assert not counted.names["_pack_padded_sequence"]
    with encoder.register_forward_hook(lambda *_: calls.append(1)):
        torch.testing.assert_close(lstm_module.packed(encoder, x, lengths), expected)
    assert len(calls) == len(lengths.unique()), "one for each length"


def test_packing_at_once_for_an_lstm_in_half_precision(monkeypatch):
    """As cuDNN's is under autocast, while the words are float32; it is float16 even if autocast is to bfloat16."""
    encoder, x, lengths = lstm_module.Lstm(3, 4, batch_first=True), torch.randn(2, 8, 3), torch.tensor([5, 8])
    expected, _ = lstm_module.packed_at_once(encoder, x, lengths)
    plain = lstm_module.Lstm.forward

    def halved(self, given):
        packed, last = plain(self, given)
        return packed._replace(data=packed.data.half()), last

    monkeypatch.setattr(lstm_module.Lstm, "forward", halved)
    found, _ = lstm_module.packed_at_once(encoder, x, lengths)
    torch.testing.assert_close(found, expected.half())


class Count(TorchDispatchMode):
    """Counts the operations that a device would start, by name: those that are not views."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kinds = "view t slice select unsqueeze squeeze unbind detach transpose expand permute as_strided split".split()
        kinds += "_unsafe_view alias empty empty_like new_empty_strided empty_strided".split()
        self.names[func.overloadpacket.__name__] += func.overloadpacket.__name__ not in kinds
        return func(*args, **(kwargs or {}))


class Attend(torch.autograd.Function):
    """A mapping that is one operation forward and one backward, as on a GPU; the numbers do not matter."""

    @staticmethod
    def forward(ctx, scores):
        return scores + 1

    @staticmethod
    def backward(ctx, grad):
        return grad + 1


def test_a_step_starts_23_operations(build, monkeypatch):
    """Of which cuBLAS needs no copy of what it adds to; an LSTM's cell counts as one, forward and backward."""
    model, counts = build("softmax", layers=2, dropout=0.3).train(), []
    monkeypatch.setattr(lstm.Model, "_attend", lambda self, query, memory, _: (Attend.apply(memory["scores"]), {}))
    monkeypatch.setattr(lstm.Model, "_launching", lambda self, x: True)
    monkeypatch.setattr(steps, "cell", lambda x, h, c, *biases: (c + 1, c.detach(), x))
    monkeypatch.setattr(steps, "cell_backward", lambda h, c, *saved: (torch.cat([h] * 4, 1), h))
    for length in (10, 20):
        model.zero_grad()
        with Count() as counted:
            model(torch.full((3, 5), 7), torch.full((3,), 5), torch.full((3, length), 8))[0].sum().backward()
        counts.append(counted.names)
    each = counts[1] - counts[0]
    assert each.total() == 10 * 23 and not each["addmm"] + each["baddbmm"], each


def test_self_attention_takes_no_slice_of_its_weights():
    attend = MultiheadAttention(8, 2)
    with Count() as counted:
        sum(part.square().sum() for part in attend.project(torch.randn(2, 3, 8))).backward()
    assert not counted.names["slice_backward"] + counted.names["clone"]
