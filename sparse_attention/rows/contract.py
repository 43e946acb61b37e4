"""The contract of a simplex mapping, added around a function of ``(scores [..., n], mask [..., n])``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .apply import on_cpu
from .shape import along

FAR_BELOW = -1e9


def under_contract(
    function: Callable[..., Tensor], scores: Tensor, dim: int, mask: Tensor | None, **params: Any
) -> Tensor:
    """Any ``dim``; zeros at masked positions, at -inf and in fully masked rows, without gradient; NaN in its row.

    The function gets the attention dimension last, float32 or float64, masked scores at -1e9 and a mask of the scores' shape. It
    sees no row that is fully masked or contains NaN or +inf: such a row is computed on zeros and overwritten.
    """

    def kept(x: Tensor) -> Tensor:
        top = x.detach().amax(-1, keepdim=True)
        keep = x.detach() != -torch.inf
        if on_cpu(x, -1) and bool(top.isfinite().all()):  # every row is as the function expects it
            out = ~keep
            return function(x.masked_fill(out, FAR_BELOW), keep, **params).masked_fill(out, 0.0).to(x.dtype)
        dead, bad = top == -torch.inf, ~(top < torch.inf)
        skip = dead | bad
        # Masked scores are far below any other, not -inf: a learned factor times -inf has a NaN gradient.
        p = function(x.masked_fill(~keep, FAR_BELOW).masked_fill(skip, 0.0), keep | skip, **params)
        return p.masked_fill(~keep | dead, 0.0).masked_fill(bad, torch.nan).to(x.dtype)

    return along(kept, scores, dim, mask)
