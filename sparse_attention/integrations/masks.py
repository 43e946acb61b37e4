"""Masks that are written into the scores: a large negative number in place of what is not to be seen.

Softmax gives such a score 0. A mapping that looks at positions (fusedmax) or at the scale of the scores (sparsehourglass)
does not: to it the number is a score. Here it becomes a mask again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..registry import make


def separate(mask: Tensor, below: float | None = None) -> tuple[Tensor, Tensor]:
    """A mask that is added to scores, as the mask and what else it adds (position biases).

    Args:
        mask: ``[...]``, floating point.
        below: what counts as masked, -inf always; by default half of the type's lowest number, since a bias may have been
            added to that.
    Returns:
        bool ``[...]``, True = keep, and ``[...]`` with zeros where masked.
    """
    keep = ~(mask <= (torch.finfo(mask.dtype).min / 2 if below is None else below))  # NaN stays a score
    return keep, mask.masked_fill(~keep, 0.0)


def treat_as_masked(
    mapping: str | nn.Module | Callable[..., Tensor], below: float | None = None, **params: Any
) -> Callable[..., Tensor]:
    """``mapping`` for code that fills scores instead of masking them: called as ``f(scores, dim=-1)``, like torch.softmax.

    Args:
        mapping: a name of ``sa.names("simplex")``, a module of `sa.make`, or a function ``f(scores, mask=keep, dim=dim)``.
        below: scores at or below it are masked; by default half of the type's lowest number. Scores of your own that low do
            not exist, fills of another kind do: ``below=-1e8`` for -1e9.
        params: of a mapping given by name.
    Returns:
        Weights as scores; a row without a score above ``below`` gives zeros.
    Raises:
        ValueError: an unknown name or parameter, parameters beside a module, as `sa.make`.
    """
    if params and not isinstance(mapping, str):
        raise ValueError(f"{', '.join(params)}: parameters go with a mapping's name; {mapping!r} has its own already")
    made: Any = make(mapping, **params) if isinstance(mapping, str) else mapping

    def mapped(scores: Tensor, dim: int = -1) -> Tensor:
        keep, _ = separate(scores, below)
        return made(scores, mask=keep, dim=dim)

    return mapped


__all__ = ["separate", "treat_as_masked"]
