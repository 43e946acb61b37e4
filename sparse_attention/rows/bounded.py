"""constrained_sparsemax as a row operation, with gradients for scores and bounds; built like the paths in `apply` and the
operators in `operators`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from ..kernels.reference.graph import exporting
from . import operators, shape
from .forward_mode import expand, forward_levels, split
from .shape import batched, foreign, transformed

_OP = "constrained_sparsemax"
_vjp = REFERENCE[_OP].backward  # linear in the gradient, so it can be differentiated again


def checked(x: Tensor, u: Tensor, low: Tensor | None = None) -> Tensor:
    """Return the scores if some distribution over their kept positions satisfies the bounds ``u [..., n]``, and ``low``.

    Otherwise raise ValueError; on a GPU, the row becomes NaN instead, since raising an error would wait for the device;
    with ``low``, also inside torch.compile or a transform.

    If the bounds sum to less than 1 by at most 1e-4, this is treated as rounding (fertility that was used up exactly):
    the row gets its bounds.
    """
    keep = x > -torch.inf
    held = torch.where(keep, u, 0.0)
    empty = ~keep.any(-1) | x.isnan().any(-1)  # a row with a NaN score becomes NaN, whatever its bounds
    total = held.sum(-1)
    # A NaN bound fails both comparisons.
    fits = (held >= 0).all(-1) & (total >= 1 - 1e-4) | empty
    passing = False
    if low is not None:
        least = torch.where(keep, low, 0.0)
        fits = fits & (least >= 0).all(-1) & (least <= held).all(-1) & (least.sum(-1) <= 1 + 1e-4)
        passing = transformed() or foreign(x) or foreign(u) or foreign(low)
    if shape.asynchronous(x) or exporting() or passing:
        return x.masked_fill(~fits.unsqueeze(-1), torch.nan)
    if bool(fits.all()):
        return x
    row = tuple((~fits).nonzero()[0].tolist())
    wrong = held[row][~(held[row] >= 0)]
    where = f"bounds of row {row}" if row else "bounds"
    if low is not None and not wrong.numel() and total[row] >= 1 - 1e-4:
        found = [f"lower bound {a:g}, upper bound {b:g}" for a, b in zip(least[row], held[row]) if not 0 <= a <= b]
        what = found[0] if found else f"the lower bounds sum to {least[row].sum().item():g}"
        raise ValueError(f"{where}: {what}; 0 <= lower <= bounds is needed at kept positions, and sum(lower) <= 1")
    if wrong.numel():
        raise ValueError(
            f"{where} contain {wrong[0].item():g}, but every bound must be >= 0; clamp it or mask its position"
        )
    raise ValueError(
        f"{where} sum to {total[row].item():g} over the kept positions, but the weights must sum to 1; "
        "raise the bounds, or mask the whole row (it becomes zeros)"
    )


def bounded_rows(x: Tensor, u: Tensor) -> Tensor:
    """Along the last dimension of ``x, u [..., n]``, which are float32 or float64, -inf where masked, and not empty."""
    if not transformed() and (foreign(x) or foreign(u)):
        if exporting():
            return REFERENCE[_OP].forward(checked(x, u), bounds=u)[0]
        operators.known_to(x)
        return operators.OPERATORS.constrained(x.contiguous(), u.contiguous())[0]
    if not transformed() and torch.autograd.forward_ad._current_level < 0:
        return _Rows.apply(x, u)
    if forward_levels() < 2:
        return _RowsInTorch.apply(x, u)[0]
    (x, u), (dx, du) = split(x, u)
    p, held = _RowsInTorch.apply(x, u)
    return expand(p, 1, lambda p, s: _jvp(dx, du, p, held))  # piecewise linear


def solve(x: Tensor, u: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Any]:
    """Attention along the last dimension of ``x`` and ``u``.

    Returns the attention ``[R, n]``, the tensors that the kernel saved, the bounds ``[R, n]``, and the kernel.
    """
    n = x.shape[-1]
    rows, bounds = x.reshape(-1, n).contiguous(), u.reshape(-1, n).contiguous()
    kernel = kernels.select(_OP, rows).OPS[_OP]
    if getattr(kernel, "looks_at_bounds", False) and not shape.asynchronous(rows):
        p, saved = kernel.forward(rows, bounds=bounds, doubt=lambda: checked(x, u))
        return p, saved, bounds, kernel
    rows = checked(x, u).reshape(-1, n).contiguous()
    bounds = bounds.masked_fill(rows == -torch.inf, 0.0)  # a NaN at a masked position has no effect
    p, saved = kernel.forward(rows, bounds=bounds)
    return p, saved, bounds, kernel


def state(p: Tensor, saved: Sequence[Tensor], bounds: Tensor) -> Tensor:
    """The state of each position, int8 ``[R, n]``: +1 at the bound, 0 free, -1 at zero.

    The reference kernel saves exactly this tensor. The native kernel saves the scores and the threshold of every row,
    from which the state is computed; they show where a bound of 0 is active.
    """
    if len(saved) == 1:
        return saved[0]
    scores, threshold = saved
    capped = (p == bounds) & ((p > 0) | (scores > threshold.unsqueeze(-1)))
    free = (p > 0) & ~capped
    return capped.to(torch.int8) - (~capped & ~free).to(torch.int8)


class _Rows(Function):
    """The direct path: one kernel forward and one backward; second derivatives use the reference expression."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor) -> Tensor:
        p, saved, bounds, ctx.kernel = solve(x, u)
        ctx.save_for_backward(p, bounds, *saved)
        return p.view(x.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        p, bounds, *saved = ctx.saved_tensors
        rows = g.reshape(p.shape)
        if torch.is_grad_enabled() or batched(g) or foreign(g):  # create_graph=True or is_grads_batched=True
            dx, du = _vjp(rows, p, (state(p, saved, bounds),), bounds=bounds)
        else:
            dx, du = ctx.kernel.backward(rows.contiguous(), p, tuple(saved), bounds=bounds)
        return dx.view(g.shape), du.view(g.shape)


def _jvp(dx: Tensor | None, du: Tensor | None, p: Tensor, held: Tensor) -> Tensor:
    dp = torch.zeros_like(p) if dx is None else _vjp(dx, p, (held,), bounds=p)[0]  # symmetric in x
    if du is not None:  # the free positions compensate for the change of the others
        change, free = torch.where(held == 1, du, 0.0), (held == 0).to(p.dtype)
        dp = dp + change - free * change.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1.0)
    return dp


class _RowsInTorch(Function):
    """The path under torch.func transforms: the reference kernel, whose derivatives are all torch expressions."""

    @staticmethod
    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        x = checked(x, u)
        n = x.shape[-1]
        p, (held,) = REFERENCE[_OP].forward(x.reshape(-1, n), bounds=u.reshape(-1, n))
        return p.view(x.shape), held.view(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0].detach(), output[1])
        ctx.save_for_forward(output[0].detach(), output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        p, held = ctx.saved_tensors
        return _vjp(g, p, (held,), bounds=p)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, du: Tensor | None) -> tuple[Tensor, None]:
        return _jvp(dx, du, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, u: Tensor) -> Any:
        x, u = (t.movedim(d, 0) if d is not None else t.unsqueeze(0) for t, d in zip((x, u), in_dims))
        both = torch.broadcast_shapes(x.shape, u.shape)
        return _RowsInTorch.apply(x.expand(both), u.expand(both)), (0, 0)


def _opaque(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    p, saved, bounds, _ = solve(x, u)
    return p.view(x.shape), state(p, saved, bounds).view(x.shape)


def _opaque_backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, Tensor]:
    p, held = ctx.saved_tensors
    return _vjp(g, p, (held,), bounds=p)


operators.define(
    "constrained(Tensor x, Tensor u) -> (Tensor, Tensor)",
    _opaque,
    lambda x, u: (x.new_empty(x.shape), x.new_empty(x.shape).char()),
)
torch.library.register_autograd(
    "sparse_attention::constrained",
    _opaque_backward,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*output),
    lib=operators.LIBRARY,
)
