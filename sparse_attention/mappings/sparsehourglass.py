r"""Sparsecone and sparsehourglass: between the scale invariance of sum-normalisation and the translation invariance of
sparsemax (Laha et al. 2018, sec. 3.4 and 3.5).

Sparsecone projects z towards (-q, ..., -q) on the hyperplane of sum 1, then on the simplex:
:math:`\mathrm{sparsemax}(\alpha z)`, :math:`\alpha = \frac{1 + Kq}{\sum z + Kq}`. Sparsehourglass mirrors the scores below the
plane :math:`\sum z = 0`: :math:`\hat\alpha = \frac{1 + Kq}{|\sum z| + Kq}`. q = 0: sum-normalisation (++ for the hourglass),
q -> infinity: sparsemax. K counts the kept positions. The hourglass has a kink at sum z = 0; sgn(0) = 0 there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, on_last, per_row

Q = Param(
    "q",
    1.0,
    low=0.0,
    closed_low=True,
    meaning="0 is scale invariant, infinity translation invariant (sparsemax)",
    grid=(0.01, 0.1, 1.0, 10.0, 100.0),
)


def _cone(scores: Tensor, dim: int, q: float | Tensor, mask: Tensor | None, mirrored: bool) -> Tensor:
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    q = per_row(q, scores, dim, "q") if isinstance(q, Tensor) else Q.check(q)
    keep = x.detach() != -torch.inf
    z = x.masked_fill(~keep, 0.0)
    count = keep.sum(-1, keepdim=True).to(x.dtype)
    total = z.sum(-1, keepdim=True)
    z = (1.0 + count * q) / ((total.abs() if mirrored else total) + count * q) * z
    return restore(on_last("sparsemax", z.to(x.dtype).masked_fill(~keep, -torch.inf), {"gamma": 1.0}))


@register(
    "sparsecone",
    params=(Q,),
    paper="Laha et al. 2018, sec. 3.4",
    oracle="quadratic programme",
    summary="projection through the point (-q, ..., -q)",
    complete=True,
)
def sparsecone(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Sparsecone along ``dim``. Only meaningful for rows with ``sum z > -Kq``; below, the order of the scores is
    reversed (the paper's reason for the hourglass), and at equality the row is NaN.

    Args:
        scores: any shape; -inf counts as masked.
        q: >= 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: q < 0.
    """
    return _cone(scores, dim, q, mask, mirrored=False)


@register(
    "sparsehourglass",
    params=(Q,),
    paper="Laha et al. 2018, sec. 3.5",
    oracle="quadratic programme",
    summary="sparsecone on both sides of sum z = 0",
    complete=True,
)
def sparsehourglass(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Sparsehourglass along ``dim``; arguments, result and errors as :func:`sparsecone`. With q = 0 a row of sum 0 is NaN.

    Lipschitz with the l2 constant ``sqrt((1 + 1/(Kq))^2 + (K-1)/(Kq)^2)``, not the printed ``1 + 1/(Kq)``.
    """
    return _cone(scores, dim, q, mask, mirrored=True)


class Sparsecone(Mapping):
    """Module twin of :func:`sparsecone`."""

    mapping_name = "sparsecone"

    def __init__(self, q: Any = 1.0):
        super().__init__(q=q)


class Sparsehourglass(Mapping):
    """Module twin of :func:`sparsehourglass`."""

    mapping_name = "sparsehourglass"

    def __init__(self, q: Any = 1.0):
        super().__init__(q=q)


set_module("sparsecone", Sparsecone)
set_module("sparsehourglass", Sparsehourglass)
