"""Row operations on tensors of any shape, with gradients.

A call takes one of four paths to a kernel:

* on a GPU, if all parameters are numbers: `_Fused`, whose kernels handle the mask and half precision in one launch;
* for contiguous scores along the last dimension, without a mask and with numbers as parameters: `_Rows`, which calls
  the kernel directly;
* under torch.func transforms or with hyperparameters as tensors: `transforms.in_torch`, which runs the reference
  kernel, so that every derivative is a torch expression;
* for tensors whose memory must not be read (compiled, traced, fake or distributed; see `shape.foreign`): an opaque
  operator of torch's dispatcher, see `operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from . import operators
from .masked import masked_rows, readable
from .ragged import along, over_rows
from .shape import (
    FULL,
    PLAIN,
    STRIDED,
    batched,
    checked,
    dispatch_modes,
    dtype_of_result,
    fits,
    foreign,
    function_modes,
    jagged,
    scaled,
    tensor,
    transformed,
    whole,
)
from .transforms import in_torch

_grad_enabled = torch.is_grad_enabled
_compiling = torch.compiler.is_dynamo_compiling  # every other compiler works as a mode
_forward_ad = torch.autograd.forward_ad
_select = kernels.select
FAR_BELOW = -1e9


def rows(
    op: str,
    scores: Tensor,
    dim: int,
    mask: Tensor | None,
    params: dict[str, Any],
    learned: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Apply a row operation along ``dim`` of ``scores``.

    Args:
        scores: any shape, floating point.
        mask: bool, broadcastable to scores, True = keep.
        params: the hyperparameters of the operation, already checked: numbers, or tensors over the rows (see
            `per_row`).
        learned: the function ``f(x, **params)`` to use if a hyperparameter is a tensor. It works along the last
            dimension, on scores already divided by gamma; by default `on_last`.
    Returns:
        The attention, with the shape and dtype of the scores (float32 under CUDA autocast).
    """
    if scores.__class__ not in PLAIN or scores.layout is not STRIDED or scores.is_nested:
        if jagged(scores):
            return over_rows(
                lambda x, mask, **values: rows(op, x, -1, mask, values, learned), scores, dim, mask, params
            )
        tensor(scores)
    if dim.__class__ is not int:
        dim = whole(dim)
    for value in params.values():
        if value.__class__ is not float:
            return masked_or(partial(_in_torch, op, learned), op, scores, dim, mask, params)
    if (backend := kernels.fused(scores)) is not None:
        if (p := _fused(backend, op, scores, dim, mask, params)) is not None:
            return p
    elif mask is not None and dim == -1 and (p := masked_rows(op, scores, mask, params)) is not None:
        return p
    ndim = scores.ndim
    if (
        mask is None
        and scores.__class__ in PLAIN
        and scores.dtype in FULL
        and (dim == -1 or dim == ndim - 1)
        and not _compiling()
        and scores.is_contiguous()
        and (size := scores.numel())
        and size.__class__ is int  # under torch.jit.trace, it is a tensor
        and ndim
        and not transformed()
        and not dispatch_modes()
        and not function_modes()
    ):
        try:
            if (scores.requires_grad and _grad_enabled()) or _forward_ad._current_level >= 0:
                return _Rows.apply(scores, op, params)
            x = scores if ndim == 2 else scores.view(-1, scores.shape[-1])
            p = _select(op, x).OPS[op].forward(x, **params)[0]
            return p if ndim == 2 else p.view(scores.shape)
        except kernels.NoMemory:  # a lazy zero or a meta tensor: the dispatcher handles it
            pass
    return along(lambda x: on_last(op, x, params), scores, dim, mask)


def fused(
    op: str,
    scores: Tensor,
    dim: int,
    mask: Tensor | None,
    params: dict[str, float],
    plain: Callable[[Tensor], Tensor] | None = None,
) -> Tensor | None:
    """The attention computed in one launch, and its gradient in a second launch; None if no kernel takes this call.

    ``plain`` is the operation in torch, on float32 rows ``[..., n]`` with -inf where masked. It is used for the second
    derivative of an operation that the reference does not have.
    """
    if scores.__class__ not in PLAIN or scores.layout is not STRIDED or scores.is_nested:
        if jagged(scores):
            return None
        tensor(scores)
    if (backend := kernels.fused(scores)) is None:
        return None
    return _fused(backend, op, scores, dim if dim.__class__ is int else whole(dim), mask, params, plain)


def _fused(
    backend: Any, op: str, scores: Tensor, dim: int, mask: Tensor | None, params: dict[str, float], plain: Any = None
) -> Tensor | None:
    """`fused`, for dense scores."""
    if not scores.ndim or not scores.numel() or foreign(scores) or transformed() or _forward_ad._current_level >= 0:
        return None
    x, kept = scores, mask
    if dim != -1:
        x, kept = x.movedim(dim, -1), None if mask is None else checked(mask, scores).movedim(dim, -1)
    elif mask is not None and not (mask.__class__ in PLAIN and fits(mask, scores.shape, scores.device)):
        kept = checked(mask, scores).to(scores.device)  # one number may be elsewhere
    plan = backend.plan(op, x, kept is not None, params)
    if plan is None or (kept is not None and foreign(kept)):
        return None
    x, dtype = x.contiguous(), scores.dtype
    form = plan.form  # for most calls
    if kept is not None or dtype not in FULL:
        form = backend.form(kept, dtype if dtype in FULL else dtype_of_result(scores), x.shape)
    try:
        if x.requires_grad and _grad_enabled():
            p = _differentiable(x, (plan, plain, form))
        else:
            p = plan.forward(x, form)[0]
    except backend.LaunchFailed as error:
        backend.give_up(op, error)
        return None
    return p if dim == -1 else p.movedim(-1, dim)


def on_cpu(scores: Tensor, dim: int) -> bool:
    """True if plain torch code may read the values of these rows.

    They must be float32 or float64 on a CPU, contiguous along the last dimension and not empty, outside transforms,
    compilation and forward mode.
    """
    return (
        scores.dtype in FULL
        and scores.ndim > 0
        and dim.__class__ is int
        and (dim == -1 or dim == scores.ndim - 1)
        and readable(scores)
        and scores.is_contiguous()
        and scores.numel() > 0
    )


def masked_or(
    plain: Callable[..., Tensor], op: str, scores: Tensor, dim: int, mask: Tensor | None, params: dict[str, Any]
) -> Tensor:
    """The operation by a native kernel, or by ``plain(x, **params)`` on x ``[..., n]``, with numbers or tensors ``[..., 1]``."""
    if dim.__class__ is int and dim == -1 and (p := masked_rows(op, scores, mask, params, plain)) is not None:
        return p

    def either(x: Tensor, **values: Any) -> Tensor:
        p = masked_rows(op, x.contiguous(), None, values, plain)
        return plain(x, **values) if p is None else p

    return along(either, scores, dim, mask, **params)


def _in_torch(op: str, learned: Callable[..., Tensor] | None, x: Tensor, **params: Any) -> Tensor:
    """The operation by its reference kernel.

    The scores are divided by gamma, and the other hyperparameters are converted to tensors.
    """
    one = {}
    if "gamma" in params:
        x, one = scaled(x, params.pop("gamma")), {"gamma": 1.0}
    theta = {
        name: value if isinstance(value, Tensor) else torch.full([1] * x.ndim, value, dtype=x.dtype, device=x.device)
        for name, value in params.items()
    }
    for name, value in theta.items():
        # A value out of range is NaN here (see `Param.take`): set the row to NaN and give the kernel a valid value.
        spoilt = value.isnan()
        x, theta[name] = x.masked_fill(spoilt, torch.nan), value.masked_fill(spoilt, 1.5)
    return on_last(op, x, one, **theta) if learned is None else learned(x, **theta)


def on_last(op: str, x: Tensor, params: dict[str, Any], **theta: Tensor) -> Tensor:
    """Apply a row operation along the last dimension of ``x``.

    ``x`` is float32 or float64, not empty, and already -inf at masked positions. ``theta`` holds at most one
    hyperparameter as a tensor ``[..., 1]``; the operation must have a derivative for it.
    """
    name, value = next(iter(theta.items()), ("", None))
    if transformed():
        return in_torch(op, x, name, value, params)
    if foreign(x) or (value is not None and foreign(value)):
        return operators.rows(op, x.contiguous(), name, value, params)
    if value is not None:
        return in_torch(op, x, name, value, params)
    return _Rows.apply(x.contiguous(), op, params)


def under_contract(
    function: Callable[..., Tensor],
    scores: Tensor,
    dim: int,
    mask: Tensor | None,
    over_rows: Any = MappingProxyType({}),  # a mapping: name -> number or tensor
    **params: Any,
) -> Tensor:
    """Call the function so that the result follows the contract.

    The result works for any ``dim``; it is zero, without gradient, at masked positions, at scores of -inf and in fully
    masked rows; a NaN stays in its row. The function gets scores with the attention dimension last, float32 or float64,
    with masked scores at -1e9, and a mask in the shape of the scores. It never sees a row that is fully masked or
    contains NaN or +inf: such a row is replaced by ones, and its result is overwritten (by zeros, sum_normalization
    would be NaN, and so would the gradient in anomaly mode). Parameters in ``over_rows`` that are tensors become ``[..., 1]`` (`shape.per_row`); other parameters are passed on as they are.
    """

    def kept(x: Tensor, **given: Any) -> Tensor:
        top = x.detach().amax(-1, keepdim=True)
        keep = x.detach() != -torch.inf
        if on_cpu(x, -1) and bool(top.isfinite().all()):  # every row is as the function expects it
            out = ~keep
            return function(x.masked_fill(out, FAR_BELOW), keep, **given, **params).masked_fill(out, 0.0).to(x.dtype)
        dead, bad = top == -torch.inf, ~(x.detach() < torch.inf).all(-1, keepdim=True)
        skip = dead | bad
        # Masked scores are far below all others but not -inf, since a learned factor times -inf has a NaN gradient.
        p = function(x.masked_fill(~keep, FAR_BELOW).masked_fill(skip, 1.0), keep | skip, **given, **params)
        return p.masked_fill(~keep | dead, 0.0).masked_fill(bad, torch.nan).to(x.dtype)

    return along(kept, scores, dim, mask, **over_rows)


class _Rows(Function):
    """The direct path: one kernel forward and one backward; second derivatives use the reference expressions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: str, params: dict[str, Any]) -> Tensor:
        flat = x if x.ndim == 2 else x.view(-1, x.shape[-1])
        kernel = kernels.select(op, flat).OPS[op]
        p, saved = kernel.forward(flat, **params)
        if x.ndim != 2:
            p = p.view(x.shape)
        ctx.save_for_backward(p, *saved)
        if _forward_ad._current_level >= 0:
            ctx.save_for_forward(p, *saved)
        ctx.op, ctx.kernel, ctx.params = op, kernel, params
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p, *saved = ctx.saved_tensors
        if not (_grad_enabled() or batched(g)):
            return _vjp(g, p, saved, ctx.kernel, ctx.params), None, None
        # Here for create_graph=True or is_grads_batched=True.
        reference = REFERENCE[ctx.op]
        if reference.smooth:
            return reference.backward(g, p, (), **ctx.params), None, None
        return _linear(g, p.detach(), saved, ctx.kernel, ctx.params), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: Any) -> Tensor:
        # All these Jacobians are symmetric, so the vector-Jacobian product also gives the Jacobian-vector product.
        p, *saved = ctx.saved_tensors
        if not batched(t):
            return _vjp(t, p, saved, ctx.kernel, ctx.params)
        if REFERENCE[ctx.op].smooth:
            return REFERENCE[ctx.op].backward(t, p, (), **ctx.params)
        return _linear(t, p, saved, ctx.kernel, ctx.params)


def _vjp(g: Tensor, p: Tensor, saved: Any, kernel: Any, params: dict[str, Any]) -> Tensor:
    if g.__class__ in PLAIN and p.__class__ in PLAIN and not (g.is_neg() or dispatch_modes()):
        try:
            if g.ndim == 2:
                return kernel.backward(g, p, saved, **params)
            n = p.shape[-1]
            return kernel.backward(g.reshape(-1, n), p.view(-1, n), saved, **params).view(p.shape)
        except kernels.NoMemory:
            pass
    return operators.vjp(g, p, saved, kernel, params)


def _linear(g: Tensor, p: Tensor, saved: Any, kernel: Any, params: dict[str, Any]) -> Tensor:
    """The product of g with the Jacobian of a piecewise linear mapping, differentiable in g."""
    if not batched(g):
        return _Linear.apply(g, p, kernel, params, *saved)
    # Kernels cannot take batched gradients, but matrix products can: build the Jacobian [..., n, n] column by column.
    columns = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    jacobian = torch.stack([_vjp(e.expand_as(p), p, saved, kernel, params) for e in columns], dim=-1)
    return (jacobian @ g.unsqueeze(-1)).squeeze(-1)


class _Linear(Function):
    """The vector-Jacobian product of a piecewise linear mapping: linear in g, with a constant symmetric matrix."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, p: Tensor, kernel: Any, params: dict[str, Any], *saved: Tensor) -> Tensor:
        ctx.save_for_backward(p, *saved)
        ctx.kernel, ctx.params = kernel, params
        return _vjp(g, p, saved, kernel, params)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        p, *saved = ctx.saved_tensors
        return (_linear(gg, p, saved, ctx.kernel, ctx.params), None, None, None, *(None for _ in saved))


class _Fused(Function):
    """One kernel forward and one backward, on scores in half or full precision, with a mask.

    Second derivatives are computed in torch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: tuple[Any, ...]) -> Tensor:
        plan, plain, form = call
        p, saved = plan.forward(x, form)
        if plain is not None:  # not in the reference: it has saved the scores, and needs the mask again
            saved = (*saved, form.mask)
            ctx.layout = form.layout
        ctx.to_save = (p, *saved)  # what save_for_backward does
        ctx.call = plan, plain
        return p  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (op, params, _, backward, form), plain = ctx.call
        p, *saved = ctx.saved_tensors
        if plain is not None:
            x, mask = saved
            saved, form = [x], form._replace(mask=mask, layout=ctx.layout)
        if _grad_enabled() or batched(g) or foreign(g):
            wide = g.float()
            if plain is not None:
                create = _grad_enabled()  # if not, the gradients are batched
                with torch.enable_grad():
                    masked = x.float() if mask is None else x.float().masked_fill(~mask, -torch.inf)
                    again = plain(masked)
                (dx,) = torch.autograd.grad(again, x, wide, create_graph=create)
            elif REFERENCE[op].smooth:
                dx = REFERENCE[op].backward(wide, p.float(), (), **params)
            else:
                dx = _linear(wide, p.detach(), saved, kernels.backend("triton").OPS[op], params)
            dx = dx.to(form.dtype)
        else:
            dx = backward(g, p, saved, form)
        return dx, None


# Without the steps that torch takes for other kinds of functions: .7 of the 9.4 us that an empty function takes, forward and backward
_class: Any = _Fused
_differentiable = super(Function, _class).apply
_class._backward_cls.apply = _Fused.backward
