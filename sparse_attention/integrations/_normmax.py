r"""Normmax and budget, two mappings of the entmax package, computed by our kernels.

They are public in ``integrations/entmax.py``.

* normmax: :math:`\max_{p \in \Delta} p^\top x - \|p\|_\alpha`. With :math:`q = \alpha/(\alpha-1)`, the threshold solves
  :math:`\sum_i (x_i - \tau)_+^q = 1`. This is the equation of entmax with parameter :math:`2 - 1/\alpha` at the scores
  :math:`q x`. Then :math:`p \propto (x - \tau)_+^{q-1}`.
* budget: :math:`\arg\min \|p - x\|^2` over :math:`0 \le p \le 1, \sum p = b`. This is constrained sparsemax of
  :math:`x/b` with upper bounds :math:`1/b`, multiplied by b.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..mappings.constrained import constrained_sparsemax
from ..mappings.entmax import entmax
from ..mappings.normalization import hardmax


def normmax_rows(x: Tensor, alpha: float | Tensor) -> Tensor:
    """Normmax of rows ``x [..., n]``; alpha is a number or ``[..., 1]``.

    For alpha <= 1, ``||p||_alpha >= 1`` with equality at the vertices, so the solution is hardmax.
    """
    if not isinstance(alpha, Tensor):
        return hardmax(x) if alpha <= 1.0 else _Normmax.apply(x, alpha)
    vertex = alpha <= 1.0
    return torch.where(vertex, hardmax(x.detach()), _Normmax.apply(x, torch.where(vertex, 2.0, alpha)))


class _Normmax(Function):
    """Normmax for alpha > 1. Derivatives are torch expressions of p.

    On the support, ``x - tau = (p/N)^(alpha-1)`` with ``N = ||p||_alpha``.
    """

    @staticmethod
    def forward(x: Tensor, alpha: Any) -> Tensor:
        y = entmax(alpha / (alpha - 1.0) * x, alpha=2.0 - 1.0 / alpha).pow(1.0 / alpha)
        total = y.sum(-1, keepdim=True)
        return y / total.masked_fill(total == 0, 1.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensor = isinstance(inputs[1], Tensor)
        ctx.save_for_backward(output, inputs[1] if tensor else None)
        ctx.alpha = None if tensor else inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p, alpha = ctx.saved_tensors
        alpha = ctx.alpha if alpha is None else alpha
        inside = p > 0
        y = p.masked_fill(~inside, 1.0)
        power = y.pow(alpha).masked_fill(~inside, 0.0)
        total = power.sum(-1, keepdim=True)
        total = total.masked_fill(total == 0, 1.0)
        ratio = y / total.pow(1.0 / alpha)
        slope = (y * ratio.pow(1.0 - alpha) / (alpha - 1.0)).masked_fill(~inside, 0.0)
        centred = slope * (g - (p * g).sum(-1, keepdim=True))
        dx = centred - p * centred.sum(-1, keepdim=True)
        if not ctx.needs_input_grad[1]:
            return dx, None
        log_norm = (power * y.log()).sum(-1, keepdim=True) / (alpha * total) - total.log() / alpha**2
        change = ratio.pow(alpha - 1.0) * (ratio.log() - (alpha - 1.0) * log_norm)
        return dx, -(dx * change.masked_fill(~inside, 0.0)).sum(-1, keepdim=True)

    generate_vmap_rule = True


def budget_rows(x: Tensor, budget: float | Tensor) -> Tensor:
    count = (x.detach() != -torch.inf).sum(-1, keepdim=True).to(x.dtype)
    b = torch.minimum(torch.as_tensor(budget, dtype=x.dtype, device=x.device), count)
    some = b > 0
    safe = torch.where(some, b, 1.0)
    p = safe * constrained_sparsemax(x / safe, (1.0 / safe).expand(x.shape))
    return torch.where(some | b.isnan() | x.isnan().any(-1, keepdim=True), p.clamp(max=1.0) + 0.0 * b, 0.0)
