"""The multilabel hinge losses of Laha et al. 2018 (Eq. 7 and 8), computed by sorting."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.reference.rows import widest
from ..mappings.sparsegen import LAM
from ..mappings.sparsehourglass import Q
from ..registry import spec
from ..rows.shape import compiling, last, per_row, transformed
from .regularisers import reduced

SPARSEGEN, HOURGLASS = spec("sparsegen_lin").defaults, spec("sparsehourglass").defaults


def sparsegen_hinge(
    scores: Tensor,
    target: Tensor,
    lam: float | Tensor = SPARSEGEN["lam"],
    dim: int = -1,
    mask: Tensor | None = None,
    half_pairs: bool = False,
    corrected: bool = False,
    reduction: str = "mean",
) -> Tensor:
    r"""The multilabel hinge loss of sparsegen-lin (Laha et al. 2018, Eq. 8); lam = 0 is "sparsemax + hinge".

    .. math:: \frac{1}{1-\lambda}\sum_{i,j \in Y}|z_i - z_j|
              + \sum_{i \in Y, j \notin Y}\Big[\eta_i - \frac{z_i - z_j}{1-\lambda}\Big]_+

    Convex in z. If :math:`\eta` is uniform on Y, the loss is 0 exactly where sparsegen-lin returns :math:`\eta`.
    Sorting makes this O(K log K) time and O(K) memory per row.

    Args:
        scores: any shape.
        target: non-negative, shape of scores: 0/1 labels or a distribution. eta is the target divided by its sum, and Y
            is the set of classes where the target is > 0. Masked classes are left out of both Y and the sum.
        lam: < 1.
        half_pairs: include each pair {i, j} of Y once, as the authors' code does; the printed sum includes it twice.
        corrected: replace ``|z_i - z_j|`` by ``|z_i - z_j - (1-lam)(eta_i - eta_j)|``. When eta is not uniform, this
            term is 0 at the correct point, but the printed term is not.
        reduction: "mean" over rows, "sum" or "none".
    Raises:
        ValueError: lam is a number out of range (out-of-range values in a tensor give NaN), the target is negative or
            has the wrong shape, or the reduction is unknown.
    """
    x, eta, keep = _labels(scores, target, dim, mask)
    width = 1.0 - per_row(LAM.take(lam), scores, dim, "lam")
    # Uses L(z; lam) = L(z / (1 - lam); 0).
    return reduced(_hinge(x / width, eta, keep, torch.ones_like(x[..., :1]), half_pairs, corrected), reduction)


def sparsehourglass_hinge(
    scores: Tensor,
    target: Tensor,
    q: float | Tensor = HOURGLASS["q"],
    dim: int = -1,
    mask: Tensor | None = None,
    half_pairs: bool = False,
    corrected: bool = False,
    reduction: str = "mean",
) -> Tensor:
    r"""The multilabel hinge loss of sparsehourglass (Laha et al. 2018, Eq. 7).

    .. math:: \sum_{i,j \in Y}|z_i - z_j| + \sum_{i \in Y, j \notin Y}\Big[\frac{\eta_i}{\hat\alpha(z)} - (z_i - z_j)\Big]_+,
              \qquad \frac{1}{\hat\alpha(z)} = \frac{|\sum z| + Kq}{1 + Kq}

    Arguments are those of :func:`sparsegen_hinge`, with ``q >= 0`` instead of ``lam``. Here, the corrected form is not
    convex.
    """
    x, eta, keep = _labels(scores, target, dim, mask)
    q = per_row(Q.take(q), scores, dim, "q")
    count = keep.sum(-1, keepdim=True).to(x.dtype)
    inverse = (x.masked_fill(~keep, 0.0).sum(-1, keepdim=True).abs() + count * q) / (1.0 + count * q)
    return reduced(_hinge(x, eta, keep, inverse, half_pairs, corrected), reduction)


def _hinge(z: Tensor, eta: Tensor, keep: Tensor, width: Tensor, half_pairs: bool, corrected: bool) -> Tensor:
    """``sum_{i,j in Y} |z_i - z_j| + sum_{i in Y, j not in Y} [width eta_i - z_i + z_j]_+``, of shape ``[...]``, for
    ``z, eta [..., K]`` and ``width [..., 1]``."""
    on, off = keep & (eta > 0), keep & (eta == 0)
    dtype = z.dtype
    wide = widest(z)
    z, eta, width = z.to(wide), eta.to(wide), width.to(wide)
    # Only differences matter; shifting the maximum to 0 keeps the cumulative sums below small.
    z = z.masked_fill(~keep, 0.0)
    z = torch.where(keep, z - torch.where(keep, z.detach(), -torch.inf).amax(-1, keepdim=True).clamp(min=-1e300), 0.0)
    bound = torch.where(on, z - width * eta, 0.0)
    pairs = _pair_distances(bound if corrected else z, on) * (1.0 if half_pairs else 2.0)
    # sum_{j not in Y} [z_j - bound_i]_+ comes from the sorted scores outside Y: those above the bound form a prefix.
    outside = z.masked_fill(~off, -torch.inf).sort(dim=-1, descending=True).values
    above = torch.searchsorted(-outside.detach().contiguous(), -bound.detach().contiguous())
    sums = torch.nn.functional.pad(outside.masked_fill(outside == -torch.inf, 0.0).cumsum(-1), (1, 0))
    hinge = torch.where(on, sums.gather(-1, above) - above * bound, 0.0).sum(-1)
    return (pairs + hinge).to(dtype)


def _pair_distances(z: Tensor, on: Tensor) -> Tensor:
    """``sum_{i<j} |z_i - z_j|`` over the positions ``on``.

    Each z_i is multiplied by the number of smaller values minus the number of larger ones. Equal values count as
    neither, so at a tie the gradient is the symmetric subgradient, which does not depend on the order of the classes.
    """
    at = z.detach().contiguous()
    ordered = at.masked_fill(~on, torch.inf).sort(dim=-1).values
    smaller = torch.searchsorted(ordered, at)
    larger = on.sum(-1, keepdim=True) - torch.searchsorted(ordered, at, right=True)
    return torch.where(on, (smaller - larger) * z, 0.0).sum(-1)


def _labels(scores: Tensor, target: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, normalised labels and the mask of kept classes, all with the class dimension last."""
    if target.shape != scores.shape:
        raise ValueError(
            f"target of shape {tuple(target.shape)} must have the shape of the scores {tuple(scores.shape)}"
        )
    if not (compiling() or transformed()) and not bool((target >= 0).all()):
        raise ValueError("target contains negative numbers or NaN; give labels 0 and 1, or a distribution")
    x, _ = last(scores, dim, mask)
    keep = x.detach() != -torch.inf
    y = target.to(x.dtype).movedim(dim, -1).masked_fill(~keep, 0.0) if x.ndim == target.ndim else target.reshape(1)
    total = y.sum(-1, keepdim=True)
    return x, y / torch.where(total == 0, 1.0, total), keep
