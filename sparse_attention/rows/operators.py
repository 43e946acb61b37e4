"""Row operations as opaque operators of torch's dispatcher, so that the kernel inside does not break a compiled graph.

They are used for tensors whose memory a kernel must not read (`shape.foreign`). The backward of smooth operations is
torch code, which a compiler can fuse; the backward of the other operations is opaque and repeats the forward to find
the groups. A DTensor may be split along any dimension of the rows except the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..kernels.reference import OPS as REFERENCE
from ..kernels.reference.graph import exporting
from ..kernels.reference.rows import widest
from .shape import foreign

LIBRARY = torch.library.Library("sparse_attention", "DEF")
OPERATORS = torch.ops.sparse_attention


def _params(x: Tensor, theta: Tensor | None, name: str, names: str, values: list[float]) -> tuple[bool, Any]:
    """Returns whether theta is given as a number for each row, and a dict of all hyperparameters."""
    params: dict[str, Any] = dict(zip(names.split(), values))
    if theta is not None and theta.numel() == 1 and not theta.is_cuda:  # on a GPU, the host would wait for the number
        params[name] = theta.item()
    elif theta is not None:
        params[name] = theta.expand(*x.shape[:-1], 1).reshape(-1, 1).to(widest(x))
    return isinstance(params.get(name), Tensor), params


def _rows_in_torch(
    x: Tensor, theta: Tensor | None, op: str, theta_name: str, names: str, values: list[float], saves: bool = True
) -> list[Tensor]:
    """Returns the attention and, with ``saves`` and if all hyperparameters are numbers, the tensors that the reference saved."""
    saves = saves and theta is None
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    by_row, params = _params(x, theta, theta_name, names, values)
    kernel: Any = REFERENCE[op] if by_row or saves else kernels.select(op, flat).OPS[op]
    p, saved = kernel.forward(flat, **params)
    return [p.view(x.shape), *(s.view(x.shape) for s in saved if saves)]


def _rows(x: Tensor, theta: Tensor | None, op: str, theta_name: str, names: str, values: list[float]) -> Tensor:
    return _rows_in_torch(x, theta, op, theta_name, names, values, saves=False)[0]


def _rows_vjp(g: Tensor, x: Tensor, op: str, names: str, values: list[float]) -> Tensor:
    n = x.shape[-1]
    flat = x.reshape(-1, n).contiguous()
    params = dict(zip(names.split(), values))
    kernel = kernels.select(op, flat).OPS[op]
    p, saved = kernel.forward(flat, **params)
    return kernel.backward(g.reshape(-1, n).contiguous(), p, saved, **params).view(x.shape)


def _vjp(g: Tensor, p: Tensor, saved: list[Tensor], backend: str, op: str, names: str, values: list[float]) -> Tensor:
    n = p.shape[-1]
    kernel = kernels.backend(backend).OPS[op]
    dx = kernel.backward(
        g.reshape(-1, n).contiguous(), p.reshape(-1, n), tuple(saved), **dict(zip(names.split(), values))
    )
    return dx.view(p.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, theta, ctx.op, ctx.theta_name, ctx.names, ctx.values = inputs
    ctx.save_for_backward(output if REFERENCE[ctx.op].smooth else x, theta)


def _backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    saved, theta = ctx.saved_tensors
    reference = REFERENCE[ctx.op]
    if not reference.smooth:
        return OPERATORS.rows_vjp(g, saved, ctx.op, ctx.names, ctx.values), None, None, None, None, None
    params: dict[str, Any] = dict(zip(ctx.names.split(), ctx.values))
    if theta is not None:
        params[ctx.theta_name] = theta
    dx = reference.backward(g, saved, (), **params)
    dtheta = None if theta is None else reference.gradient_of(ctx.theta_name, dx, saved, params)
    return dx.to(saved.dtype), dtheta, None, None, None, None


def _shape(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _fake_in_torch(x: Tensor, theta: Tensor | None, op: str, *_: Any) -> list[Tensor]:
    groups = [] if REFERENCE[op].smooth or theta is not None else [x.new_empty(x.shape, dtype=torch.int64)]
    return [x.new_empty(x.shape), *groups]


def define(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Add an operator to the library, with what it returns for tensors without values."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sparse_attention::{name}", fake, lib=LIBRARY)


_NUMBERS = "str names, float[] values"  # the names are joined into one string, since jit.trace takes no list of strings
_ROWS = f"(Tensor x, Tensor? theta, str op, str theta_name, {_NUMBERS})"
define(f"rows{_ROWS} -> Tensor", _rows, _shape)
define(f"rows_in_torch{_ROWS} -> Tensor[]", _rows_in_torch, _fake_in_torch)
define(f"rows_vjp(Tensor g, Tensor x, str op, {_NUMBERS}) -> Tensor", _rows_vjp, _shape)
define(f"vjp(Tensor g, Tensor p, Tensor[] saved, str backend, str op, {_NUMBERS}) -> Tensor", _vjp, _shape)
torch.library.register_autograd("sparse_attention::rows", _backward, setup_context=_setup, lib=LIBRARY)


@cache
def _distribute() -> None:
    """Tell DTensor that different rows may be on different devices, but that a row must not be split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def placements(ndim: int) -> list[Any]:
        return [Replicate(), *map(Shard, range(ndim - 1))]

    @register_sharding(OPERATORS.rows.default)
    def _(x: Any, theta: Any, *rest: Any) -> Any:
        if theta is not None:
            return [([Replicate()], [Replicate(), Replicate(), *[None] * len(rest)])]
        return [([p], [p, None, *[None] * len(rest)]) for p in placements(len(x.shape))]

    @register_sharding(OPERATORS.rows_vjp.default)
    def _(g: Any, x: Any, *rest: Any) -> Any:
        return [([p], [p, p, *[None] * len(rest)]) for p in placements(len(x.shape))]

    @register_sharding(OPERATORS.constrained.default)
    def _(x: Any, u: Any) -> Any:
        return [([p, p], [p, p]) for p in placements(len(x.shape))]


def known_to(x: Tensor) -> None:
    """Tell DTensor about the operators, if ``x`` is one."""
    if type(x).__module__.startswith("torch.distributed"):
        _distribute()


def rows(op: str, x: Tensor, theta_name: str, theta: Tensor | None, params: dict[str, Any]) -> Tensor:
    if exporting():
        return REFERENCE[op].forward(x, **params, **({} if theta is None else {theta_name: theta}))[0]
    known_to(x)
    return OPERATORS.rows(x, theta, op, theta_name, " ".join(params), list(params.values()))


def rows_in_torch(op: str, x: Tensor, theta_name: str, theta: Tensor | None, params: dict[str, Any]) -> list[Tensor]:
    run = OPERATORS.rows_in_torch if foreign(x) else _rows_in_torch
    return run(x, theta, op, theta_name, " ".join(params), list(params.values()))


def vjp(g: Tensor, p: Tensor, saved: Sequence[Tensor], kernel: Any, params: dict[str, Any]) -> Tensor:
    """The vector-Jacobian product of ``kernel``, for a gradient whose memory no kernel may read."""
    backend, op = kernels.place(kernel)
    if REFERENCE[op].smooth:
        return REFERENCE[op].backward(g, p, (), **params).to(p.dtype)
    return OPERATORS.vjp(g, p, list(saved), backend, op, " ".join(params), list(params.values()))
