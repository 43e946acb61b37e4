r"""Sparsegen: :math:`\rho(z; g, \lambda) = \arg\min_{p \in \Delta} \|p - g(z)\|^2 - \lambda\|p\|^2
= \mathrm{sparsemax}(g(z)/(1-\lambda))`, :math:`\lambda < 1`.

Laha et al. 2018, sec. 3. lam -> 1 gives a one-hot vector, lam -> -infinity the uniform one (the text before sec. 3.1 has
it the other way round). ``sparsegen_lin``: g = z; ``sparsegen_exp``: g = e^z; ``sparsegen_sq``: g = z^2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, on_last, per_row, rows

LAM = Param(
    "lam",
    0.0,
    high=1.0,
    meaning="0 is sparsemax of g(z); towards 1 sparser, negative denser",
    grid=(-1.0, 0.0, 0.5, 0.75),
)
_PAPER = "Laha et al. 2018, sec. 3"


def _sparsegen(
    scores: Tensor, dim: int, lam: float | Tensor, mask: Tensor | None, g: Callable[[Tensor], Tensor] | None
) -> Tensor:
    if g is None and not isinstance(lam, Tensor):
        return rows("sparsemax", scores, dim, mask, {"gamma": 1.0 - LAM.check(lam)})
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    keep = x.detach() != -torch.inf
    z = x.masked_fill(~keep, 0.0)
    z = z if g is None else g(z)
    if isinstance(lam, Tensor):
        z = (z / (1.0 - per_row(lam, scores, dim, "lam"))).to(x.dtype)
        gamma = 1.0
    else:
        gamma = 1.0 - LAM.check(lam)
    return restore(on_last("sparsemax", z.masked_fill(~keep, -torch.inf), {"gamma": gamma}))


@register(
    "sparsegen_lin",
    params=(LAM,),
    paper=_PAPER + ".2",
    oracle="quadratic programme",
    summary="sparsemax with adjustable sparsity",
    complete=True,
)
def sparsegen_lin(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """``sparsemax(scores / (1 - lam))`` along ``dim``.

    Args:
        scores: any shape; -inf counts as masked.
        lam: < 1, a number or a tensor over the rows (its derivative is ``J z / (1-lam)^2``).
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: lam >= 1.
    """
    return _sparsegen(scores, dim, lam, mask, None)


@register(
    "sparsegen_exp",
    params=(LAM,),
    paper=_PAPER + ".1",
    oracle="quadratic programme",
    summary="sparsegen of e^z",
    complete=True,
)
def sparsegen_exp(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """``sparsemax(exp(scores) / (1 - lam))`` along ``dim``; arguments as :func:`sparsegen_lin`.

    Not translation invariant, so scores cannot be shifted first: they overflow above 88 in float32 (NaN row).
    """
    return _sparsegen(scores, dim, lam, mask, torch.exp)


@register(
    "sparsegen_sq",
    params=(LAM,),
    paper=_PAPER + ".1",
    oracle="quadratic programme",
    summary="sparsegen of z^2",
    complete=True,
)
def sparsegen_sq(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """``sparsemax(scores^2 / (1 - lam))`` along ``dim``; arguments as :func:`sparsegen_lin`. Large negative scores count
    as much as large positive ones."""
    return _sparsegen(scores, dim, lam, mask, torch.square)


class SparsegenLin(Mapping):
    """Module twin of :func:`sparsegen_lin`."""

    mapping_name = "sparsegen_lin"

    def __init__(self, lam: Any = 0.0):
        super().__init__(lam=lam)


class SparsegenExp(Mapping):
    """Module twin of :func:`sparsegen_exp`."""

    mapping_name = "sparsegen_exp"

    def __init__(self, lam: Any = 0.0):
        super().__init__(lam=lam)


class SparsegenSq(Mapping):
    """Module twin of :func:`sparsegen_sq`."""

    mapping_name = "sparsegen_sq"

    def __init__(self, lam: Any = 0.0):
        super().__init__(lam=lam)


for _twin in (SparsegenLin, SparsegenExp, SparsegenSq):
    set_module(_twin.mapping_name, _twin)
