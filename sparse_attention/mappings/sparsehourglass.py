r"""Sparsecone and sparsehourglass: between the scale invariance of sum-normalisation and the translation invariance of
sparsemax (Laha et al. 2018, sec. 3.4 and 3.5).

Sparsecone projects z towards (-q, ..., -q) onto the hyperplane of vectors that sum to 1, then onto the simplex. It
equals :math:`\mathrm{sparsemax}(\alpha z)` with :math:`\alpha = \frac{1 + Kq}{\sum z + Kq}`, where K is the number of
kept positions. Sparsehourglass mirrors the scores below the plane :math:`\sum z = 0`:
:math:`\hat\alpha = \frac{1 + Kq}{|\sum z| + Kq}`. q = 0 gives sum-normalisation (sum-normalisation++ for the
hourglass), and q -> infinity gives sparsemax. The hourglass has a kink at sum z = 0; its
gradient uses sgn(0) = 0 there.

Forward and backward: alpha is in this file; the sparsemax that follows is in ``kernels/reference/threshold.py``
(``sparsemax_*``). The fast kernels are in ``kernels/native/src/cone.h`` and ``kernels/triton/simplex.py``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..registry import Param, register
from ..rows.apply import fused, masked_or
from .sparsemax import project_last

Q = Param("q", low=0.0, closed_low=True, meaning="0 is scale invariant, infinity translation invariant (sparsemax)")


def cone(x: Tensor, q: float | Tensor, mirrored: bool = False) -> Tensor:
    """Sparsecone (sparsehourglass if ``mirrored``) of rows ``x [..., n]``, -inf = masked; q: number or ``[..., 1]``."""
    keep = x.detach() != -torch.inf
    z = x.masked_fill(~keep, 0.0)
    count = keep.sum(-1, keepdim=True).to(x.dtype)
    total = z.sum(-1, keepdim=True).masked_fill(count == 0, 1.0)  # 0 / 0 in a hidden row would make q's gradient NaN
    alpha = ((1.0 + count * q) / ((total.abs() if mirrored else total) + count * q)).to(x.dtype)
    # With an infinite alpha the result is undefined; alpha times a negative score would be -inf and look masked.
    alpha = alpha.masked_fill(alpha.detach().isinf(), torch.nan)
    return project_last(alpha * z, keep)


def through_cone(op: str, scores: Tensor, dim: int, mask: Tensor | None, q: float | Tensor) -> Tensor:
    """Sparsecone or sparsehourglass along ``dim``, in one kernel if possible, otherwise by `cone`."""
    plain = partial(cone, mirrored=op == "sparsehourglass")
    p = None if isinstance(q, Tensor) else fused(op, scores, dim, mask, {"q": q}, partial(plain, q=q))
    return masked_or(plain, op, scores, dim, mask, {"q": q}) if p is None else p


@register("sparsecone", params=(Q,), paper="Laha et al. 2018, sec. 3.4", oracle="quadratic programme")
def sparsecone(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Projection through the point (-q, ..., -q).

    Meaningful only for rows with ``sum z > -Kq``. If the sum is smaller, the order of the scores is reversed (which is
    why the paper introduces the hourglass); if it equals ``-Kq``, the row is NaN. Use sparsehourglass unless the scores
    are known to be positive.

    Args:
        scores: any shape; -inf counts as masked.
        q: >= 0, a number or a tensor over the rows.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1.
    Raises:
        ValueError: q < 0.
    """
    return through_cone("sparsecone", scores, dim, mask, Q.take(q))


@register("sparsehourglass", params=(Q,), paper="Laha et al. 2018, sec. 3.5", oracle="quadratic programme")
def sparsehourglass(scores: Tensor, dim: int = -1, q: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Sparsecone mirrored at the plane sum z = 0.

    Arguments, result and errors are those of :func:`sparsecone`. With q = 0, a row that sums to 0 is NaN. The l2
    Lipschitz constant is ``sqrt((1 + 1/(Kq))^2 + (K-1)/(Kq)^2)``, not ``1 + 1/(Kq)`` as printed in the paper.
    """
    return through_cone("sparsehourglass", scores, dim, mask, Q.take(q))
