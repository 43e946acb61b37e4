"""Row operations as opaque operators for torch.compile: whole graphs, no breaks, whatever kernel runs inside.

Only imported while compiling. The backward of sparsemax, entmax and pnormmax is traced as torch code (and fused by the
compiler); that of fusedmax and oscarmax is opaque and repeats the forward to find the groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from ._call import _SMOOTH, _THETA_GRADIENT

_LIBRARY = torch.library.Library("sparse_attention", "DEF")
_LIBRARY.define("rows(Tensor x, Tensor? theta, str op, str theta_name, str[] names, float[] values) -> Tensor")
_LIBRARY.define("rows_vjp(Tensor g, Tensor x, str op, str[] names, float[] values) -> Tensor")
_LIBRARY.define("constrained(Tensor x, Tensor u) -> (Tensor, Tensor)")


def _rows(x: Tensor, theta: Tensor | None, op: str, theta_name: str, names: list[str], values: list[float]) -> Tensor:
    n = x.shape[-1]
    flat = x.reshape(-1, n).contiguous()
    params: dict[str, Any] = dict(zip(names, values))
    kernel = None
    if theta is not None and theta.numel() == 1:
        params[theta_name] = theta.item()
    elif theta is not None:
        params[theta_name] = theta.expand(*x.shape[:-1], 1).reshape(-1, 1).to(torch.float64)
        kernel = REFERENCE[op]
    kernel = kernel or kernels.select(op, flat).OPS[op]
    return kernel.forward(flat, **params)[0].view(x.shape)


def _rows_vjp(g: Tensor, x: Tensor, op: str, names: list[str], values: list[float]) -> Tensor:
    n = x.shape[-1]
    flat = x.reshape(-1, n).contiguous()
    params = dict(zip(names, values))
    kernel = kernels.select(op, flat).OPS[op]
    p, saved = kernel.forward(flat, **params)
    return kernel.backward(g.reshape(-1, n).contiguous(), p, saved, **params).view(x.shape)


def _constrained(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    from .constrained import solve, state

    p, saved, bounds, _ = solve(x, u)
    return p.view(x.shape), state(p, saved, bounds).view(x.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, theta, op, theta_name, names, values = inputs
    ctx.op, ctx.theta_name, ctx.names, ctx.values = op, theta_name, names, values
    ctx.save_for_backward(output if op in _SMOOTH else x, theta)


def _backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    saved, theta = ctx.saved_tensors
    if ctx.op not in _SMOOTH:
        dx = torch.ops.sparse_attention.rows_vjp(g, saved, ctx.op, ctx.names, ctx.values)
        return dx, None, None, None, None, None
    params: dict[str, Any] = dict(zip(ctx.names, ctx.values))
    if theta is not None:
        params[ctx.theta_name] = theta
    dx = REFERENCE[ctx.op].backward(g, saved, (), **params)
    dtheta = None
    if theta is not None:
        dtheta = _THETA_GRADIENT[ctx.op](dx, saved, **params).to(theta.dtype).sum_to_size(theta.shape)
    return dx.to(saved.dtype), dtheta, None, None, None, None


def _constrained_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output)


def _constrained_backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, Tensor]:
    p, state = ctx.saved_tensors
    return REFERENCE["constrained_sparsemax"].backward(g, p, (state,), bounds=p)


_LIBRARY.impl("rows", _rows, "CompositeExplicitAutograd")
_LIBRARY.impl("rows_vjp", _rows_vjp, "CompositeExplicitAutograd")
_LIBRARY.impl("constrained", _constrained, "CompositeExplicitAutograd")
torch.library.register_fake("sparse_attention::rows", lambda x, *_: x.new_empty(x.shape), lib=_LIBRARY)
torch.library.register_fake("sparse_attention::rows_vjp", lambda g, x, *_: x.new_empty(x.shape), lib=_LIBRARY)
torch.library.register_fake(
    "sparse_attention::constrained",
    lambda x, u: (x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int8)),
    lib=_LIBRARY,
)
torch.library.register_autograd("sparse_attention::rows", _backward, setup_context=_setup, lib=_LIBRARY)
torch.library.register_autograd(
    "sparse_attention::constrained", _constrained_backward, setup_context=_constrained_setup, lib=_LIBRARY
)


def rows(op: str, x: Tensor, params: dict[str, Any]) -> Tensor:
    return torch.ops.sparse_attention.rows(x, None, op, "", list(params), list(params.values()))


def rows_with_theta(op: str, x: Tensor, name: str, theta: Tensor, params: dict[str, Any]) -> Tensor:
    return torch.ops.sparse_attention.rows(x, theta, op, name, list(params), list(params.values()))


def constrained_rows(x: Tensor, u: Tensor) -> Tensor:
    return torch.ops.sparse_attention.constrained(x, u)[0]
