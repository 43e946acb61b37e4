"""Numeric masks, which are added to the scores or replace them.

One rule applies to all numeric masks: a number at or below `HIDDEN` hides its key, and any other number is added.
Softmax gives a key with score -1e4 the weight 0, so other code hides a key with -1e4, -1e9, the lowest number of its
dtype, or -inf. A mapping that depends on positions or on the scale of the scores would treat such a number as a score;
the functions here convert it back to a boolean mask. `sa.nn`, `sa.integrations.transformers` and `treat_as_masked`
follow the same rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .registry import built

HIDDEN = -5000.0  # fills in use are -1e4 or lower, perhaps plus a position bias; real scores are never this low


def separate(mask: Tensor, below: float = HIDDEN) -> tuple[Tensor, Tensor]:
    """Split an additive mask into a boolean mask and position biases.

    Args:
        mask: ``[...]``, floating point.
        below: numbers at or below this limit count as masked; -inf always does.
    Returns:
        The boolean mask ``[...]``, True = keep, and the biases ``[...]``, 0 where masked.
    """
    keep = ~(mask <= below)  # NaN does not count as masked
    return keep, mask.masked_fill(~keep, 0.0)


class treat_as_masked(nn.Module):
    """Adapt ``mapping`` to code that fills scores with large negative numbers instead of passing a mask.

    The result is a module, called as ``f(scores, dim=-1)``, like torch.softmax. It can stand in place of a torch.nn.Softmax,
    and what the mapping learns is among the parameters of a model that has it as an attribute.

    Args:
        mapping: a name from ``sa.names("simplex")`` or ``sa.names("unnormalised")``, a module made by `sa.make`, or a function
            ``f(scores, mask=keep, dim=dim)``.
        below: scores at or below this limit are masked. If your own scores can be that low, use a lower limit, such as
            ``below=-1e8``.
        dim: the dimension if the call names none; None: that of the mapping's module, or the last.
        params: parameters of a mapping given by name.
    Raises:
        ValueError: the name or a parameter is unknown, or parameters are given together with a module.
        TypeError: the mapping is a class, or takes no mask.
    """

    def __init__(
        self, mapping: str | nn.Module | Callable[..., Tensor], below: float = HIDDEN, *, dim: int | None = None,
        **params: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        made = built(mapping, params)
        self.mapping, self.below = made, below
        self.dim = getattr(made, "dim", -1) if dim is None else dim

    def forward(self, scores: Tensor, dim: int | None = None) -> Tensor:
        """Weights in the shape of the scores; a row without a score above ``below`` gives zeros."""
        keep, _ = separate(scores, self.below)
        return self.mapping(scores, mask=keep, dim=self.dim if dim is None else dim)  # type: ignore[no-any-return]


__all__ = ["HIDDEN", "separate", "treat_as_masked"]
