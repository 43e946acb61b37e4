r"""Sparsecone and sparsehourglass: between the scale invariance of sum-normalisation and the translation invariance of
sparsemax (Laha et al. 2018, sec. 3.4 and 3.5).

Sparsecone projects z towards (-q, ..., -q) on the hyperplane of sum 1, then on the simplex:
:math:`\mathrm{sparsemax}(\alpha z)`, :math:`\alpha = \frac{1 + Kq}{\sum z + Kq}`. Sparsehourglass mirrors the scores below the
plane :math:`\sum z = 0`: :math:`\hat\alpha = \frac{1 + Kq}{|\sum z| + Kq}`. q = 0: sum-normalisation (++ for the hourglass),
q -> infinity: sparsemax. K counts the kept positions. The hourglass has a kink at sum z = 0; sgn(0) = 0 there.

Forward and backward: alpha below, then those of sparsemax, ``kernels/reference/threshold.py`` (``sparsemax_*``); fast
``kernels/native/src/cone.h``, ``kernels/triton/simplex.py``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import fused
from ..rows.masked import masked_rows
from ..rows.shape import along
from .sparsemax import project_last

Q = Param("q", low=0.0, closed_low=True, meaning="0 is scale invariant, infinity translation invariant (sparsemax)")


def cone(x: Tensor, q: float | Tensor, mirrored: bool = False) -> Tensor:
    """Sparsecone of rows ``x [..., n]``, -inf where masked, q a number or ``[..., 1]``; ``mirrored``: sparsehourglass."""
    keep = x.detach() != -torch.inf
    z = x.masked_fill(~keep, 0.0)
    count = keep.sum(-1, keepdim=True).to(x.dtype)
    total = z.sum(-1, keepdim=True)
    alpha = ((1.0 + count * q) / ((total.abs() if mirrored else total) + count * q)).to(x.dtype)
    # an infinite alpha has no value; times a negative score it would look like a mask
    alpha = alpha.masked_fill(alpha.detach().isinf(), torch.nan)
    return project_last(alpha * z, keep)


def through_cone(op: str, scores: Tensor, dim: int, mask: Tensor | None, q: float | Tensor) -> Tensor:
    """sparsecone or sparsehourglass along ``dim``: by one kernel if possible, else by `cone`."""
    mirrored = op == "sparsehourglass"
    if not isinstance(q, Tensor):
        p = fused(op, scores, dim, mask, {"q": q}, partial(cone, q=q, mirrored=mirrored))
        if p is not None:
            return p

    def again(x: Tensor, mask: Tensor | None, q: float | Tensor) -> Tensor:
        return along(cone, x, -1, mask, q=q, mirrored=mirrored)

    def on_last(x: Tensor, q: float | Tensor) -> Tensor:
        p = masked_rows(op, x.contiguous(), None, {"q": q}, again)
        return cone(x, q, mirrored) if p is None else p

    if dim.__class__ is int and dim == -1 and (p := masked_rows(op, scores, mask, {"q": q}, again)) is not None:
        return p
    return along(on_last, scores, dim, mask, q=q)


@register("sparsecone", params=(Q,), paper="Laha et al. 2018, sec. 3.4", oracle="quadratic programme")
def sparsecone(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Projection through the point (-q, ..., -q).

    Meaningful only for rows with ``sum z > -Kq``. Below, the order of the scores is reversed (the paper's reason for the
    hourglass), and at equality the row is NaN. Use sparsehourglass unless the scores are known to be positive.

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
