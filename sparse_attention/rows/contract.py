"""The contract of simplex and unnormalised mappings, added around a function of ``(scores [..., n], mask [..., n])``."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .apply import on_cpu
from .ragged import along

FAR_BELOW = -1e9


def under_contract(
    function: Callable[..., Tensor],
    scores: Tensor,
    dim: int,
    mask: Tensor | None,
    over_rows: Any = MappingProxyType({}),  # a mapping: name -> number or tensor
    **params: Any,
) -> Tensor:
    """Call the function so that the result follows the contract.

    The result works for any ``dim``; it is zero, without gradient, at masked positions, at scores of -inf and in fully
    masked rows; a NaN stays in its row. The function gets scores with the attention dimension last, float32 or float64,
    with masked scores at -1e9, and a mask in the shape of the scores. It never sees a row that is fully masked or
    contains NaN or +inf: such a row is replaced by ones, and its result is overwritten (by zeros, sum_normalization
    would be NaN, and so would the gradient in anomaly mode). Parameters in ``over_rows`` that are tensors become ``[..., 1]`` (`shape.per_row`); other parameters are passed on as they are.
    """

    def kept(x: Tensor, **given: Any) -> Tensor:
        top = x.detach().amax(-1, keepdim=True)
        keep = x.detach() != -torch.inf
        if on_cpu(x, -1) and bool(top.isfinite().all()):  # every row is as the function expects it
            out = ~keep
            return function(x.masked_fill(out, FAR_BELOW), keep, **given, **params).masked_fill(out, 0.0).to(x.dtype)
        dead, bad = top == -torch.inf, ~(x.detach() < torch.inf).all(-1, keepdim=True)
        skip = dead | bad
        # Masked scores are far below all others but not -inf, since a learned factor times -inf has a NaN gradient.
        p = function(x.masked_fill(~keep, FAR_BELOW).masked_fill(skip, 1.0), keep | skip, **given, **params)
        return p.masked_fill(~keep | dead, 0.0).masked_fill(bad, torch.nan).to(x.dtype)

    return along(kept, scores, dim, mask, **over_rows)
