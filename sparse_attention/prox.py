r"""Proximal operators :math:`\arg\min_y \frac12\|y - x\|^2 + \Omega(y)` of total variation and the ordered weighted l1
norm.

* ``tv1d``: :math:`\Omega(y) = \lambda \sum_i |y_{i+1} - y_i|`, total variation along a line (fused lasso);
* ``owl``: :math:`\Omega(y) = \sum_i w_i |y|_{(i)}`, ordered weighted l1 norm,
  :math:`|y|_{(1)} \ge |y|_{(2)} \ge \dots`, :math:`w_1 \ge w_2 \ge \dots \ge 0` (Zeng & Figueiredo 2014);
* ``oscar``: owl with :math:`w_i = \lambda_1 + \lambda (n - i)`, that is
  :math:`\lambda_1 \|y\|_1 + \lambda \sum_{i<j} \max(|y_i|, |y_j|)` (Zhong & Kwok 2012).

``tv1d`` and ``oscar`` use the kernels of the mappings that contain these operators. With a large gamma, the projection
onto the simplex is only a shift: :math:`\mathrm{prox}(x) = \gamma (p - 1/n) + \mathrm{mean}`, in float64. ``owl`` is
plain torch (sorting, then pooling) and does not support ``torch.func`` transforms. Positions that the prox makes equal
are bitwise equal. On a GPU, ``tv1d`` and ``oscar`` read one number from the device.

Forward and backward: the reference is in ``kernels/reference/structured.py``, the fast kernels are in
``kernels/native/src/fusedmax.h`` and ``oscarmax.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .describe import Param
from .kernels.reference.rows import widest
from .mappings.fusedmax import fusedmax
from .mappings.oscarmax import oscarmax, prox_owl
from .rows.ragged import along
from .rows.shape import foreign, transformed

LAM = Param("lam", low=0.0, closed_low=True, meaning="weight of the penalty; 0 returns x")
L1 = Param("l1", low=0.0, closed_low=True, meaning="weight of the l1 norm")


def tv1d(x: Tensor, lam: float | Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``argmin_y 1/2 ||y - x||^2 + lam sum_i |y_{i+1} - y_i|`` along ``dim``; O(n) per row.

    Args:
        x: any shape, floating point; -inf counts as masked.
        lam: >= 0, a number or a tensor over the rows.
        mask: bool, broadcastable to x, True = keep; the positions on both sides of a masked one become neighbours.
    Returns:
        shape and dtype of x; 0 where masked, NaN in a row with NaN or +inf. Twice differentiable in x and in a tensor
        lam.
    Raises:
        ValueError: lam is a negative number. (Negative values in a tensor lam make their rows NaN.)
    """
    return along(_tv1d, x, dim, mask, lam=LAM.take(lam))


def oscar(
    x: Tensor, lam: float | Tensor, l1: float | Tensor = 0.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """``argmin_y 1/2 ||y - x||^2 + l1 ||y||_1 + lam sum_{i<j} max(|y_i|, |y_j|)`` along ``dim``; O(n log n) per row.

    Arguments and result are those of :func:`tv1d`; ``l1`` takes the same values as ``lam``. The penalty covers only
    kept positions.
    """
    return along(_oscar, x, dim, mask, lam=LAM.take(lam), l1=L1.take(l1))


def owl(x: Tensor, weights: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """``argmin_y 1/2 ||y - x||^2 + sum_i weights_i |y|_(i)`` along ``dim``.

    Args:
        x, mask: as in :func:`tv1d`.
        weights: ``[n]``, or broadcastable to x with ``dim`` moved last; non-negative and non-increasing along the last
            dimension. A row with k kept positions uses the first k weights.
    Returns:
        as in :func:`tv1d`; differentiable in x and weights.
    Raises:
        ValueError: the weights have the wrong length, or are negative or increasing (the values are not checked inside
            a transform or compilation).
    """
    if weights.ndim == 0 or (x.ndim and weights.shape[-1] != x.shape[dim]):
        raise ValueError(
            f"weights of shape {tuple(weights.shape)} must end in {x.shape[dim] if x.ndim else 1}, the number of positions"
        )
    if not (foreign(weights) or transformed()) and bool(
        (weights < 0).any() | (weights[..., 1:] > weights[..., :-1]).any()
    ):
        raise ValueError(
            "weights of the ordered l1 norm must not be negative and must not increase along the last dimension"
        )

    def body(z: Tensor) -> Tensor:
        bad = ~(z.detach() < torch.inf).all(-1, keepdim=True)
        return prox_owl(z.masked_fill(bad, 0.0), weights.to(z.dtype), z.detach() != -torch.inf).masked_fill(
            bad, torch.nan
        )

    return along(body, x, dim, mask)


def _tv1d(x: Tensor, lam: float | Tensor) -> Tensor:
    return _idle(fusedmax, x.to(widest(x)), lam, 0.0).to(x.dtype)


def _oscar(x: Tensor, lam: float | Tensor, l1: float | Tensor) -> Tensor:
    wide = x.to(widest(x))
    # Use the sign 1 for -inf, so that it stays -inf.
    sign = torch.sign(wide.detach()).masked_fill_(wide.detach() == -torch.inf, 1.0)
    pooled = _idle(oscarmax, wide * sign, lam, 1.0)
    return (sign * (pooled - l1).clamp(min=0.0)).to(x.dtype)


def _idle(mapping: Callable[..., Tensor], x: Tensor, lam: Any, lowered: float) -> Tensor:
    """The prox that ``mapping`` contains, for float64 rows ``x [..., n]``; 0 where x is -inf.

    gamma is chosen so large that the projection clips nothing. ``lowered`` is 1 if the prox lowers the mean, by
    ``lam (n - 1)/2``, and 0 if it does not.
    """
    watched = foreign(x) or transformed()
    low, high = x.detach().aminmax(dim=-1, keepdim=True)
    keep = x.detach() != -torch.inf if watched or bool((low == -torch.inf).any()) else None
    if keep is None:
        count, mean = torch.full_like(low, x.shape[-1]), x.mean(-1, keepdim=True)
    else:
        count = keep.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        mean = x.masked_fill(~keep, 0.0).sum(-1, keepdim=True) / count
        low = x.detach().masked_fill(~keep, torch.inf).amin(-1, keepdim=True)
    fall = lowered * lam * (count - 1)
    reach = high - low + (fall.detach() if isinstance(fall, Tensor) else fall)
    gamma: Any = torch.where(reach.isfinite() & (reach > 0), reach, 1.0) * count * 1.01
    if not watched:
        gamma = float(gamma.max())  # the same for all rows, because the kernels take a number
    p = mapping(x, lam=lam / gamma, gamma=gamma)
    y = gamma * p + (mean - fall / 2 - gamma / count)
    return y if keep is None else y.masked_fill(~keep, 0.0)


__all__ = ["oscar", "owl", "tv1d"]
