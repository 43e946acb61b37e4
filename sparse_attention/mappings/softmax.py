r"""Softmax: :math:`p = \arg\max_{p \in \Delta} p^\top x - \gamma \sum_i p_i \log p_i = e^{x/\gamma} / \sum e^{x/\gamma}`.

The dense mapping that the others replace; here it keeps the library's contract (a fully masked row gives zeros, not
NaN). Cost O(n). Jacobian :math:`(\mathrm{Diag}(p) - pp^\top)/\gamma`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import Mapping, Param, register, set_module
from ._call import last, per_row

GAMMA = Param("gamma", 1.0, low=0.0, meaning="temperature: smaller is closer to the maximum", grid=(1.0,))


@register(
    "softmax",
    params=(GAMMA,),
    paper="Bridle 1990; Niculae & Blondel 2017, Table of sec. 2",
    oracle="torch.softmax",
    summary="dense; every kept position gets weight",
    complete=True,
)
def softmax(scores: Tensor, dim: int = -1, gamma: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Softmax of ``scores / gamma`` along ``dim``.

    Args:
        scores: any shape; -inf counts as masked.
        gamma: temperature > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1, fully masked rows are 0.
    """
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    x = scaled(x, scores, dim, gamma)
    dead = x.detach().amax(-1, keepdim=True) == -torch.inf
    return restore(torch.softmax(x.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0))


def scaled(x: Tensor, scores: Tensor, dim: int, gamma: float | Tensor) -> Tensor:
    """``x / gamma`` for the rows ``x`` of ``last(scores, dim)``; differentiable in gamma, masked positions stay -inf."""
    if not isinstance(gamma, Tensor):
        gamma = GAMMA.check(gamma)
        return x if gamma == 1.0 else x / gamma
    gamma = per_row(gamma, scores, dim, "gamma")
    keep = x.detach() != -torch.inf
    # -inf / gamma has no derivative in gamma: divide the kept scores only.
    return (x.masked_fill(~keep, 0.0) / gamma).masked_fill(~keep, -torch.inf).to(x.dtype)


class Softmax(Mapping):
    """Module twin of :func:`softmax`."""

    mapping_name = "softmax"

    def __init__(self, gamma: Any = 1.0):
        super().__init__(gamma=gamma)


set_module("softmax", Softmax)
