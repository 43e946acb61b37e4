"""The parts of Fenchel-Young losses: a scalar product with a known gradient, and the reduction of rows to one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..describe import Param

REDUCTION = Param("reduction", choices=("mean", "sum", "none"), tensor=False)
Again = Callable[[Tensor], Tensor] | None  # the mapping, to be differentiated itself


class Slope(Function):
    """``sum x (p - t)`` with ``d/dx = p - t`` (Danskin: p is optimal, so the first derivative treats it as constant). The second
    derivative follows how p depends on x: through p itself, or through ``again(x)`` if it is given, so that the first
    derivative need not pass through the mapping. An infinite row (t is on a masked class) has no gradient: p - t would push
    all kept scores the same way."""

    @staticmethod
    def forward(x: Tensor, p: Tensor, t: Tensor, again: Again) -> Tensor:
        weight = p - t
        # 0 * -inf counts 0: positions that neither the attention nor the target uses.
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
    """The largest score less ``x.t``, ``[...]``, with the derivative of ``x.p - x.t``: `Slope` where a formula of p gives the
    rest of the loss. t: class y, less ``smoothing`` of it, spread over all that is kept. Rows ``x, p [..., n]``, ``y [...]`` int64."""

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
            # Counted in the scores' dtype: a number over whole numbers would be float32.
            share = ctx.smoothing / (~out).sum(-1, keepdim=True, dtype=p.dtype).clamp(min=1.0)
            p = (p - share).masked_fill_(out, 0.0)
        return (g * p).scatter_add_(-1, y.unsqueeze(-1), -g * (1.0 - ctx.smoothing)), None, None, None, None

    generate_vmap_rule = True


def reduced(values: Tensor, reduction: str) -> Tensor:
    """One value per row by "mean", "sum" or "none". Raises ValueError for another word."""
    REDUCTION.check(reduction)
    return values if reduction == "none" else values.sum() if reduction == "sum" else values.mean()
