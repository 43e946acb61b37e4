"""Row operations as opaque operators for torch.compile: whole graphs, no breaks, whatever kernel runs inside.

Only imported while compiling. The backward of smooth operations is traced as torch code (and fused by the compiler);
that of fusedmax and oscarmax is opaque and repeats the forward to find the groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from .bounded import solve, state

_LIBRARY = torch.library.Library("sparse_attention", "DEF")
_LIBRARY.define("rows(Tensor x, Tensor? theta, str op, str theta_name, str[] names, float[] values) -> Tensor")
_LIBRARY.define("rows_vjp(Tensor g, Tensor x, str op, str[] names, float[] values) -> Tensor")
_LIBRARY.define("constrained(Tensor x, Tensor u) -> (Tensor, Tensor)")


def _rows(x: Tensor, theta: Tensor | None, op: str, theta_name: str, names: list[str], values: list[float]) -> Tensor:
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    params: dict[str, Any] = dict(zip(names, values))
    kernel: Any = None
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
    p, saved, bounds, _ = solve(x, u)
    return p.view(x.shape), state(p, saved, bounds).view(x.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, theta, ctx.op, ctx.theta_name, ctx.names, ctx.values = inputs
    ctx.save_for_backward(output if REFERENCE[ctx.op].smooth else x, theta)


def _backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    saved, theta = ctx.saved_tensors
    reference = REFERENCE[ctx.op]
    if not reference.smooth:
        dx = torch.ops.sparse_attention.rows_vjp(g, saved, ctx.op, ctx.names, ctx.values)
        return dx, None, None, None, None, None
    params: dict[str, Any] = dict(zip(ctx.names, ctx.values))
    if theta is not None:
        params[ctx.theta_name] = theta
    dx = reference.backward(g, saved, (), **params)
    dtheta = None if theta is None else reference.gradient_of_theta(dx, saved, theta, params)
    return dx.to(saved.dtype), dtheta, None, None, None, None


def _constrained_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output)


def _constrained_backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, Tensor]:
    p, held = ctx.saved_tensors
    return REFERENCE["constrained_sparsemax"].backward(g, p, (held,), bounds=p)


for _name, _function in (("rows", _rows), ("rows_vjp", _rows_vjp), ("constrained", _constrained)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
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


def rows(op: str, x: Tensor, theta_name: str, theta: Tensor | None, params: dict[str, Any]) -> Tensor:
    return torch.ops.sparse_attention.rows(x, theta, op, theta_name, list(params), list(params.values()))


def bounded_rows(x: Tensor, u: Tensor) -> Tensor:
    return torch.ops.sparse_attention.constrained(x, u)[0]
