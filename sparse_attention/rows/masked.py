"""Native kernels for rows with a mask or with hyperparameters as tensors: one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from .ragged import along
from .shape import FULL, PLAIN, STRIDED, batched, fits, foreign, per_row, transformed

_forward_ad = torch.autograd.forward_ad


def _smooth(op: str) -> bool:
    return op in REFERENCE and REFERENCE[op].smooth


def readable(x: Tensor) -> bool:
    """True if a kernel may read the tensor's memory: on a CPU, without transforms or forward mode."""
    dense = x.is_cpu and x.layout is STRIDED and not x.is_nested
    return dense and not foreign(x) and not transformed() and _forward_ad._current_level < 0


def masked_rows(op: str, x: Tensor, mask: Tensor | None, params: dict[str, Any], plain: Any = None) -> Tensor | None:
    """Attention of contiguous scores ``x [..., n]`` along the last dimension; None if no native kernel takes this call.

    Args:
        mask: bool, broadcastable to x, or None.
        params: numbers, or tensors as `shape.per_row` accepts them, in the order of the C function's arguments.
        plain: ``f(x, **params)`` on ``x [..., n]``, the same operation in differentiable torch, used for the second
            derivative of operations that are not smooth (`Op.smooth`).
    """
    if kernels.active() not in ("auto", "native") or x.dtype not in FULL or not x.numel() or not x.ndim:
        return None
    if not (readable(x) and x.is_contiguous()):
        return None
    native = kernels.backend("native")  # which torch.compile could not import
    if not (native.available("sparsemax", x) and native.masked.takes(op)):
        return None
    layout = None
    if mask is not None:
        smooth = op not in REFERENCE or REFERENCE[op].smooth
        if not (smooth and mask.__class__ in PLAIN and fits(mask, x.shape, x.device)):
            return None  # the other path of the caller raises the error
        layout = native.masked.layout(mask, x.shape)
    names, values = tuple(params), list(params.values())
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            if not readable(value):
                return None
            values[i] = per_row(value, x, -1, names[i])
        elif op == "entmax" and value < native.masked.LOWEST_ALPHA:
            return None
    if torch.is_grad_enabled() and (x.requires_grad or any(isinstance(v, Tensor) and v.requires_grad for v in values)):
        return _Masked.apply(x, mask, layout, op, plain, names, *values)
    return _call(op, x, layout, values).forward(x.view(-1, x.shape[-1]))[0].view(x.shape)


def _number_or_rows(value: Any, x: Tensor) -> float | Tensor:
    """A number, or float64 ``[R]`` with one value per row; a tensor of one value becomes a number unless it is NaN."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() == 1 and (number := value.item()) == number:
        return number
    return value.detach().to(torch.float64).expand(*x.shape[:-1], 1).reshape(-1).contiguous()


def _call(op: str, x: Tensor, layout: Any, values: Any) -> Any:
    """Build the `native.masked.Masked` call for these values and the rows of x."""
    masked = kernels.backend("native").masked
    kept, outer, inner = layout or (None, 1, 1)
    numbers = [_number_or_rows(v, x) for v in values]
    low = None
    if op == "entmax":
        alpha, rows = numbers[0], x.numel() // x.shape[-1]
        if isinstance(alpha, float) and alpha < masked.LOWEST_ALPHA:
            alpha = numbers[0] = torch.full((rows,), alpha, dtype=torch.float64)
        if isinstance(alpha, Tensor):
            low = (alpha < masked.LOWEST_ALPHA).nonzero().flatten()
            low = low if low.numel() else None
    return masked.Masked(op, kept, outer, inner, numbers[0], (*numbers, 1.0)[1], low)


class _Masked(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, layout: Any, op: str, plain: Any, names: tuple[str, ...], *values: Any
    ) -> Tensor:
        call = _call(op, x, layout, values)
        p, ids = call.forward(x.detach().view(-1, x.shape[-1]))
        p = p.view(x.shape)
        tensors = [v if isinstance(v, Tensor) else None for v in values]
        ctx.save_for_backward(p, None if _smooth(op) else x, ids, None if _smooth(op) else mask, *tensors)
        ctx.call, ctx.plain, ctx.names = call, plain, names
        ctx.numbers = [None if isinstance(v, Tensor) else v for v in values]
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p, x, ids, mask, *values = ctx.saved_tensors
        if torch.is_grad_enabled() or batched(g) or foreign(g):
            params = {n: v if v is not None else k for n, v, k in zip(ctx.names, values, ctx.numbers)}
            return _again(ctx, g, p, x, mask, params)
        n = p.shape[-1]
        wanted = any(ctx.needs_input_grad[6:])
        rows = g.reshape(-1, n).contiguous(), None if x is None else x.view(-1, n), p.view(-1, n)
        dx, slopes = ctx.call.backward(*rows, ids, wanted)
        found = [
            s.view(*p.shape[:-1], 1).sum_to_size(v.shape).to(v.dtype) if v is not None and s is not None else None
            for v, s in zip(values, slopes)
        ]
        return (dx.view(p.shape), None, None, None, None, None, *found)


def _again(
    ctx: Any, g: Tensor, p: Tensor, x: Tensor | None, mask: Tensor | None, params: dict[str, Any]
) -> tuple[Tensor | None, ...]:
    """The gradients as torch expressions, for create_graph=True or is_grads_batched=True."""
    wanted = [name for name, need in zip(params, ctx.needs_input_grad[6:]) if need]
    if x is None:
        reference = REFERENCE[ctx.call.op]
        dx = reference.backward(g, p, (), **params).to(p.dtype)
        slopes = {name: reference.gradient_of(name, dx, p, params) for name in wanted}
    else:
        with torch.enable_grad():
            inputs = [t for t in (x, *(params[name] for name in wanted)) if t.requires_grad]
            out = along(ctx.plain, x, -1, mask, **params)
            found = torch.autograd.grad(out, inputs, g, create_graph=torch.is_grad_enabled())
        dx = found[0] if x is not None and x.requires_grad else None
        slopes = dict(zip(wanted, found[len(found) - len(wanted) :]))
    return (dx, None, None, None, None, None, *(slopes.get(name) for name in params))
