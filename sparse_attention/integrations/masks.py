"""Numeric masks: added to the scores, or written in their place.

One rule for all of them: a number at or below `HIDDEN` hides its key, any other is added. Softmax gives a key at -1e4 the weight
0, so code that hides a key writes -1e4, -1e9, its type's lowest number or -inf. A mapping that depends on positions or on the
scale of the scores would read such a number as a score; here it becomes a mask again. The rule is the same in `sa.nn`, in
`sa.integrations.transformers` and in `treat_as_masked`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..registry import make

HIDDEN = -5000.0  # the smallest fill in use is -1e4, perhaps plus a position bias; no attention score is that low


def separate(mask: Tensor, below: float = HIDDEN) -> tuple[Tensor, Tensor]:
    """Split a mask that is added to scores into a boolean mask and position biases.

    Args:
        mask: ``[...]``, floating point.
        below: numbers at or below it count as masked, -inf always.
    Returns:
        bool ``[...]``, True = keep, and ``[...]`` with zeros where masked.
    """
    keep = ~(mask <= below)  # NaN stays a score
    return keep, mask.masked_fill(~keep, 0.0)


def treat_as_masked(
    mapping: str | nn.Module | Callable[..., Tensor], below: float = HIDDEN, **params: Any
) -> Callable[..., Tensor]:
    """``mapping`` for code that fills scores instead of masking them: called as ``f(scores, dim=-1)``, like torch.softmax.

    Args:
        mapping: a name of ``sa.names("simplex")``, a module of `sa.make`, or a function ``f(scores, mask=keep, dim=dim)``.
        below: scores at or below it are masked. If your own scores can be that low, set a lower one: ``below=-1e8``.
        params: of a mapping given by name.
    Returns:
        Weights as scores; a row without a score above ``below`` gives zeros.
    Raises:
        ValueError: an unknown name or parameter; parameters given with a module.
    """
    if params and not isinstance(mapping, str):
        raise ValueError(f"{', '.join(params)}: parameters go with a mapping's name; {mapping!r} has its own already")
    made: Any = make(mapping, **params) if isinstance(mapping, str) else mapping

    def mapped(scores: Tensor, dim: int = -1) -> Tensor:
        keep, _ = separate(scores, below)
        return made(scores, mask=keep, dim=dim)

    return mapped


__all__ = ["HIDDEN", "separate", "treat_as_masked"]
