"""Building blocks of Fenchel-Young losses: a scalar product with a known gradient, and the reduction over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..describe import Param

REDUCTION = Param("reduction", choices=("mean", "sum", "none"), tensor=False)
Again = Callable[[Tensor], Tensor] | None  # the mapping, for differentiating through it


class Slope(Function):
    """``sum x (p - t)`` with the derivative ``d/dx = p - t``.

    By Danskin's theorem, the first derivative treats p as a constant, since p is optimal. The second derivative takes
    into account how p depends on x: through p itself or, if ``again`` is given, through ``again(x)``; then the first
    derivative need not pass through the mapping. A row with infinite loss (t is on a masked class) gets no gradient,
    since p - t would push all kept scores in the same direction.
    """

    @staticmethod
    def forward(x: Tensor, p: Tensor, t: Tensor, again: Again) -> Tensor:
        weight = p - t
        # Treat 0 * -inf as 0, for positions that neither the attention nor the target uses.
        return (x * weight).masked_fill_(weight == 0, 0.0).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.again = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, p, t, value = ctx.saved_tensors
        g = g.masked_fill(value == torch.inf, 0.0).unsqueeze(-1)
        p = ctx.again(x) if ctx.again is not None and torch.is_grad_enabled() else p
        return g * (p - t), None, -g * x if ctx.needs_input_grad[2] else None, None

    generate_vmap_rule = True


class AtClass(Function):
    """The largest score minus ``x.t``, ``[...]``, with the derivative of ``x.p - x.t``.

    It replaces `Slope` where the rest of the loss is a formula of p. The target t is class y; a share ``smoothing`` of
    its weight is spread evenly over all kept classes. Rows are ``x, p [..., n]``, and ``y [...]`` is int64.
    """

    @staticmethod
    def forward(x: Tensor, p: Tensor, y: Tensor, again: Again, smoothing: float) -> Tensor:
        top = x.amax(-1, keepdim=True)
        top = torch.where(top == -torch.inf, 0.0, top)
        value = (top - x.gather(-1, y.unsqueeze(-1))).squeeze(-1)
        if not smoothing:
            return value
        out = x == -torch.inf
        even = (top - x).masked_fill_(out, 0.0).sum(-1) / (x.shape[-1] - out.sum(-1)).clamp(min=1)
        return smoothing * even + (0.0 if smoothing == 1.0 else (1.0 - smoothing) * value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.again, ctx.smoothing = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, p, y, value = ctx.saved_tensors
        g = g.masked_fill(value == torch.inf, 0.0).unsqueeze(-1)
        p = ctx.again(x) if ctx.again is not None and torch.is_grad_enabled() else p
        if ctx.smoothing:
            out = x.detach() == -torch.inf
            # Count in the dtype of the scores: a number divided by an integer tensor would be float32.
            share = ctx.smoothing / (~out).sum(-1, keepdim=True, dtype=p.dtype).clamp(min=1.0)
            p = (p - share).masked_fill_(out, 0.0)
        return (g * p).scatter_add_(-1, y.unsqueeze(-1), -g * (1.0 - ctx.smoothing)), None, None, None, None

    generate_vmap_rule = True


def reduced(values: Tensor, reduction: str) -> Tensor:
    """Reduce one value per row by "mean", "sum" or "none". Raises ValueError for any other reduction."""
    REDUCTION.check(reduction)
    return values if reduction == "none" else values.sum() if reduction == "sum" else values.mean()
