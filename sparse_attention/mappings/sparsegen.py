r"""Sparsegen: :math:`\rho(z; g, \lambda) = \arg\min_{p \in \Delta} \|p - g(z)\|^2 - \lambda\|p\|^2
= \mathrm{sparsemax}(g(z)/(1-\lambda))`, :math:`\lambda < 1`.

Laha et al. 2018, sec. 3. lam = 0 is sparsemax of g(z), lam -> 1 gives a one-hot vector, lam -> -infinity the uniform one
(the text before sec. 3.1 says the opposite). ``sparsegen_lin``: g = z; ``sparsegen_exp``: g = e^z;
``sparsegen_sq``: g = z^2.

Forward and backward: g below, then those of sparsemax, ``kernels/reference/threshold.py`` (``sparsemax_*``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import rows
from ..rows.shape import along
from .sparsemax import project_last

LAM = Param("lam", high=1.0, meaning="0 is sparsemax of g(z); towards 1 sparser, negative denser")


def _sparsegen(
    scores: Tensor, dim: int, lam: float | Tensor, mask: Tensor | None, g: Callable[[Tensor], Tensor] | None
) -> Tensor:
    lam = LAM.take(lam)
    if g is None:
        return rows("sparsemax", scores, dim, mask, {"gamma": 1.0 - lam})

    def body(x: Tensor, lam: float | Tensor) -> Tensor:
        keep = x.detach() != -torch.inf
        z = g(x.masked_fill(~keep, 0.0))
        if isinstance(lam, Tensor):
            return project_last((z / (1.0 - lam)).to(x.dtype), keep)
        return project_last(z, keep, 1.0 - lam)

    return along(body, scores, dim, mask, lam=lam)


@register("sparsegen_lin", params=(LAM,), paper="Laha et al. 2018, sec. 3.2", oracle="quadratic programme")
def sparsegen_lin(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Sparsemax with adjustable sparsity.

    ``sparsemax(scores / (1 - lam))``.

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


@register("sparsegen_exp", params=(LAM,), paper="Laha et al. 2018, sec. 3.1", oracle="quadratic programme")
def sparsegen_exp(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Sparsegen of e^z.

    ``sparsemax(exp(scores) / (1 - lam))``; arguments as :func:`sparsegen_lin`. Not translation invariant, so scores cannot be shifted
    first: above 88 they overflow in float32, and the row is NaN.
    """
    return _sparsegen(scores, dim, lam, mask, torch.exp)


@register("sparsegen_sq", params=(LAM,), paper="Laha et al. 2018, sec. 3.1", oracle="quadratic programme")
def sparsegen_sq(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Sparsegen of z^2.

    ``sparsemax(scores^2 / (1 - lam))``; arguments as :func:`sparsegen_lin`. A large negative score counts as
    much as a large positive one.
    """
    return _sparsegen(scores, dim, lam, mask, torch.square)
