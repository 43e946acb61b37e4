"""The loop of a decoder with input feeding, by few operations: on a GPU, each of them waits for the host.

A step has two autograd functions, one before the attention and one after it. They keep what their backward needs on a
tape. The gradients of the weights are computed once, from the tapes of all steps, after the backward of the first step.
Never run on a GPU; on a CPU, `tests/tasks/seq2seq/test_steps.py` compares it with the plain loop.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Decoder:
    """``query, scores = query()``, then ``read(weights)``, for each step; at the end `features`, which must enter the loss.

        q_t, c_t = lstm([word_t; a_{t-1}])      a_t = dropout(tanh(W_o [sum_s p_ts h_s; q_t]))

    Args:
        lstm: one direction, with biases. words: ``[B, T, E]``.
        begin: the initial h and c of the LSTM, ``[layers, B, H]``, and a_0, ``[B, H]``.
        states: h_1..h_S, ``[B, S, H]``. out: W_o, ``[H, 2 H]``.
        matrix: what a query is multiplied by to get its scores, ``[B, H, S]``; None if there is no such matrix.
        dropout: on a_t and, with several layers, between them.
    """

    def __init__(
        self,
        lstm: nn.LSTM,
        words: Tensor,
        begin: Sequence[Tensor],
        states: Tensor,
        out: Tensor,
        matrix: Tensor | None,
        dropout: float,
    ) -> None:
        names, (h, c, self.feed) = ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), begin
        given = [getattr(lstm, f"{name}_l{n}") for n in range(lstm.num_layers) for name in names]
        self.tape = SimpleNamespace(layers=lstm.num_layers, kept=1 - dropout)
        self.done: list[Tensor] = []
        self.state = _Start.apply(self.tape, words, h, c, states, matrix, out, *given)

    def query(self) -> tuple[Tensor, Tensor | None]:
        """The next step's query ``[B, 1, H]`` and scores ``[B, 1, S]``, None without a matrix."""
        self.asked, scores, *self.state = _Query.apply(self.tape, self.feed, *self.state)
        return self.asked, scores

    def read(self, weights: Tensor) -> None:
        """Read the states with weights ``[B, 1, S]``, which ends the step."""
        self.feed, feature, h = _Read.apply(self.tape, self.asked, weights)
        self.state.insert(self.tape.layers - 1, h)
        self.done.append(feature)

    def features(self) -> Tensor:
        """a_1..a_T ``[B, T, H]``."""
        return _Features.apply(self.tape, *self.done)


class _Start(torch.autograd.Function):
    """The initial states of the layers; its backward, the last of the loop's, computes what all steps share."""

    @staticmethod
    def forward(ctx: Any, tape: Any, words: Tensor, h: Tensor, c: Tensor, states: Tensor, *given: Any) -> Any:
        (batch, steps, known), size, (matrix, out, *layers) = words.shape, h.size(-1), given
        flat = words.transpose(0, 1).flatten(0, 1)  # [T B, E]
        ctx.tape = tape
        ctx.save_for_backward(flat, states, out, layers[0])
        tape.given, tape.cells, tape.grads = ([[] for _ in range(tape.layers)] for _ in "abc")
        tape.queries, tape.weights, tape.scored, tape.read = [], [], [], []
        first = flat @ layers[0][:, :known].t()
        tape.known = [first.unflatten(0, (steps, batch)).unbind()]
        tape.known += [[torch.zeros_like(first[:batch])] * steps] * (tape.layers - 1)
        tape.matrices = [torch.cat(pair, 1) for pair in zip((layers[0][:, known:], *layers[4::4]), layers[1::4])]
        tape.biases = list(zip(layers[2::4], layers[3::4]))
        tape.dropped = words.new_ones(()).expand(tape.layers, batch, steps, size)  # a factor for each output of a layer
        if tape.kept < 1:
            tape.dropped = torch.empty_like(tape.dropped).bernoulli_(tape.kept).div_(tape.kept)
        tape.states, tape.of_query = states @ out[:, :size].t(), out[:, size:]
        tape.matrix = None if matrix is None else matrix.detach()
        return *h.unbind(), *c.contiguous().unbind()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (words, states, out, first), tape = ctx.saved_tensors, ctx.tape
        h, c = (torch.stack(each) for each in (grads[: tape.layers], grads[tape.layers :]))
        of_layers, known, size = [], words.size(1), h.size(-1)
        for n in range(tape.layers):
            g, given = (torch.cat(parts) for parts in (tape.grads[n][::-1], tape.given[n]))  # [T B, 4 H], [T B, .]
            of_input, bias = g.t() @ given[:, :-size], g.sum(0)
            if n == 0:
                of_words = (g @ first[:, :known]).unflatten(0, (-1, h.size(1))).transpose(0, 1)
                of_input = torch.cat((g.t() @ words, of_input), 1)
            of_layers += [of_input, g.t() @ given[:, -size:], bias, bias]
        queries, weights, z = torch.cat(tape.queries, 1), torch.cat(tape.weights, 1), torch.cat(tape.read[::-1], 1)
        read = weights.mT @ z  # [B, S, H]
        pairs = (read, states), (z, queries)
        of_out = torch.cat([x.flatten(0, 1).t() @ y.flatten(0, 1) for x, y in pairs], 1)
        matrix = queries.mT @ torch.cat(tape.scored[::-1], 1) if tape.scored else None
        for each in (*tape.grads, tape.scored, tape.read):
            each.clear()  # for another backward
        return None, of_words, h, c, read @ out[:, :size], matrix, of_out, *of_layers


class _Query(torch.autograd.Function):
    """From a_{t-1} ``[B, H]`` and all h and c ``[B, H]``: query, scores, h of all layers but the last, c of all layers."""

    @staticmethod
    def forward(ctx: Any, tape: Any, x: Tensor, *state: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.t, hs, cs = tape, len(tape.queries), [], []
        for n, (h, c) in enumerate(zip(state[: tape.layers], state[tape.layers :])):
            if n:
                x = x * tape.dropped[n - 1, :, ctx.t]
            given = torch.cat((x, h), 1)
            x, after, saved = cell(tape.known[n][ctx.t], given @ tape.matrices[n].t(), c, *tape.biases[n])
            tape.given[n].append(given)
            tape.cells[n].append((c.detach(), after.detach(), saved))
            hs.append(x)
            cs.append(after)
        query = x.unsqueeze(1)
        tape.queries.append(query.detach())
        return query, None if tape.matrix is None else query @ tape.matrix, *hs[:-1], *cs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, scores: Tensor | None, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hs: list[Tensor] = []
        cs: list[Tensor] = []
        tape, size = ctx.tape, query.size(-1)
        if scores is not None:
            tape.scored.append(scores)
            query = query.baddbmm_(scores, tape.matrix.mT)  # the gradient from `_Read`, which nothing else reads
        h = query.squeeze(1)
        for n in reversed(range(tape.layers)):
            gates, c = cell_backward(h, grads[tape.layers - 1 + n], *tape.cells[n][ctx.t])
            tape.grads[n].append(gates)
            whole = gates @ tape.matrices[n]
            x, before = whole[:, :-size], whole[:, -size:]
            hs, cs = [before, *hs], [c, *cs]
            if n:
                h, dropped = grads[n - 1], tape.dropped[n - 1, :, ctx.t]
                h = x * dropped if h is None else torch.addcmul(h, x, dropped)
        return None, x, *hs, *cs


class _Read(torch.autograd.Function):
    """From query and weights: a_t for the next step, a_t for the features, and the query as state h of the last layer."""

    @staticmethod
    def forward(ctx: Any, tape: Any, query: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.t = tape, len(tape.weights)
        tape.weights.append(weights.detach())
        h = query.squeeze(1)
        feed = (h @ tape.of_query.t()).unsqueeze(1).baddbmm_(weights, tape.states).tanh_().squeeze(1)
        feed = feed * tape.dropped[-1, :, ctx.t]
        return feed, feed.view_as(feed), h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, feed: Tensor | None, feature: Tensor, h: Tensor | None) -> tuple[Tensor | None, ...]:
        tape = ctx.tape
        z = feature if feed is None else torch.addcmul(feature, feed, tape.slopes[ctx.t])
        tape.read.append(z.unsqueeze(1))
        weights = z.unsqueeze(1) @ tape.states.mT if ctx.needs_input_grad[2] else None
        # the gradient of h is from the next `_Query`, and nothing else reads it
        h = z @ tape.of_query if h is None else h.addmm_(z, tape.of_query)
        return None, h.unsqueeze(1), weights


class _Features(torch.autograd.Function):
    """a_1..a_T in one tensor; passes on their gradients already multiplied by the slope of dropout(tanh(.))."""

    @staticmethod
    def forward(ctx: Any, tape: Any, *features: Tensor) -> Tensor:
        ctx.tape, whole = tape, torch.stack(features, 1)
        ctx.save_for_backward(whole)
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (a,), tape = ctx.saved_tensors, ctx.tape
        slopes = torch.addcmul(tape.dropped[-1], a, a, value=-tape.kept)
        tape.slopes = slopes.unbind(1)
        return None, *(slopes * grad).unbind(1)


def cell(x: Tensor, h: Tensor, c: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One operation on a GPU: h and c ``[B, H]`` of an LSTM, from two parts of its gates ``[B, 4 H]``, the c before, and
    both biases; and what `cell_backward` needs."""
    if x.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(x, h, c, *biases)
    gates = x + h + sum(biases)
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c, gates


def cell_backward(h: Tensor, c: Tensor, before: Tensor, after: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gates and of the c before, from those of h and c."""
    if saved.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell_backward_impl(h, c, before, after, saved, False)[:2]
    none = torch.zeros_like(saved)
    found = torch.ops.aten._thnn_differentiable_lstm_cell_backward(h, c, saved, none, None, None, before, after)
    return found[0], found[2]
