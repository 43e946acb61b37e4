r"""Constrained softmax and sparsemax: attention with an upper bound u on every position (fertility).

Martins & Kreutzer 2017; Malaviya, Ferreira & Martins 2018; Peters, Niculae & Martins 2018.

* softmax: :math:`\arg\min_{p \in \Delta, p \le u} KL(p \,\|\, \mathrm{softmax}(z)) = \min(u, e^z/Z)`: positions are capped
  in the order of :math:`e^z/u`, the others share the mass that is left.
* sparsemax: :math:`\arg\min_{p \in \Delta, p \le u} \|p - z\|^2 = \mathrm{clip}(z - \tau, 0, u)`.

Feasible when the bounds of the kept positions sum to at least 1. A row whose bounds sum to less returns its bounds: the
distribution cannot be completed, and a decoder that has used up all fertility should not crash on it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from ..registry import Mapping, Param, register, set_module
from ._call import _compiling, _transformed, last

BOUNDS = Param(
    "bounds",
    None,
    low=0.0,
    closed_low=True,
    required=True,
    meaning="upper bound of every position, a tensor that broadcasts to the scores; given per call or fixed",
)
_PAPER = "Malaviya et al. 2018; Peters et al. 2018"
_OP = "constrained_sparsemax"
_vjp = REFERENCE[_OP].backward  # linear in the gradient, so differentiable again
_batched = torch._C._functorch.is_legacy_batchedtensor


def _ready(scores: Tensor, bounds: Tensor | float, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Any]:
    x, restore = last(scores, dim, mask)
    u = torch.as_tensor(bounds, dtype=x.dtype, device=x.device)
    try:
        u = u.expand(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"bounds of shape {tuple(u.shape)} do not broadcast to scores of shape {tuple(scores.shape)}"
        ) from None
    return x, (u.reshape(1) if scores.ndim == 0 else u.movedim(dim, -1)), restore


@register(
    "constrained_softmax",
    kind="constrained",
    params=(BOUNDS,),
    paper=_PAPER,
    oracle="relative entropy programme (cvxpy)",
    summary="softmax with upper bounds",
    complete=True,
)
def constrained_softmax(scores: Tensor, bounds: Tensor | float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Constrained softmax along ``dim``; gradients for scores and bounds.

    Args:
        scores: any shape; -inf counts as masked.
        bounds: >= 0, broadcastable to scores.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        shape of scores; rows sum to 1, or to the sum of their bounds where that is less.
    Raises:
        ValueError: bounds that do not broadcast to the scores.
    """
    x, u, restore = _ready(scores, bounds, dim, mask)
    if not x.numel():
        return restore(x.clone())
    keep = x.detach() != -torch.inf
    top = x.detach().amax(-1, keepdim=True)
    dead, bad = top == -torch.inf, ~(top < torch.inf)
    z = x.masked_fill(~keep | dead | bad, 0.0)
    u = u.masked_fill(~keep, 0.0)
    with torch.no_grad():
        capped = _capped(z.masked_fill(~keep, -torch.inf).masked_fill(dead | bad, 0.0), u)
    free = keep & ~capped
    left = 1.0 - torch.where(capped, u, 0.0).sum(-1, keepdim=True)
    none_free = ~free.any(-1, keepdim=True)
    rest = torch.softmax(z.masked_fill(~free & ~none_free, -torch.inf), -1)
    p = torch.where(capped, u, torch.where(free, rest * left, 0.0))
    return restore(p.masked_fill(dead, 0.0).masked_fill(bad, torch.nan))


def _capped(z: Tensor, u: Tensor) -> Tensor:
    """Which positions sit at their bound, rows ``z, u [..., n]``: cap in decreasing order of ``e^z/u`` while the share of
    the mass that is left would exceed the bound. O(n log n)."""
    wide = torch.float64 if z.device.type != "mps" else z.dtype
    z, u = z.to(wide), u.to(wide)
    log_ratio = torch.where(z > -torch.inf, z - u.log(), -torch.inf)  # +inf where the bound is 0
    order = log_ratio.argsort(dim=-1, descending=True, stable=True)
    z_sorted, u_sorted = z.gather(-1, order), u.gather(-1, order)
    top = z.amax(-1, keepdim=True)
    mass = torch.exp(z_sorted - top)
    remaining = mass.flip(-1).cumsum(-1).flip(-1)  # of this position and all after it
    used = u_sorted.cumsum(-1) - u_sorted
    # Over its bound when the positions before it are capped; a capped position has only capped ones before it.
    over = (mass * (1.0 - used) > u_sorted * remaining) | (u_sorted == 0) | (used >= 1.0)
    over = over.to(torch.int8).cummin(-1).values.bool() & (z_sorted > -torch.inf)
    return torch.zeros_like(over).scatter(-1, order, over)


@register(
    "constrained_sparsemax",
    kind="constrained",
    params=(BOUNDS,),
    paper=_PAPER,
    oracle="quadratic programme (cvxpy, DAQP)",
    summary="sparsemax with upper bounds",
    complete=True,
)
def constrained_sparsemax(scores: Tensor, bounds: Tensor | float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Constrained sparsemax along ``dim``; arguments, result and errors as :func:`constrained_softmax`."""
    x, u, restore = _ready(scores, bounds, dim, mask)
    if not x.numel():
        return restore(x.clone())
    if _compiling():
        from . import _compiled

        return restore(_compiled.constrained_rows(x.contiguous(), u.contiguous()))
    if _transformed():
        return restore(_RowsInTorch.apply(x, u)[0])
    return restore(_Rows.apply(x, u))


def solve(x: Tensor, u: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor, kernels.Op]:
    """Attention ``[R, n]`` of the last dimension of ``x`` and ``u``, what the kernel kept, its bounds ``[R, n]``, itself."""
    n = x.shape[-1]
    rows, bounds = x.reshape(-1, n).contiguous(), u.reshape(-1, n).contiguous()
    kernel = kernels.select(_OP, rows).OPS[_OP]
    p, saved = kernel.forward(rows, bounds=bounds)
    return p, saved, bounds, kernel


def state(p: Tensor, saved: tuple[Tensor, ...], bounds: Tensor) -> Tensor:
    """+1 at the bound, 0 free, -1 at zero, int8 ``[R, n]``, from what a kernel kept.

    The reference keeps just that; the native kernel keeps the scores and the threshold of every row, which tell where a
    bound of 0 decides.
    """
    if len(saved) == 1:
        return saved[0]
    scores, threshold = saved
    capped = (p == bounds) & ((p > 0) | (scores > threshold.unsqueeze(-1)))
    free = (p > 0) & ~capped
    return capped.to(torch.int8) - (~capped & ~free).to(torch.int8)


class _Rows(Function):
    """The plain path: one kernel forward, one backward; differentiable again by the reference expression."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor) -> Tensor:
        p, saved, bounds, ctx.kernel = solve(x, u)
        ctx.save_for_backward(p, bounds, *saved)
        return p.view(x.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        p, bounds, *saved = ctx.saved_tensors
        rows = g.reshape(p.shape)
        if torch.is_grad_enabled() or _batched(g):  # create_graph=True; is_grads_batched=True
            dx, du = _vjp(rows, p, (state(p, saved, bounds),), bounds=bounds)
        else:
            dx, du = ctx.kernel.backward(rows.contiguous(), p, tuple(saved), bounds=bounds)
        return dx.view(g.shape), du.view(g.shape)


class _RowsInTorch(Function):
    """Under torch.func transforms: the reference kernel, and every derivative a torch expression."""

    @staticmethod
    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[-1]
        p, (held,) = REFERENCE[_OP].forward(x.reshape(-1, n), bounds=u.reshape(-1, n))
        return p.view(x.shape), held.view(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0].detach(), output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        p, held = ctx.saved_tensors
        return _vjp(g, p, (held,), bounds=p)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, u: Tensor) -> Any:
        x, u = (t.movedim(d, 0) if d is not None else t.unsqueeze(0) for t, d in zip((x, u), in_dims))
        shape = torch.broadcast_shapes(x.shape, u.shape)
        return _RowsInTorch.apply(x.expand(shape), u.expand(shape)), (0, 0)


class ConstrainedSoftmax(Mapping):
    """Module twin of :func:`constrained_softmax`: ``m(scores, mask=None, dim=-1, bounds=u)``."""

    mapping_name = "constrained_softmax"

    def __init__(self, **fixed: Any):
        super().__init__(**fixed)


class ConstrainedSparsemax(Mapping):
    """Module twin of :func:`constrained_sparsemax`: ``m(scores, mask=None, dim=-1, bounds=u)``."""

    mapping_name = "constrained_sparsemax"

    def __init__(self, **fixed: Any):
        super().__init__(**fixed)


set_module("constrained_softmax", ConstrainedSoftmax)
set_module("constrained_sparsemax", ConstrainedSparsemax)
