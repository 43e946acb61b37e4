"""What Fenchel-Young losses are made of: a scalar product with a known gradient, and how rows become one number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Slope(Function):
    """``sum x (p - t)`` with ``d/dx = p - t`` (Danskin: p is optimal, so it counts as constant, once). Differentiated
    again, the gradient sees how p depends on x."""

    @staticmethod
    def forward(x: Tensor, p: Tensor, t: Tensor) -> Tensor:
        weight = p - t
        # 0 * -inf counts 0: positions that neither the attention nor the target uses.
        return torch.where(weight == 0, 0.0, x * weight).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, p, t = ctx.saved_tensors
        g = g.unsqueeze(-1)
        return g * (p - t), None, -g * x if ctx.needs_input_grad[2] else None

    generate_vmap_rule = True


def reduced(values: Tensor, reduction: str) -> Tensor:
    """One value per row by "mean", "sum" or "none". Raises ValueError for another word."""
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        return values.mean()
    raise ValueError(f"reduction={reduction!r} is not one of mean, sum, none")
