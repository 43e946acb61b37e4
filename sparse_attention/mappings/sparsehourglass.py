r"""Sparsecone and sparsehourglass: between the scale invariance of sum-normalisation and the translation invariance of
sparsemax (Laha et al. 2018, sec. 3.4 and 3.5).

Sparsecone projects z towards (-q, ..., -q) on the hyperplane of sum 1, then on the simplex:
:math:`\mathrm{sparsemax}(\alpha z)`, :math:`\alpha = \frac{1 + Kq}{\sum z + Kq}`. Sparsehourglass mirrors the scores below the
plane :math:`\sum z = 0`: :math:`\hat\alpha = \frac{1 + Kq}{|\sum z| + Kq}`. q = 0: sum-normalisation (++ for the hourglass),
q -> infinity: sparsemax. K counts the kept positions. The hourglass has a kink at sum z = 0; sgn(0) = 0 there.

Forward and backward: alpha below, then those of sparsemax, ``kernels/reference/threshold.py`` (``sparsemax_*``); on a GPU
in one kernel, ``kernels/triton/simplex.py``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..registry import Param, register
from ..rows.apply import fused, on_cpu
from ..rows.shape import along, batched, checked, foreign
from .sparsemax import project_last

Q = Param("q", low=0.0, closed_low=True, meaning="0 is scale invariant, infinity translation invariant (sparsemax)")


def cone(x: Tensor, q: float | Tensor, mirrored: bool = False) -> Tensor:
    """Sparsecone of rows ``x [..., n]``, -inf where masked, q a number or ``[..., 1]``; ``mirrored``: sparsehourglass."""
    keep = x.detach() != -torch.inf
    z = x.masked_fill(~keep, 0.0)
    count = keep.sum(-1, keepdim=True).to(x.dtype)
    total = z.sum(-1, keepdim=True)
    z = (1.0 + count * q) / ((total.abs() if mirrored else total) + count * q) * z
    return project_last(z.to(x.dtype), keep)


def through_cone(op: str, scores: Tensor, dim: int, mask: Tensor | None, q: float | Tensor) -> Tensor:
    """sparsecone or sparsehourglass along ``dim``: one kernel on a GPU, few passes on a CPU, else as `cone` has it."""
    mirrored = op == "sparsehourglass"
    if not isinstance(q, Tensor):
        p = fused(op, scores, dim, mask, {"q": q}, partial(cone, q=q, mirrored=mirrored))
        if p is not None:
            return p
        if on_cpu(scores, dim) and (mask is None or not foreign(mask)):
            drop = None if mask is None else ~checked(mask, scores)
            z = scores if drop is None else scores.detach().masked_fill(drop, 0.0)
            total = z.detach().sum(-1, keepdim=True)
            if math.isfinite(total.sum().item()):  # nothing kept is -inf or has no value
                return _Cone.apply(scores, drop, z, total, q, mirrored)
    return along(cone, scores, dim, mask, q=q, mirrored=mirrored)


class _Cone(Function):
    """`cone` and its derivative step by step as autograd takes it, without what masks and NaN would need besides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Tensor | None, z: Tensor, total: Tensor, q: float, mirrored: bool) -> Tensor:
        count = x.shape[-1] - drop.sum(-1, keepdim=True) if drop is not None else torch.full_like(total, x.shape[-1])
        offset = count.to(x.dtype) * q
        below = (total.abs() if mirrored else total) + offset
        alpha = (1.0 + offset) / below
        scaled = alpha * z
        if drop is not None:
            scaled.masked_fill_(drop, -torch.inf)
        kernel, n = kernels.select("sparsemax", scaled).OPS["sparsemax"], x.shape[-1]
        p = kernel.forward(scaled.view(-1, n))[0].view(x.shape)
        ctx.save_for_backward(x, drop, z, total, alpha, below, p)
        ctx.kernel, ctx.q, ctx.mirrored = kernel, q, mirrored
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, drop, z, total, alpha, below, p = ctx.saved_tensors
        twice = torch.is_grad_enabled()
        if twice or batched(g) or foreign(g):
            with torch.enable_grad():
                masked = x if drop is None else x.masked_fill(drop, -torch.inf)
                (dx,) = torch.autograd.grad(cone(masked, ctx.q, ctx.mirrored), x, g, create_graph=twice)
            return dx, None, None, None, None, None
        n = x.shape[-1]
        u = ctx.kernel.backward(g.reshape(-1, n), p.view(-1, n), ()).view(x.shape)
        slope = -(u * z).sum(-1, keepdim=True) * (alpha / below)
        dx = u * alpha + (slope * total.sgn() if ctx.mirrored else slope)
        return dx if drop is None else dx.masked_fill_(drop, 0.0), None, None, None, None, None


@register("sparsecone", params=(Q,), paper="Laha et al. 2018, sec. 3.4", oracle="quadratic programme")
def sparsecone(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Projection through the point (-q, ..., -q).

    Only meaningful for rows with ``sum z > -Kq``; below, the order of the scores is reversed (the paper's reason for the
    hourglass), and at equality the row is NaN: use sparsehourglass unless the scores are known to be positive.

    Args:
        scores: any shape; -inf counts as masked.
        q: >= 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: q < 0.
    """
    return through_cone("sparsecone", scores, dim, mask, Q.take(q))


@register("sparsehourglass", params=(Q,), paper="Laha et al. 2018, sec. 3.5", oracle="quadratic programme")
def sparsehourglass(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Sparsecone on both sides of sum z = 0.

    Arguments, result and errors as :func:`sparsecone`. With q = 0 a row of sum 0 is NaN. Lipschitz with the l2
    constant ``sqrt((1 + 1/(Kq))^2 + (K-1)/(Kq)^2)``, not the printed ``1 + 1/(Kq)``.
    """
    return through_cone("sparsehourglass", scores, dim, mask, Q.take(q))
