r"""Constrained attention in a decoder: a word of fertility f gets at most f attention in total over all steps.

Martins & Kreutzer 2017; Malaviya, Ferreira & Martins 2018; Peters, Niculae & Martins 2018. The bounds at step t are the
fertility that remains after the earlier steps:

.. math:: p_t = \mathrm{constrained}(z_t + c\, u_t,\; u_t), \qquad u_1 = f, \quad u_{t+1} = \max(u_t - p_t, 0)

A position with infinite fertility (a sink) is never used up and gets no bonus. If the fertilities sum to the number of
steps, they are used up exactly: the attention to position j, summed over the steps, is f_j. A step raises an error if
the remaining fertility sums to less than 1.

Forward and backward: each step is in ``mappings/constrained.py``; autograd differentiates through the steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..registry import Param, register
from .constrained import constrained_softmax, constrained_sparsemax

BONUS = Param(
    "c", low=0.0, closed_low=True, tensor=False, meaning="bonus: c times the remaining fertility is added to the scores"
)
_PAPER = "Malaviya et al. 2018; Peters et al. 2018"
_State = dict[str, Tensor]


class _Fertility(nn.Module):
    """Constrained attention whose bounds are the remaining fertility; the state is ``{"left": [B, n]}``."""

    constrained: Callable[..., Tensor]

    def __init__(self, c: float = 0.0):
        super().__init__()
        self.c = c

    def start(self, mask: Tensor, fertility: Tensor) -> _State:
        """The initial state, from the mask (bool ``[B, n]``, True = keep) and the fertility (``[B, n]``, >= 0)."""
        return {"left": fertility.expand(mask.shape).masked_fill(~mask, 0.0)}

    def step(self, scores: Tensor, state: _State, mask: Tensor) -> tuple[Tensor, _State]:
        """Attention ``[B, n]`` and the next state, from scores and mask ``[B, n]``.

        Raises:
            ValueError: the remaining fertility of a row sums to less than 1.
        """
        left = state["left"]
        bonus = self.c * left.masked_fill(left == torch.inf, 0.0)
        try:
            p = type(self).constrained(scores + bonus, left.clamp(max=1.0), mask=mask)  # p <= 1 in any case
        except ValueError as error:
            raise ValueError(
                f"the remaining fertility is too small: {error}; use more fertility, fewer steps, or a position with "
                "infinite fertility (a sink; model.sink=true)"
            ) from None
        return p, {"left": (left - p).clamp(min=0.0)}


@register(
    "fertility_softmax", kind="stateful", inputs=("fertility",), params=(BONUS,), paper=_PAPER, oracle="loop property"
)
class FertilitySoftmax(_Fertility):
    """Constrained softmax at each decoder step, with the remaining fertility as the bounds."""

    constrained = staticmethod(constrained_softmax)


@register(
    "fertility_sparsemax", kind="stateful", inputs=("fertility",), params=(BONUS,), paper=_PAPER, oracle="loop property"
)
class FertilitySparsemax(_Fertility):
    """Constrained sparsemax at each decoder step, with the remaining fertility as the bounds."""

    constrained = staticmethod(constrained_sparsemax)
