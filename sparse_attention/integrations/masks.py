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

from ..registry import make

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


def treat_as_masked(
    mapping: str | nn.Module | Callable[..., Tensor], below: float = HIDDEN, **params: Any
) -> Callable[..., Tensor]:
    """Adapt ``mapping`` to code that fills scores with large negative numbers instead of passing a mask.

    The result is called as ``f(scores, dim=-1)``, like torch.softmax.

    Args:
        mapping: a name from ``sa.names("simplex")`` or ``sa.names("unnormalised")``, a module made by `sa.make`, or a function
            ``f(scores, mask=keep, dim=dim)``.
        below: scores at or below this limit are masked. If your own scores can be that low, use a lower limit, such as
            ``below=-1e8``.
        params: parameters of a mapping given by name.
    Returns:
        The function. It returns weights in the shape of the scores; a row without a score above ``below`` gives zeros.
    Raises:
        ValueError: the name or a parameter is unknown, or parameters are given together with a module.
    """
    if params and not isinstance(mapping, str):
        raise ValueError(f"{', '.join(params)}: allowed only with a mapping's name; set them in {mapping!r} itself")
    made: Any = make(mapping, **params) if isinstance(mapping, str) else mapping

    def mapped(scores: Tensor, dim: int = -1) -> Tensor:
        keep, _ = separate(scores, below)
        return made(scores, mask=keep, dim=dim)

    return mapped


__all__ = ["HIDDEN", "separate", "treat_as_masked"]
