"""A loop over steps that starts few operations on a GPU, where each waits for the host: what steps share is computed once.

Never run on a GPU; on a CPU, `tests/tasks/seq2seq/test_steps.py` compares it with the plain loop.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Shared:
    """``x @ matrix`` in every step of a loop, plus `more`. The gradient of the matrix is one product over all steps.

    Every call must take part in the loss, as the outputs of a decoder do.

    Args:
        matrix: ``[N, M]`` for x ``[B, N]``, or ``[B, N, M]`` for x ``[B, 1, N]``.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.calls = matrix, 0
        self.done: list[
            tuple[Tensor, Tensor]
        ] = []  # x and the gradient of its product, of the calls differentiated so far

    def __call__(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        return _Product.apply(x, self.matrix, more, self)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, more: Tensor | None, shared: Shared) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.shared = shared
        shared.calls += 1
        if more is None:
            return x @ matrix
        return torch.addmm(more, x, matrix) if x.dim() == 2 else torch.baddbmm(more, x, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        done = ctx.shared.done
        done.append((x, grad))
        whole = None
        if len(done) == ctx.shared.calls:  # the last step of the backward, the first of the loop
            xs, grads = (torch.cat(parts, x.dim() - 2) for parts in zip(*done))
            whole = xs.mT @ grads
            done.clear()
        return grad @ matrix.mT, whole, grad if ctx.needs_input_grad[2] else None, None


class Cells:
    """The layers of an ``nn.LSTM`` (one direction, with biases), step by step.

    Args:
        lstm: the LSTM. words: ``[B, T, E]``, the part of its input that is known before the loop; the rest of its input,
            `fed` of `step`, depends on the step before.
        h, c: ``[layers, B, H]``, the initial state.
    """

    def __init__(self, lstm: torch.nn.LSTM, words: Tensor, h: Tensor, c: Tensor) -> None:
        size, (batch, steps, known) = lstm.hidden_size, words.shape
        weights = [
            [getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh")]
            for layer in range(lstm.num_layers)
        ]
        biases = [getattr(lstm, f"bias_ih_l{n}") + getattr(lstm, f"bias_hh_l{n}") for n in range(lstm.num_layers)]
        first = torch.addmm(biases[0], words.transpose(0, 1).flatten(0, 1), weights[0][0][:, :known].t())
        self.known = first.unflatten(0, (steps, batch)).unbind()
        self.one, self.none = words.new_ones(batch, 1), words.new_zeros(batch, 4 * size)
        weights[0][0] = weights[0][0][:, known:]
        rows = [[*pair, *([bias.unsqueeze(1)] if n else [])] for n, (pair, bias) in enumerate(zip(weights, biases))]
        self.recurrent = [Shared(torch.cat(parts, 1).t()) for parts in rows]
        kept = lstm.dropout if lstm.training else 0.0
        self.masks = [masks(kept, steps, batch, size, words) for _ in rows[1:]]
        self.h, self.c = list(h.unbind()), list(c.contiguous().unbind())

    def step(self, t: int, fed: Tensor) -> Tensor:
        """The state ``[B, H]`` of the last layer after step `t`, given fed ``[B, F]``."""
        x = fed
        for n, recurrent in enumerate(self.recurrent):
            if n and self.masks[n - 1] is not None:
                x = x * self.masks[n - 1][t]
            known = self.known[t] if n == 0 else None
            gates = recurrent(torch.cat((x, self.h[n], self.one) if n else (x, self.h[n]), 1), known)
            x, self.c[n] = cell(gates, self.none, self.c[n])
            self.h[n] = x
        return x


def cell(gates: Tensor, zeros: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c ``[B, H]`` of an LSTM, from its gates ``[B, 4 H]``, zeros to add to them, and the c before: one operation on a GPU."""
    if gates.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(gates, zeros, c)[:2]
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def masks(share: float, steps: int, batch: int, size: int, like: Tensor) -> Any:
    """What dropout multiplies each step's ``[B, size]`` by, drawn at once; None without dropout."""
    return torch.nn.functional.dropout(like.new_ones(steps, batch, size), share).unbind() if share else None
