"""The loop of few operations gives what the plain loop gives, and starts half as many."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_attention as sa
from tasks.layers import steps
from tasks.seq2seq.models import lstm, lstm_continuous, lstm_fertility

MODELS = [
    ("sparsemax", {"gamma": 0.1}, {"attention": kind, "bidirectional": both})
    for kind, both in (("general", False), ("dot", True), ("additive", False))
]
MODELS += [
    ("entmax", {"alpha": "learned"}, {"score_scale": 0.5}),
    ("fertility_sparsemax", {}, {"of": lstm_fertility, "input_feeding": True}),
    ("softmax", {}, {"of": lstm_fertility, "input_feeding": True, "coverage": True, "sink": False}),
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


def test_dropout_is_drawn_for_all_steps_at_once(build, sentences, monkeypatch):
    monkeypatch.setattr(lstm.Model, "_launching", lambda self, x: True)
    inner, drawn = [], steps.masks
    for module in (steps, lstm):
        monkeypatch.setattr(module, "masks", lambda *a: inner.append((a, drawn(*a))) or inner[-1][1])
    model = build(dropout=0.75).train()
    one, two = (model(**sentences[0])[0] for _ in "ab")
    assert not torch.equal(one, two) and torch.equal(model.eval()(**sentences[0])[0], model(**sentences[0])[0])
    assert [made is None for _, made in inner] == [False] * 4 + [True] * 4, (
        "between layers and on the output; in training"
    )
    values = torch.stack(inner[0][1])
    assert {*values.flatten().tolist()} == {0.0, 4.0} and len(values) == sentences[0]["prev_output_tokens"].size(1)
    assert all(args[0] == 0.75 for args, made in inner if made)


class Count(TorchDispatchMode):
    """Counts the operations that a device would start: those that are not views."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kinds = {
            "view",
            "t",
            "slice",
            "select",
            "unsqueeze",
            "squeeze",
            "unbind",
            "detach",
            "transpose",
            "expand",
            "permute",
            "as_strided",
        }
        kinds |= {"split", "_unsafe_view", "alias", "empty", "empty_like", "new_empty_strided", "empty_strided"}
        self.count += func.overloadpacket.__name__ not in kinds
        return func(*args, **(kwargs or {}))


class Cell(torch.autograd.Function):
    """`steps.cell` as one operation forward and one backward, as on a GPU; the numbers do not matter."""

    @staticmethod
    def forward(ctx, gates, zeros, c):
        return c + 1, c.detach()

    @staticmethod
    def backward(ctx, h, c):
        return torch.cat([h] * 4, 1), None, c


def test_a_step_starts_half_as_many_operations(build, monkeypatch):
    """Of the plain loop, the two layers of the LSTM count as two operations, forward and backward; on a GPU they start more."""
    model, each = build("sparsemax", layers=2, dropout=0.3).train(), []
    monkeypatch.setattr(model.attention, "mapping", sa.make("softmax"))
    monkeypatch.setattr(steps, "cell", Cell.apply)
    for quick in (False, True):
        monkeypatch.setattr(lstm.Model, "_launching", lambda self, x, quick=quick: quick)
        counts = []
        for length in (10, 20):
            with Count() as counted:
                model(torch.full((3, 5), 7), torch.full((3,), 5), torch.full((3, length), 8))[0].sum().backward()
            counts.append(counted.count)
        each.append((counts[1] - counts[0]) / 10)
    assert each[1] <= 0.55 * each[0], each
