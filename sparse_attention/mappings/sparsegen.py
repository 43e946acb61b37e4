r"""Sparsegen: :math:`\rho(z; g, \lambda) = \arg\min_{p \in \Delta} \|p - g(z)\|^2 - \lambda\|p\|^2`, which is
:math:`\mathrm{sparsemax}(g(z)/(1-\lambda))`, for :math:`\lambda < 1`.

Laha et al. 2018, sec. 3. lam = 0 gives sparsemax of g(z), lam -> 1 gives a one-hot vector, and lam -> -infinity gives
uniform weights (the text before sec. 3.1 says the opposite). The function g is z in ``sparsegen_lin``, e^z in
``sparsegen_exp`` and z^2 in ``sparsegen_sq``.

Forward and backward: g is in this file; the sparsemax that follows is in ``kernels/reference/threshold.py``
(``sparsemax_*``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import rows
from ..rows.ragged import along
from .sparsemax import project_last

LAM = Param("lam", high=1.0, meaning="0 is sparsemax of g(z); towards 1 sparser, negative denser")


def _sparsegen(
    scores: Tensor, dim: int, lam: float | Tensor, mask: Tensor | None, g: Callable[[Tensor], Tensor]
) -> Tensor:
    def body(x: Tensor, lam: float | Tensor) -> Tensor:
        keep = x.detach() != -torch.inf
        z = g(x.masked_fill(~keep, 0.0))
        if isinstance(lam, Tensor):
            return project_last((z / (1.0 - lam)).to(x.dtype), keep)
        return project_last(z, keep, 1.0 - lam)

    return along(body, scores, dim, mask, lam=LAM.take(lam))


@register("sparsegen_lin", params=(LAM,), paper="Laha et al. 2018, sec. 3.2", oracle="quadratic programme")
def sparsegen_lin(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Sparsemax with adjustable sparsity.

    Computes ``sparsemax(scores / (1 - lam))``.

    Args:
        scores: any shape; -inf counts as masked.
        lam: < 1, a number or a tensor over the rows (the derivative with respect to lam is ``J z / (1-lam)^2``).
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: lam >= 1.
    """
    return rows("sparsemax", scores, dim, mask, {"gamma": 1.0 - LAM.take(lam)})


@register("sparsegen_exp", params=(LAM,), paper="Laha et al. 2018, sec. 3.1", oracle="quadratic programme")
def sparsegen_exp(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Sparsegen of e^z.

    Computes ``sparsemax(exp(scores) / (1 - lam))``, with the arguments of :func:`sparsegen_lin`. It is not translation
    invariant, so the scores cannot be shifted first: in float32, scores above 88 overflow, and their row is NaN.
    """
    return _sparsegen(scores, dim, lam, mask, torch.exp)


@register("sparsegen_sq", params=(LAM,), paper="Laha et al. 2018, sec. 3.1", oracle="quadratic programme")
def sparsegen_sq(scores: Tensor, dim: int = -1, lam: float | Tensor = 0.0, mask: Tensor | None = None) -> Tensor:
    """Sparsegen of z^2.

    Computes ``sparsemax(scores^2 / (1 - lam))``, with the arguments of :func:`sparsegen_lin`. A large negative score
    gets as much weight as an equally large positive one.
    """
    return _sparsegen(scores, dim, lam, mask, torch.square)
