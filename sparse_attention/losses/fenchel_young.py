"""Fenchel-Young losses and the smoothed maximum, computed from the conjugate of a mapping's regulariser.

Each loss is also a module, constructed with its options and called with scores and target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import mappings  # noqa: F401  (registers them)
from ..describe import LEARNED, Param, Spec
from ..registry import Mapping, built, shown, spec
from ..rows.forward_mode import forward_levels, integral, split
from ..rows.shape import compiling, last, per_row
from .regularisers import (
    AT_VERTEX,
    REDUCTION,
    REGULARISERS,
    SEPARABLE,
    AtClass,
    Slope,
    each_class,
    mean_of,
    reduced,
    targets,
    weighted,
)

SMOOTHING = Param("label_smoothing", low=0.0, high=1.0, closed_low=True, closed_high=True, tensor=False)
ENTMAX = spec("entmax").defaults
_OWN = {f"sparsemap_{kind}": f"sparsemap_{kind}_loss" for kind in ("sequence", "matching", "tree")}


def max_omega(
    scores: Tensor, mapping: str | Mapping, dim: int = -1, mask: Tensor | None = None, **params: Any
) -> Tensor:
    """The smoothed maximum ``max_{p in simplex} x.p - Omega(p)``, whose gradient is the mapping.

    Args:
        scores: any shape, floating point.
        mapping: a name or a module from ``make``. It must have a regulariser: one of `losses.REGULARISERS` (softmax
            gives logsumexp, hardmax gives the maximum).
        mask: bool, broadcastable to scores, True = keep.
        params: the mapping's parameters, if ``mapping`` is a name; and ``bounds`` for the constrained mappings.
    Returns:
        the shape of scores without ``dim``, in float32 or float64; 0 for a fully masked row. Twice differentiable in the
        scores, and once in hyperparameters given as tensors.
    Raises:
        ValueError: the mapping has no regulariser.
    """
    built, inputs = _given(mapping, params)
    return _value(scores, None, built, dim, mask, inputs)


def fenchel_young(
    scores: Tensor,
    target: Tensor,
    mapping: str | Mapping,
    dim: int = -1,
    mask: Tensor | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    **params: Any,
) -> Tensor:
    """The loss ``max_Omega(x) + Omega(t) - x.t``: non-negative and convex in x, with gradient ``mapping(x) - t``.

    Args:
        scores: any shape; -inf counts as masked.
        target: class indices (int64, shape of scores without ``dim``) or distributions (shape of scores).
        mapping, params: as in :func:`max_omega`, for example ``fenchel_young(x, y, "entmax", alpha=1.3)``.
        reduction: "mean" over rows, "sum" or "none".
        weight: ``[classes]``; a row is weighted by ``sum_c weight_c t_c`` (for class indices, t before smoothing), and
            "mean" divides by the sum of these weights.
        ignore_index: the loss of rows with this class index is 0, and "mean" leaves them out.
        label_smoothing: from 0 to 1; the share of the target that is spread evenly over the unmasked classes.
    Returns:
        a scalar, or one value per row. If the target of a row (before smoothing) has weight on a masked position, the
        loss of the row is infinite and has no gradient.
    Raises:
        ValueError: the mapping has no regulariser, the reduction is unknown, the target or weight has the wrong shape,
            or label_smoothing is out of range.
    """
    built, inputs = _given(mapping, params)
    smoothing = SMOOTHING.check(label_smoothing)
    t, counted = targets(scores, target, dim, ignore_index)
    value = _value(scores, t, built, dim, mask, inputs, smoothing)
    return weighted(value, t, counted, weight, reduction, scores.shape[dim])


def _given(mapping: str | Mapping, params: dict[str, Any]) -> tuple[Mapping, dict[str, Tensor]]:
    """`_built` for one call, after which nothing would hold a learned parameter."""
    if words := [key for key, value in params.items() if isinstance(value, str) and value == LEARNED]:
        known = f"sa.make({mapping!r}, {words[0]}='learned')"
        raise ValueError(f"{words[0]}='learned' needs a module that holds the parameter: pass mapping={known}")
    return _built(mapping, params)


def _built(mapping: str | Mapping, params: dict[str, Any]) -> tuple[Mapping, dict[str, Tensor]]:
    """The mapping as a module, and the inputs it needs in addition to scores."""
    known = spec(mapping) if isinstance(mapping, str) else getattr(mapping, "spec", None)
    name = known.name if isinstance(known, Spec) else shown(mapping)
    if name not in REGULARISERS:
        own = f"; its own loss is sa.losses.{_OWN[name]}" if name in _OWN else ""
        raise ValueError(
            f"{name} is not the gradient of a smoothed maximum of scores alone, so it has no Fenchel-Young loss{own}; "
            f"mappings that have one: {', '.join(REGULARISERS)}"
        )
    each = (*known.inputs, *(param.name for param in known.params if param.each))  # type: ignore[union-attr]
    inputs = {key: params.pop(key) for key in each if params.get(key) is not None}
    made: Mapping = built(mapping, params)
    if made.params.get("mode", "exact") != "exact":
        raise ValueError("oscarmax(mode='paper') solves no regularised problem, so it has no loss; use mode='exact'")
    return made, inputs


def _value(
    scores: Tensor,
    target: Tensor | None,
    built: Mapping,
    dim: int,
    mask: Tensor | None,
    inputs: dict[str, Tensor],
    smoothing: float = 0.0,
) -> Tensor:
    """One value per row; ``target`` holds class indices, or distributions with the classes last."""
    if built.dim not in (-1, dim):
        raise ValueError(
            f"{built} works along dim={built.dim}, but the loss along dim={dim}; give the loss dim={built.dim}"
        )
    x, _ = last(scores, dim, mask)
    # From here on, dim is the last dimension, and hyperparameter tensors have the shape of the rows.
    values, each = {**built.params, **inputs}, {param.name for param in built.spec.params if param.each}
    params = {key: per_row(value, scores, dim, key) for key, value in values.items() if key not in each}
    moved = {key: torch.as_tensor(values[key]).expand(scores.shape).movedim(dim, -1) for key in values.keys() & each}
    function, name = built.spec.function, built.spec.name
    assert function is not None

    def mapping(z: Tensor) -> Tensor:
        return function(z, dim=-1, **params, **moved)

    constant = not moved and not any(isinstance(value, Tensor) for value in params.values()) and not compiling()
    again = mapping if constant else None
    keep = x.detach() != -torch.inf

    def value_at(x: Tensor) -> Tensor:
        p = mapping(x.detach() if constant else x)
        if target is not None and not target.is_floating_point():
            direct = name in (SEPARABLE if smoothing else AT_VERTEX)
            if constant and direct and abs(params.get("alpha", 2.0) - 1.0) > 0.1:
                value = AtClass.apply(x, p, target, again, smoothing) + AT_VERTEX[name](p, x.detach(), **params)
                if smoothing:
                    value = value + _smoothed(name, x.detach(), smoothing, params)
                # Set values that rounding made negative to 0, but keep their gradient.
                return torch.where(value.detach() < 0, value - value.detach(), value)

        def omega(q: Tensor) -> Tensor:
            return REGULARISERS[name](q, keep, **params).sum(-1)

        t = _distribution(target, keep, smoothing, x.dtype)
        if t is None:
            return Slope.apply(x, p, torch.zeros_like(p), again) - omega(p.detach())
        # p and t have the same sum, so a common offset of x adds only rounding error. Removing it keeps full precision.
        top = x.detach().amax(-1, keepdim=True)
        shifted = top.isfinite() & ((t.detach().sum(-1, keepdim=True) - 1).abs() < 1e-3)
        return Slope.apply(x - torch.where(shifted, top, 0.0), p, t, again) - omega(p.detach()) + omega(t)

    if torch.autograd.forward_ad._current_level < 0:
        return value_at(x)
    # The loss at the scores without tangents, plus the integral of its gradient p - t along the tangents.
    (x0,), (change,) = split(x)
    value, t = value_at(x0), _distribution(target, keep, smoothing, x.dtype)
    finite = torch.where(value.detach().isfinite().unsqueeze(-1), change, 0.0)

    def along(s: float) -> Tensor:
        p = mapping(x0 + s * change)
        return ((p if t is None else p - t) * finite).sum(-1)

    return value + integral(along, max(forward_levels(), 1))


def _distribution(target: Tensor | None, keep: Tensor, smoothing: float, dtype: torch.dtype) -> Tensor | None:
    """The target as a distribution for each row of ``keep [..., n]``, after smoothing over what is kept."""
    if target is not None and not target.is_floating_point():
        target = torch.nn.functional.one_hot(target, keep.shape[-1]).to(dtype)
    if target is None or not smoothing:
        return target
    kept = keep.to(target.dtype)  # multiplying a bool by a float would give float32
    return (1.0 - smoothing) * target + smoothing * kept / kept.sum(-1, keepdim=True).clamp(min=1.0)


def _smoothed(name: str, x: Tensor, smoothing: float, params: dict[str, Any]) -> Tensor:
    """Omega of a smoothed class minus Omega of the class itself, ``[...]`` for rows ``x [..., n]``."""
    kept = (x != -torch.inf).sum(-1).clamp(min=1).to(x.dtype)
    share = smoothing / kept
    here, elsewhere, one = REGULARISERS[name](
        torch.stack((1.0 - smoothing + share, share, torch.ones_like(share))), kept, **params
    )
    return here - one + (kept - 1.0) * elsewhere


def softmax_loss(
    scores: Tensor,
    target: Tensor,
    dim: int = -1,
    mask: Tensor | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Log loss ``-sum_i w_i t_i log softmax(z)_i`` for class indices or distributions, as torch's cross_entropy.

    Without weights, this is the Fenchel-Young loss of softmax plus the entropy of the target. Arguments are those of
    :func:`fenchel_young`, except that ``weight`` multiplies each term of the sum, including those of smoothed classes.
    As in torch, "mean" divides by the summed weights of the class indices or, for distributions, by the number of rows.
    """
    smoothing = SMOOTHING.check(label_smoothing)
    given, counted = targets(scores, target, dim, ignore_index)
    x, _ = last(scores, dim, mask)
    each = None if weight is None else each_class(weight, x.shape[-1], x.dtype)
    dead = x.detach().amax(-1, keepdim=True) == -torch.inf
    log_p = torch.log_softmax(x.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
    if counted is not None and not smoothing:
        value = -log_p.gather(-1, given.unsqueeze(-1)).squeeze(-1)
        value = value if each is None else value * each[given]
    else:
        soft = _distribution(given, x.detach() != -torch.inf, smoothing, x.dtype)
        assert soft is not None
        soft = soft if each is None else soft * each
        value = -torch.where(soft == 0, 0.0, soft * log_p).sum(-1)
    # An infinite loss has no gradient, as in `Slope`.
    value = torch.where(value.detach() == torch.inf, value.detach(), value)
    if counted is None:
        return reduced(value, reduction)
    return mean_of(value, torch.ones_like(value) if each is None else each[given], counted, reduction)


def sparsemax_loss(
    scores: Tensor, target: Tensor, dim: int = -1, mask: Tensor | None = None, reduction: str = "mean", **options: Any
) -> Tensor:
    """The sparsemax ("huber") loss ``-t.z + 1/2 sum_{j in S}(z_j^2 - tau^2) + 1/2 ||t||^2`` (Martins & Astudillo 2016).

    The gradient is ``sparsemax(z) - t``. Arguments and result are those of :func:`fenchel_young`; options are its
    weight, ignore_index and label_smoothing.
    """
    return fenchel_young(scores, target, "sparsemax", dim, mask, reduction, **options)


def entmax_loss(scores: Tensor, target: Tensor, alpha: float | Tensor = ENTMAX["alpha"], **options: Any) -> Tensor:
    """The Fenchel-Young loss of entmax (Peters, Niculae & Martins 2019, Eq. 8).

    Other arguments are those of :func:`sparsemax_loss`, by name.
    """
    return fenchel_young(scores, target, "entmax", alpha=alpha, **options)


class FenchelYoungLoss(nn.Module):
    """Module version of :func:`fenchel_young`: ``FenchelYoungLoss("entmax", alpha=1.5)(scores, target, mask=None)``.

    Args:
        mapping, params: either a module, or a mapping's name with its parameters. A tensor is moved together with the
            loss, and the value "learned" creates a trainable parameter.
        dim, reduction, weight, ignore_index, label_smoothing: as in the function.
    """

    def __init__(
        self,
        mapping: str | Mapping,
        dim: int = -1,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **params: Any,
    ) -> None:
        super().__init__()
        self.dim, self.reduction, self.ignore_index = dim, REDUCTION.check(reduction), ignore_index
        self.label_smoothing = SMOOTHING.check(label_smoothing)
        self.register_buffer("weight", weight)
        self.mapping = _built(mapping, params)[0]

    @property
    def options(self) -> dict[str, Any]:
        kept = ("dim", "reduction", "weight", "ignore_index", "label_smoothing")
        return {name: getattr(self, name) for name in kept}

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None, **inputs: Any) -> Tensor:
        return fenchel_young(scores, target, self.mapping, mask=mask, **self.options, **inputs)


class SparsemaxLoss(FenchelYoungLoss):
    """Module version of :func:`sparsemax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("sparsemax", **options)


class EntmaxLoss(FenchelYoungLoss):
    """Module version of :func:`entmax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(self, alpha: float | Tensor | str = ENTMAX["alpha"], **options: Any) -> None:
        super().__init__("entmax", alpha=alpha, **options)


class SoftmaxLoss(FenchelYoungLoss):
    """Module version of :func:`softmax_loss`; takes the same options as :class:`FenchelYoungLoss`."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__("softmax", *given, **options)

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return softmax_loss(scores, target, mask=mask, **self.options)
