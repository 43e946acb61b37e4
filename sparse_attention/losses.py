"""Losses whose minimum is where the mapping returns the target, and the smoothed maximum they are built on.

A mapping with a regulariser Omega is the gradient of ``max_Omega(x) = max_{p in simplex} x.p - Omega(p)`` (Niculae & Blondel
2017, sec. 2). Its Fenchel-Young loss is ``max_Omega(x) + Omega(t) - x.t`` (Blondel, Martins & Niculae 2020): convex,
non-negative, 0 exactly where the mapping returns t, with the gradient ``mapping(x) - t``.

Laha et al. 2018 define hinge losses for the mappings that have no such regulariser (Eq. 7 and 8).

SparseMAP's losses are the same over structures (Niculae et al. 2018, sec. 5), transitions being scores without regulariser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .mappings.sparsegen import LAM
from .mappings.sparsehourglass import Q
from .registry import Mapping, make
from .rows.shape import last, per_row
from .rows.slope import Slope, reduced
from .structured.losses import sparsemap_matching_loss, sparsemap_sequence_loss

Regulariser = Callable[..., Tensor]


def _entropy(p: Tensor, keep: Tensor, gamma: Any = 1.0) -> Tensor:
    return gamma * torch.xlogy(p, p)


def _quadratic(p: Tensor, keep: Tensor, gamma: Any = 1.0) -> Tensor:
    return gamma * 0.5 * p.square()


def _tsallis(p: Tensor, keep: Tensor, alpha: Any = 1.5) -> Tensor:
    # (p^alpha - p) / (alpha (alpha - 1)), written so that alpha -> 1 gives p log p.
    inside = torch.where(p > 0, p, 1.0)
    log_p, a = inside.log(), torch.as_tensor(alpha - 1.0, dtype=p.dtype, device=p.device)
    y = a * log_p
    near = y.abs() < 1e-5
    quotient = torch.expm1(y) / torch.where(a == 0, 1.0, a)
    quotient = torch.where(near, log_p * (1.0 + y / 2 + y.square() / 6), quotient)
    return torch.where(p > 0, inside * quotient, 0.0) / alpha


def _p_norm(y: Tensor, keep: Tensor, p: Any = 1.5, gamma: Any = 1.0, **_: Any) -> Tensor:
    inside = torch.where(y > 0, y, 1.0)
    total = torch.where(y > 0, inside.pow(p), 0.0).sum(-1, keepdim=True)
    # One value per row, put on the first position: the sum over positions is the regulariser.
    row = gamma * 0.5 * torch.where(total > 0, total, 1.0).pow(2.0 / p) * (total > 0)
    return torch.cat((row, torch.zeros_like(y[..., 1:])), -1)


def _fused(p: Tensor, keep: Tensor, lam: Any = 0.1, gamma: Any = 1.0) -> Tensor:
    order = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
    packed, kept = p.gather(-1, order), keep.gather(-1, order)
    jump = torch.where(kept[..., 1:], packed[..., 1:] - packed[..., :-1], 0.0).abs()
    return gamma * (0.5 * packed.square() + lam * torch.nn.functional.pad(jump, (0, 1)))


def _oscar(p: Tensor, keep: Tensor, lam: Any = 0.01, gamma: Any = 1.0, **_: Any) -> Tensor:
    ordered = p.sort(dim=-1, descending=True).values
    rank = torch.arange(1, p.shape[-1] + 1, device=p.device)
    weight = (keep.sum(-1, keepdim=True) - rank).clamp(min=0)
    return gamma * (0.5 * ordered.square() + lam * weight * ordered)


def _sparsegen(p: Tensor, keep: Tensor, lam: Any = 0.0) -> Tensor:
    return (1.0 - lam) * 0.5 * p.square()


# Terms [..., n] whose sum over positions is Omega(p).
REGULARISERS: dict[str, Regulariser] = {
    "softmax": _entropy,
    "sparsemax": _quadratic,
    "entmax": _tsallis,
    "pnormmax": _p_norm,
    "fusedmax": _fused,
    "oscarmax": _oscar,
    "sparsegen_lin": _sparsegen,
    "hardmax": lambda p, keep: torch.zeros_like(p),
    "constrained_softmax": lambda p, keep, **_: _entropy(p, keep),
    "constrained_sparsemax": lambda p, keep, **_: _quadratic(p, keep),
}


def _mapping(mapping: str | Mapping) -> Mapping:
    built = make(mapping) if isinstance(mapping, str) else mapping
    name = built.spec.name if isinstance(built, Mapping) else type(built).__name__
    if name not in REGULARISERS:
        raise ValueError(
            f"{name} is not the gradient of a smoothed maximum, so it has no Fenchel-Young loss; those that "
            f"are: {', '.join(REGULARISERS)}"
        )
    if built.params.get("mode", "exact") != "exact":
        raise ValueError("oscarmax(mode='paper') does not solve the regularised problem; use mode='exact'")
    return built


def _value(
    scores: Tensor,
    target: Tensor | None,
    mapping: str | Mapping,
    dim: int,
    mask: Tensor | None,
    inputs: dict[str, Tensor],
) -> Tensor:
    built = _mapping(mapping)
    x, _ = last(scores, dim, mask)
    keep = x.detach() != -torch.inf
    # Along the last dimension from here on; hyperparameter tensors are shaped for the rows once.
    params = {name: per_row(value, scores, dim, name) for name, value in built.params.items() if name != "bounds"}
    fixed = {"bounds": built.params["bounds"]} if "bounds" in built.params else {}
    moved = {name: torch.as_tensor(u).expand(scores.shape).movedim(dim, -1) for name, u in {**fixed, **inputs}.items()}
    function = built.spec.function
    assert function is not None
    p = function(x, dim=-1, **params, **moved)
    t = torch.zeros_like(p) if target is None else target
    if target is not None:
        # p and t have the same sum, so a common offset is nothing but rounding: without it the products keep their digits.
        top = x.detach().amax(-1, keepdim=True)
        shifted = top.isfinite() & ((t.detach().sum(-1, keepdim=True) - 1).abs() < 1e-3)
        x = x - torch.where(shifted, top, 0.0)
    omega = REGULARISERS[built.spec.name]
    numbers = {name: value for name, value in params.items() if name not in ("mode", "solver", "tol")}
    value = Slope.apply(x, p, t) - omega(p.detach(), keep, **numbers).sum(-1)
    if target is not None:
        value = value + omega(target, keep, **numbers).sum(-1)
    return value


def max_omega(
    scores: Tensor, mapping: str | Mapping, dim: int = -1, mask: Tensor | None = None, **inputs: Tensor
) -> Tensor:
    """``max_{p in simplex} x.p - Omega(p)``: the smoothed maximum whose gradient is the mapping.

    Args:
        scores: any shape, floating point.
        mapping: a name (default parameters) or a module from ``make``; it must have a regulariser: softmax (log-sum-exp),
            sparsemax, entmax, pnormmax, fusedmax, oscarmax, sparsegen_lin, hardmax (the maximum), constrained ones.
        mask: bool, broadcastable to scores, True = keep.
        inputs: ``bounds`` of the constrained mappings.
    Returns:
        scores' shape without ``dim``, in float32 at least; 0 for a fully masked row. Twice differentiable in the scores,
        once in hyperparameters given as tensors.
    Raises:
        ValueError: a mapping without regulariser.
    """
    return _value(scores, None, mapping, dim, mask, inputs)


def fenchel_young(
    scores: Tensor,
    target: Tensor,
    mapping: str | Mapping,
    dim: int = -1,
    mask: Tensor | None = None,
    reduction: str = "mean",
    **inputs: Tensor,
) -> Tensor:
    """``max_Omega(x) + Omega(t) - x.t``: non-negative, convex in x, gradient ``mapping(x) - t``.

    Args:
        scores: any shape; -inf counts as masked.
        target: class indices (int64, scores' shape without ``dim``) or distributions (scores' shape).
        mapping: as in :func:`max_omega`.
        reduction: "mean" over rows, "sum" or "none".
    Returns:
        a scalar, or one value per row; infinite where the target lies on a masked position.
    Raises:
        ValueError: mapping without regulariser, unknown reduction, target of another shape.
    """
    t = _distribution(scores, target, dim)
    value = _value(scores, t, mapping, dim, mask, inputs)
    return reduced(value, reduction)


def sparsemax_loss(
    scores: Tensor, target: Tensor, dim: int = -1, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The sparsemax ("huber") loss ``-t.z + 1/2 sum_{j in S}(z_j^2 - tau^2) + 1/2 ||t||^2`` (Martins & Astudillo 2016).

    Gradient ``sparsemax(z) - t``. Arguments and result as :func:`fenchel_young`.
    """
    return fenchel_young(scores, target, "sparsemax", dim, mask, reduction)


def softmax_loss(
    scores: Tensor, target: Tensor, dim: int = -1, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Log loss ``-sum_i t_i log softmax(z)_i`` against a class or a distribution over labels.

    It is the Fenchel-Young loss of softmax plus the entropy of the target. Arguments as :func:`fenchel_young`.
    """
    t = _distribution(scores, target, dim)
    x, _ = last(scores, dim, mask)
    dead = x.detach().amax(-1, keepdim=True) == -torch.inf
    log_p = torch.log_softmax(x.masked_fill(dead, 0.0), -1)
    return reduced(-torch.where(t == 0, 0.0, t * log_p.masked_fill(dead, 0.0)).sum(-1), reduction)


def sparsegen_hinge(
    scores: Tensor,
    target: Tensor,
    lam: float | Tensor = 0.0,
    dim: int = -1,
    mask: Tensor | None = None,
    half_pairs: bool = False,
    corrected: bool = False,
    reduction: str = "mean",
) -> Tensor:
    r"""The multilabel hinge loss of sparsegen-lin (Laha et al. 2018, Eq. 8); lam = 0 is "sparsemax + hinge".

    .. math:: \frac{1}{1-\lambda}\sum_{i,j \in Y}|z_i - z_j|
              + \sum_{i \in Y, j \notin Y}\Big[\eta_i - \frac{z_i - z_j}{1-\lambda}\Big]_+

    Convex in z, and 0 exactly where sparsegen-lin returns :math:`\eta`, for :math:`\eta` uniform on Y.
    By sorting: O(K log K) time and O(K) memory per row.

    Args:
        scores: any shape.
        target: scores' shape, non-negative: 0/1 labels or a distribution; divided by its sum to give eta. Y: where > 0.
            Masked classes are left out of Y and of the sum.
        lam: < 1.
        half_pairs: count each pair {i, j} of Y once, as the authors' code does; the printed sum counts it twice.
        corrected: replace ``|z_i - z_j|`` by ``|z_i - z_j - (1-lam)(eta_i - eta_j)|``, which is 0 at the right point
            when eta is not uniform (the printed term is not).
        reduction: "mean" over rows, "sum" or "none".
    Raises:
        ValueError: a number lam out of range (a tensor is not checked), target of another shape or negative, unknown
            reduction.
    """
    x, eta, keep = _labels(scores, target, dim, mask)
    width = 1.0 - per_row(lam, scores, dim, "lam") if isinstance(lam, Tensor) else 1.0 - LAM.check(lam)
    # L(z; lam) = L(z / (1 - lam); 0).
    return reduced(_hinge(x / width, eta, keep, torch.ones_like(x[..., :1]), half_pairs, corrected), reduction)


def sparsehourglass_hinge(
    scores: Tensor,
    target: Tensor,
    q: float | Tensor = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    half_pairs: bool = False,
    corrected: bool = False,
    reduction: str = "mean",
) -> Tensor:
    r"""The multilabel hinge loss of sparsehourglass (Laha et al. 2018, Eq. 7).

    .. math:: \sum_{i,j \in Y}|z_i - z_j| + \sum_{i \in Y, j \notin Y}\Big[\frac{\eta_i}{\hat\alpha(z)} - (z_i - z_j)\Big]_+,
              \qquad \frac{1}{\hat\alpha(z)} = \frac{|\sum z| + Kq}{1 + Kq}

    Arguments as :func:`sparsegen_hinge`, with ``q >= 0`` for ``lam`` (the corrected form is not convex here).
    """
    x, eta, keep = _labels(scores, target, dim, mask)
    q = per_row(q, scores, dim, "q") if isinstance(q, Tensor) else Q.check(q)
    count = keep.sum(-1, keepdim=True).to(x.dtype)
    inverse = (x.masked_fill(~keep, 0.0).sum(-1, keepdim=True).abs() + count * q) / (1.0 + count * q)
    return reduced(_hinge(x, eta, keep, inverse, half_pairs, corrected), reduction)


def _hinge(z: Tensor, eta: Tensor, keep: Tensor, width: Tensor, half_pairs: bool, corrected: bool) -> Tensor:
    """``sum_{i,j in Y} |z_i - z_j| + sum_{i in Y, j not in Y} [width eta_i - z_i + z_j]_+``, ``z, eta [..., K]``,
    ``width [..., 1]``; returns ``[...]``."""
    on, off = keep & (eta > 0), keep & (eta == 0)
    dtype = z.dtype
    wide = torch.float64 if z.device.type != "mps" else dtype
    z, eta, width = z.to(wide), eta.to(wide), width.to(wide)
    # Only differences count: shifted, the running sums below stay small.
    z = z.masked_fill(~keep, 0.0)
    z = torch.where(keep, z - torch.where(keep, z.detach(), -torch.inf).amax(-1, keepdim=True).clamp(min=-1e300), 0.0)
    bound = torch.where(on, z - width * eta, 0.0)
    pairs = _pair_distances(bound if corrected else z, on) * (1.0 if half_pairs else 2.0)
    # sum_{j not in Y} [z_j - bound_i]_+ from the sorted scores outside Y: those above the bound are a prefix.
    outside = z.masked_fill(~off, -torch.inf).sort(dim=-1, descending=True).values
    above = torch.searchsorted(-outside.detach().contiguous(), -bound.detach().contiguous())
    sums = torch.nn.functional.pad(outside.masked_fill(outside == -torch.inf, 0.0).cumsum(-1), (1, 0))
    hinge = torch.where(on, sums.gather(-1, above) - above * bound, 0.0).sum(-1)
    return (pairs + hinge).to(dtype)


def _pair_distances(z: Tensor, on: Tensor) -> Tensor:
    """``sum_{i<j} |z_i - z_j|`` over the positions ``on``: each counts as often as there are smaller ones, less the larger.

    Equal ones are neither: of the subgradients at a tie the symmetric one, which does not depend on the order of classes.
    """
    at = z.detach().contiguous()
    ordered = at.masked_fill(~on, torch.inf).sort(dim=-1).values
    smaller = torch.searchsorted(ordered, at)
    larger = on.sum(-1, keepdim=True) - torch.searchsorted(ordered, at, right=True)
    return torch.where(on, (smaller - larger) * z, 0.0).sum(-1)


def _labels(scores: Tensor, target: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and normalised labels with the class dimension last, and which classes are kept."""
    if target.shape != scores.shape:
        raise ValueError(
            f"target of shape {tuple(target.shape)} must have the shape of the scores {tuple(scores.shape)}"
        )
    if not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()) and not bool(
        (target >= 0).all()
    ):
        raise ValueError("target holds negative numbers or NaN; labels are 0 or 1, or a distribution")
    x, _ = last(scores, dim, mask)
    keep = x.detach() != -torch.inf
    y = target.to(x.dtype).movedim(dim, -1).masked_fill(~keep, 0.0) if x.ndim == target.ndim else target.reshape(1)
    total = y.sum(-1, keepdim=True)
    return x, y / torch.where(total == 0, 1.0, total), keep


def _distribution(scores: Tensor, target: Tensor, dim: int) -> Tensor:
    """Target with the class dimension last, float32 or float64."""
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    if not target.dtype.is_floating_point:
        lead = list(scores.shape)
        n = lead.pop(dim)
        if list(target.shape) != lead:
            raise ValueError(
                f"class indices of shape {tuple(target.shape)} do not fit scores {tuple(scores.shape)} "
                f"along dim={dim}: expected {tuple(lead)}"
            )
        return torch.nn.functional.one_hot(target.long(), n).to(dtype)
    if target.shape != scores.shape:
        raise ValueError(
            f"target of shape {tuple(target.shape)} must have the shape of the scores {tuple(scores.shape)}, "
            "or hold class indices (int64)"
        )
    return target.to(dtype).movedim(dim, -1)


__all__ = [
    "REGULARISERS",
    "fenchel_young",
    "max_omega",
    "softmax_loss",
    "sparsegen_hinge",
    "sparsehourglass_hinge",
    "sparsemap_matching_loss",
    "sparsemap_sequence_loss",
    "sparsemax_loss",
]
