"""The regularisers Omega of the mappings that are gradients of a smoothed maximum, with the values at a vertex; a scalar
product with a known gradient; targets, weights and the reduction over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..describe import Param
from ..rows.shape import asynchronous, foreign, transformed

Regulariser = Callable[..., Tensor]
REDUCTION = Param("reduction", choices=("mean", "sum", "none"), tensor=False)
Again = Callable[[Tensor], Tensor] | None  # the mapping, for differentiating through it


def _entropy(p: Tensor, keep: Tensor, gamma: Any) -> Tensor:
    return gamma * torch.xlogy(p, p)


def _quadratic(p: Tensor, keep: Tensor, gamma: Any) -> Tensor:
    return gamma * 0.5 * p.square()


def _tsallis(p: Tensor, keep: Tensor, alpha: Any) -> Tensor:
    # (p^alpha - p) / (alpha (alpha - 1)), in a form that tends to p log p as alpha -> 1.
    inside = torch.where(p > 0, p, 1.0)
    log_p, a = inside.log(), torch.as_tensor(alpha - 1.0, dtype=p.dtype, device=p.device)
    y = a * log_p
    near = y.abs() < 1e-5
    quotient = torch.expm1(y) / torch.where(a == 0, 1.0, a)
    quotient = torch.where(near, log_p * (1.0 + y / 2 + y.square() / 6), quotient)
    return torch.where(p > 0, inside * quotient, 0.0) / alpha


def _p_norm(y: Tensor, keep: Tensor, p: Any, gamma: Any, **_: Any) -> Tensor:
    inside = torch.where(y > 0, y, 1.0)
    total = torch.where(y > 0, inside.pow(p), 0.0).sum(-1, keepdim=True)
    # The whole value goes to the first position of each row, so that the sum over positions is the regulariser.
    row = gamma * 0.5 * torch.where(total > 0, total, 1.0).pow(2.0 / p) * (total > 0)
    return torch.cat((row, torch.zeros_like(y[..., 1:])), -1)


def _fused(p: Tensor, keep: Tensor, lam: Any, gamma: Any) -> Tensor:
    if foreign(keep) or transformed() or asynchronous(keep) or not bool(keep.all()):
        order = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
        p, keep = p.gather(-1, order), keep.gather(-1, order)  # the kept positions together
    jump = torch.where(keep[..., 1:], p[..., 1:] - p[..., :-1], 0.0).abs()
    return gamma * (0.5 * p.square() + lam * torch.nn.functional.pad(jump, (0, 1)))


def _oscar(p: Tensor, keep: Tensor, lam: Any, gamma: Any, **_: Any) -> Tensor:
    ordered = p.sort(dim=-1, descending=True).values
    rank = torch.arange(1, p.shape[-1] + 1, device=p.device)
    weight = (keep.sum(-1, keepdim=True) - rank).clamp(min=0)
    return gamma * (0.5 * ordered.square() + lam * (weight * ordered))  # lam times integers would give float32


# Each function returns terms [..., n] whose sum over positions is Omega(p).
REGULARISERS: dict[str, Regulariser] = {
    "softmax": _entropy,
    "sparsemax": _quadratic,
    "entmax": _tsallis,
    "pnormmax": _p_norm,
    "fusedmax": _fused,
    "oscarmax": _oscar,
    "sparsegen_lin": lambda p, keep, lam: _quadratic(p, keep, 1.0 - lam),
    "hardmax": lambda p, keep: torch.zeros_like(p),
    "constrained_softmax": lambda p, keep, **_: _entropy(p, keep, 1.0),
    "constrained_sparsemax": lambda p, keep, **_: _quadratic(p, keep, 1.0),
}


def _linear(p: Tensor, x: Tensor, gamma: float) -> Tensor:
    """For sparsemax, using ``x - top = gamma (p - p_top)`` on the support."""
    return gamma * (0.5 * torch.linalg.vector_norm(p, dim=-1).square() - p.amax(-1) + 0.5)


def _power(p: Tensor, x: Tensor, alpha: float) -> Tensor:
    """For entmax, using ``(alpha - 1)(x - top) = p^(alpha-1) - p_top^(alpha-1)`` on the support, where x is at most
    ``1/(alpha - 1)`` below top. No entry has to be raised to the power alpha."""
    top = x.amax(-1, keepdim=True)
    fall = (x - torch.where(top == -torch.inf, 0.0, top)).clamp(min=-1.0 / (alpha - 1.0)).mul_(p).sum(-1)
    return fall * (1.0 - 1.0 / alpha) + (p.sum(-1) - p.amax(-1).pow(alpha - 1.0)) / (alpha * (alpha - 1.0))


def _norm(y: Tensor, x: Tensor, p: float, gamma: float, **_: Any) -> Tensor:
    """For pnormmax, using ``x - top = gamma N^(2-p) (y^(p-1) - y_top^(p-1))`` on the support, with ``N = ||y||_p``."""
    size = torch.linalg.vector_norm(y, p, dim=-1)
    return gamma * (0.5 * size.square() - size.pow(2.0 - p) * y.amax(-1).pow(p - 1.0) + 0.5)


# ``sum_i p_i (x_i - top) - Omega(p) + Omega(vertex)`` for attention p and scores x, in as few passes as possible, where
# top is the highest score. The loss of class y is this value plus ``top - x_y``. Rows [..., n] give values [...], and
# hyperparameters are numbers.
AT_VERTEX: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda p, x, gamma: -gamma * p.amax(-1).log(),
    "sparsemax": _linear,
    "pnormmax": _norm,
    "sparsegen_lin": lambda p, x, lam: _linear(p, x, 1.0 - lam),
    "entmax": _power,
}

# Here Omega is a sum of the same function of every p_i, so two values of that function give Omega of a smoothed class.
SEPARABLE = ("softmax", "sparsemax", "entmax", "sparsegen_lin")


class Slope(Function):
    """``sum x (p - t)`` with the derivative ``d/dx = p - t``.

    By Danskin's theorem, the first derivative treats p as a constant, since p is optimal. The second derivative takes
    into account how p depends on x: through p itself or, if ``again`` is given, through ``again(x)``; then the first
    derivative need not pass through the mapping. A row with infinite loss (t is on a masked class) gets no gradient,
    since p - t would push all kept scores in the same direction.
    """

    @staticmethod
    def forward(x: Tensor, p: Tensor, t: Tensor, again: Again) -> Tensor:
        weight = p - t
        # Treat 0 * -inf as 0, for positions that neither the attention nor the target uses.
        return (x * weight).masked_fill_(weight == 0, 0.0).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.again = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, p, t, value = ctx.saved_tensors
        g = g.masked_fill(value == torch.inf, 0.0).unsqueeze(-1)
        p = ctx.again(x) if ctx.again is not None and torch.is_grad_enabled() else p
        return g * (p - t), None, -g * x if ctx.needs_input_grad[2] else None, None

    generate_vmap_rule = True


class AtClass(Function):
    """The largest score minus ``x.t``, ``[...]``, with the derivative of ``x.p - x.t``.

    It replaces `Slope` where the rest of the loss is a formula of p. The target t is class y; a share ``smoothing`` of
    its weight is spread evenly over all kept classes. Rows are ``x, p [..., n]``, and ``y [...]`` is int64.
    """

    @staticmethod
    def forward(x: Tensor, p: Tensor, y: Tensor, again: Again, smoothing: float) -> Tensor:
        top = x.amax(-1, keepdim=True)
        top = torch.where(top == -torch.inf, 0.0, top)
        value = (top - x.gather(-1, y.unsqueeze(-1))).squeeze(-1)
        if not smoothing:
            return value
        out = x == -torch.inf
        even = (top - x).masked_fill_(out, 0.0).sum(-1) / (x.shape[-1] - out.sum(-1)).clamp(min=1)
        return smoothing * even + (0.0 if smoothing == 1.0 else (1.0 - smoothing) * value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.again, ctx.smoothing = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, p, y, value = ctx.saved_tensors
        g = g.masked_fill(value == torch.inf, 0.0).unsqueeze(-1)
        p = ctx.again(x) if ctx.again is not None and torch.is_grad_enabled() else p
        if ctx.smoothing:
            out = x.detach() == -torch.inf
            # Count in the dtype of the scores: a number divided by an integer tensor would be float32.
            share = ctx.smoothing / (~out).sum(-1, keepdim=True, dtype=p.dtype).clamp(min=1.0)
            p = (p - share).masked_fill_(out, 0.0)
        return (g * p).scatter_add_(-1, y.unsqueeze(-1), -g * (1.0 - ctx.smoothing)), None, None, None, None

    generate_vmap_rule = True


def reduced(values: Tensor, reduction: str) -> Tensor:
    """Reduce one value per row by "mean", "sum" or "none". Raises ValueError for any other reduction."""
    REDUCTION.check(reduction)
    return values if reduction == "none" else values.sum() if reduction == "sum" else values.mean()


def targets(scores: Tensor, target: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """The target in a standard form: class indices or distributions.

    Returns:
        class indices, 0 where ignored, with the mask of rows that are not ignored; or distributions in float32 or
        float64 with the classes last, and None.
    """
    if not target.dtype.is_floating_point:
        lead = list(scores.shape)
        lead.pop(dim)
        if list(target.shape) != lead:
            raise ValueError(
                f"class indices of shape {tuple(target.shape)} do not fit scores {tuple(scores.shape)} "
                f"along dim={dim}: expected {tuple(lead)}"
            )
        counted = target != ignore_index
        return target.long().masked_fill(~counted, 0), counted
    if target.shape != scores.shape:
        raise ValueError(
            f"target of shape {tuple(target.shape)} must have the shape of the scores {tuple(scores.shape)}, "
            "or hold class indices (int64)"
        )
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return target.to(dtype).movedim(dim, -1), None


def weighted(
    value: Tensor, t: Tensor, counted: Tensor | None, weight: Tensor | None, reduction: str, classes: int
) -> Tensor:
    """Weight the rows ``value [...]`` and reduce them; ``t`` and ``counted`` are what `targets` returns."""
    if counted is None and weight is None:
        return reduced(value, reduction)
    share = torch.ones_like(value)
    if weight is not None:
        weight = each_class(weight, classes, value.dtype)
        share = weight[t] if counted is not None else (t * weight).sum(-1)
        value = value * share
    return mean_of(value, share, counted, reduction)


def each_class(weight: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    if weight.shape != (classes,):
        raise ValueError(f"weight of shape {tuple(weight.shape)} must have shape ({classes},), one number per class")
    return weight.to(dtype)


def mean_of(value: Tensor, share: Tensor, counted: Tensor | None, reduction: str) -> Tensor:
    """Reduce the rows ``value [...]``, with 0 where not ``counted``; a mean divides by the sum of ``share [...]``."""
    if counted is not None:
        value, share = value.masked_fill(~counted, 0.0), share.masked_fill(~counted, 0.0)
    return value.sum() / share.sum() if reduction == "mean" else reduced(value, reduction)
