r"""Softmax:
:math:`p = \arg\max_{p \in \Delta} p^\top x - \gamma \sum_i p_i \log p_i = e^{x/\gamma} / \sum e^{x/\gamma}`.

The dense mapping that the others replace: no kept position gets exactly 0. As everywhere in this library, a fully
masked row gives zeros, not NaN. Cost O(n). The Jacobian is :math:`(\mathrm{Diag}(p) - pp^\top)/\gamma`.

Forward and backward: ``torch.softmax``; on a GPU, ``kernels/triton/simplex.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import fused, on_cpu
from ..rows.ragged import along, over_segments
from ..rows.shape import checked, foreign, scaled

GAMMA = Param("gamma", low=0.0, meaning="temperature: smaller is closer to the maximum")


@register(
    "softmax", params=(GAMMA,), paper="Bridle 1990; Niculae & Blondel 2017, Table of sec. 2", oracle="torch.softmax"
)
def softmax(
    scores: Tensor,
    dim: int = -1,
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    segments: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Dense weights: every kept position gets a nonzero weight.

    Args:
        scores: any shape; -inf counts as masked.
        gamma: temperature > 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
        segments: int64 ``[n]``, the segment of each position along ``dim``, such as the node that an edge leads to; every
            segment gets weights of its own, in linear time.
        dtype: the scores are first converted to it, as in torch.softmax.
    Returns:
        shape of scores; rows sum to 1, fully masked rows are 0.
    """
    if dtype is not None:
        scores = scores.to(dtype)
    if segments is not None:
        return over_segments(softmax, scores, dim, mask, segments, gamma=GAMMA.take(gamma))
    gamma = GAMMA.take(gamma)
    if not isinstance(gamma, Tensor):
        p = fused("softmax", scores, dim, mask, {"gamma": gamma})
        if p is not None:
            return p
        if on_cpu(scores, dim) and (mask is None or not foreign(mask)):
            x = scores if mask is None else scores.masked_fill(~checked(mask, scores), -torch.inf)
            p = torch.softmax(scaled(x, gamma), -1)
            some = p.detach() if p.numel() < 10000 else p.detach().select(-1, 0)
            if not math.isnan(some.sum().item()):  # no row is fully masked
                return p
    return along(_softmax, scores, dim, mask, gamma=gamma)


def _softmax(x: Tensor, gamma: float | Tensor) -> Tensor:
    x = scaled(x, gamma)
    dead = x.detach().amax(-1, keepdim=True) == -torch.inf
    return torch.softmax(x.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
