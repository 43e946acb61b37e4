"""From a user's tensor to rows for a kernel, and back with gradients.

Three ways lead to a kernel, by who asks:

* plain calls (contiguous, last dimension, no mask, numbers as parameters): `_Rows`, with nothing in between;
* torch.func transforms and hyperparameters given as tensors: `_RowsInTorch`, which runs the reference kernel and keeps
  every derivative a torch expression;
* torch.compile: the opaque operator of `_compiled`, so that the graph does not break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from ..kernels.reference import threshold

_FULL = frozenset((torch.float32, torch.float64))
_HALF = frozenset((torch.float16, torch.bfloat16))
# Ops whose backward needs p alone: the reference expression is their derivative whatever kernel ran.
_SMOOTH = frozenset(("sparsemax", "entmax", "pnormmax"))
# The hyperparameter that may be a tensor, and its derivative.
_THETA_GRADIENT: dict[str, Callable[..., Tensor]] = {
    "entmax": threshold.entmax_alpha_gradient,
    "pnormmax": threshold.pnormmax_p_gradient,
}

_transformed = torch._C._are_functorch_transforms_active
_batched = torch._C._functorch.is_legacy_batchedtensor
_grad_enabled = torch.is_grad_enabled
_compiling = torch.compiler.is_compiling


def rows(op: str, scores: Tensor, dim: int, mask: Tensor | None, params: dict[str, Any]) -> Tensor:
    """Apply a row operation along ``dim`` of ``scores``; numbers as parameters.

    Args:
        scores: any shape, floating point.
        mask: bool, broadcastable to scores, True = keep.
    Returns:
        attention of the scores' shape and dtype (float32 under CUDA autocast).
    """
    if (
        mask is None
        and scores.dtype in _FULL
        and (dim == -1 or dim == scores.ndim - 1)
        and scores.is_contiguous()
        and scores.numel()
        and scores.ndim
        and not _compiling()
        and not _transformed()
    ):
        if scores.requires_grad and _grad_enabled():
            return _Rows.apply(scores, op, params)
        x = scores if scores.ndim == 2 else scores.view(-1, scores.shape[-1])
        p, _ = kernels.select(op, x).OPS[op].forward(x, **params)
        return p if scores.ndim == 2 else p.view(scores.shape)
    x, restore = last(scores, dim, mask)
    if not x.numel():
        return restore(x.clone())
    return restore(on_last(op, x, params))


def on_last(op: str, x: Tensor, params: dict[str, Any]) -> Tensor:
    """A row operation along the last dimension of float32/float64 ``x``, masked positions already -inf, not empty."""
    if _compiling():
        from . import _compiled

        return _compiled.rows(op, x.contiguous(), params)
    if _transformed():
        return _RowsInTorch.apply(x, None, op, "", params)[0]
    return _Rows.apply(x.contiguous(), op, params)


def last(scores: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Any]:
    """Scores with the attention dimension last, in float32 or float64, -inf where masked; and the way back.

    Raises:
        TypeError: scores that are not floating point, a mask that is not boolean.
        ValueError: a mask that does not broadcast to the scores.
    """
    dtype = scores.dtype
    if not dtype.is_floating_point:
        raise TypeError(f"scores have dtype {dtype}; attention needs floating point, convert with scores.float()")
    wide = scores if dtype in _FULL else scores.float()
    # As torch.softmax does: autocast on a GPU keeps the result in float32, on a CPU in the input's type.
    keeps_full = dtype in _HALF and scores.is_cuda and torch.is_autocast_enabled("cuda")
    out_dtype = torch.float32 if keeps_full else dtype
    if mask is not None:
        wide = wide.masked_fill(~checked_mask(mask, scores), -torch.inf)
    flat = wide.ndim == 0
    x = wide.reshape(1) if flat else wide.movedim(dim, -1)

    def restore(p: Tensor) -> Tensor:
        p = p.reshape(()) if flat else p.movedim(-1, dim)
        return p if p.dtype == out_dtype else p.to(out_dtype)

    return x, restore


def checked_mask(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}; it must be boolean, True = keep (use mask.bool())")
    try:
        return mask.expand(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
        ) from None


def per_row(value: Any, scores: Tensor, dim: int, name: str) -> Any:
    """A hyperparameter tensor shaped for the rows of ``last(scores, dim)``: ``[..., 1]`` with the leading shape.

    Accepted: one value; any shape that broadcasts to the scores without ``dim`` (for scores ``[B, H, T, n]``: ``[H, 1]``
    is one per head, ``[B, H, T]`` one per row); or the scores' own number of dimensions with size 1 at ``dim``.

    Raises:
        ValueError: none of these.
    """
    if not isinstance(value, Tensor):
        return value
    value = value.to(torch.float64 if scores.dtype == torch.float64 else torch.float32)
    if value.numel() == 1:
        return value.reshape([1] * max(scores.ndim, 1))
    lead = list(scores.shape)
    del lead[dim]
    if value.ndim == scores.ndim and value.shape[dim] == 1:
        shaped = value.movedim(dim, -1)
    else:
        shaped = value.unsqueeze(-1)
    try:
        torch.broadcast_shapes(shaped.shape[:-1], lead)
        fits = len(shaped.shape) - 1 <= len(lead)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} fits neither the rows {tuple(lead)} of the scores nor, "
            f"with size 1 at dim={dim}, the scores {tuple(scores.shape)}"
        )
    # As many dimensions as the scores: shaping it again changes nothing.
    return shaped.reshape(*[1] * (scores.ndim - shaped.ndim), *shaped.shape)


class _Rows(Function):
    """The plain path: one kernel forward, one backward; differentiable again by the reference expressions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: str, params: dict[str, Any]) -> Tensor:
        flat = x if x.ndim == 2 else x.view(-1, x.shape[-1])
        kernel = kernels.select(op, flat).OPS[op]
        p, saved = kernel.forward(flat, **params)
        if x.ndim != 2:
            p = p.view(x.shape)
        ctx.save_for_backward(p, *saved)
        ctx.op, ctx.kernel, ctx.params = op, kernel, params
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p, *saved = ctx.saved_tensors
        if ctx.op in _SMOOTH and (_grad_enabled() or _batched(g)):  # create_graph=True; is_grads_batched=True
            return REFERENCE[ctx.op].backward(g, p, (), **ctx.params), None, None
        if _grad_enabled() or _batched(g):
            return _linear(g, p.detach(), saved, ctx.kernel, ctx.params), None, None
        return _vjp(g, p, saved, ctx.kernel, ctx.params), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: Any) -> Tensor:
        # Every one of these Jacobians is symmetric.
        p, *saved = ctx.saved_tensors
        return _vjp(t, p, saved, ctx.kernel, ctx.params)


def _vjp(g: Tensor, p: Tensor, saved: Any, kernel: kernels.Op, params: dict[str, Any]) -> Tensor:
    if g.ndim == 2:
        return kernel.backward(g.contiguous(), p, tuple(saved), **params)
    n = p.shape[-1]
    return kernel.backward(g.reshape(-1, n).contiguous(), p.view(-1, n), tuple(saved), **params).view(p.shape)


def _linear(g: Tensor, p: Tensor, saved: Any, kernel: kernels.Op, params: dict[str, Any]) -> Tensor:
    """The product of a piecewise linear mapping's Jacobian with g, differentiable in g."""
    if not _batched(g):
        return _Linear.apply(g, p, kernel, params, *saved)
    # Kernels take no batched gradients, products with matrices do: the Jacobian [..., n, n], column by column.
    columns = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    jacobian = torch.stack([_vjp(e.expand_as(p), p, saved, kernel, params) for e in columns], dim=-1)
    return (jacobian @ g.unsqueeze(-1)).squeeze(-1)


class _Linear(Function):
    """The vector-Jacobian product of a piecewise linear mapping: linear in g, with a constant symmetric matrix."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, p: Tensor, kernel: kernels.Op, params: dict[str, Any], *saved: Tensor) -> Tensor:
        ctx.save_for_backward(p, *saved)
        ctx.kernel, ctx.params = kernel, params
        return _vjp(g, p, saved, kernel, params)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        p, *saved = ctx.saved_tensors
        return (_linear(gg, p, saved, ctx.kernel, ctx.params), None, None, None, *(None for _ in saved))


class _RowsInTorch(Function):
    """Any leading shape, transforms, and a tensor hyperparameter ``theta`` ``[..., 1]`` called ``name``.

    Returns the attention and what the reference kernel saved.
    """

    @staticmethod
    def forward(x: Tensor, theta: Tensor | None, op: str, name: str, params: dict[str, Any]) -> tuple[Tensor, ...]:
        n = x.shape[-1]
        flat = x.reshape(-1, n).contiguous()
        kernel = REFERENCE[op]
        if theta is not None:
            if theta.numel() == 1:
                params = {**params, name: theta.item()}
                kernel = kernels.select(op, flat).OPS[op]
            else:
                params = {**params, name: theta.expand(*x.shape[:-1], 1).reshape(-1, 1).to(torch.float64)}
        p, saved = kernel.forward(flat, **params)
        return (p.view(x.shape), *(s.view(x.shape) for s in saved if theta is None))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, theta, op, name, params = inputs
        p, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(p, theta, *saved)
        ctx.save_for_forward(p, theta, *saved)
        ctx.op, ctx.name, ctx.params = op, name, params

    @staticmethod
    def _product(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Any]]:
        p, theta, *saved = ctx.saved_tensors
        params = ctx.params if theta is None else {**ctx.params, ctx.name: theta}
        return REFERENCE[ctx.op].backward(g, p, tuple(saved), **params), p, theta, params

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        dx, p, theta, params = _RowsInTorch._product(ctx, g)
        dtheta = None
        if theta is not None and ctx.needs_input_grad[1]:
            dtheta = _THETA_GRADIENT[ctx.op](dx, p, **params).to(theta.dtype).sum_to_size(theta.shape)
        return dx.to(p.dtype), dtheta, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, t_theta: Any, *_: Any) -> tuple[Any, ...]:
        if t_theta is not None:
            raise NotImplementedError(
                "forward-mode derivatives are taken with respect to the scores; pass "
                f"{ctx.name} as a number or use reverse mode"
            )
        saved = ctx.saved_tensors[2:]
        return (_RowsInTorch._product(ctx, t)[0], *(None for _ in saved))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, theta: Tensor | None, op: str, name: str, params: dict[str, Any]
    ) -> Any:
        # The batch dimension joins the leading shape; both tensors get it first and the same number of dimensions.
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.unsqueeze(0)
        if theta is not None:
            theta = theta.movedim(in_dims[1], 0) if in_dims[1] is not None else theta.unsqueeze(0)
            theta = theta.reshape(theta.shape[0], *[1] * (x.ndim - theta.ndim), *theta.shape[1:])
            if in_dims[0] is None:
                x = x.expand(info.batch_size, *x.shape[1:])
        out = _RowsInTorch.apply(x, theta, op, name, params)
        return out, tuple(0 for _ in out)


def rows_with_theta(op: str, x: Tensor, name: str, theta: Tensor, params: dict[str, Any]) -> Tensor:
    """A row operation on the last dimension of ``x`` with the tensor hyperparameter ``theta [..., 1]`` (see `per_row`)."""
    if _compiling():
        from . import _compiled

        return _compiled.rows_with_theta(op, x.contiguous(), name, theta, params)
    return _RowsInTorch.apply(x, theta, op, name, params)[0]
