"""Row operations under torch.func transforms, or with hyperparameters as tensors: every derivative is a torch expression."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from ..kernels.reference import OPS as REFERENCE
from . import operators
from .forward_mode import expand, forward_levels, split


def in_torch(op: str, x: Tensor, name: str, theta: Tensor | None, params: dict[str, Any]) -> Tensor:
    """The operation along the last dimension of ``x``, by `RowsInTorch`, also in nested forward mode."""
    levels = forward_levels()
    if levels < 2:
        return RowsInTorch.apply(x, theta, op, name, params)[0]
    (x0,), (h,) = split(x)
    p, *saved = RowsInTorch.apply(x0, theta, op, name, params)
    values = params if theta is None else {**params, name: theta}
    return expand(p, levels, lambda p, s: REFERENCE[op].backward(s * h, p, tuple(saved), **values))


class RowsInTorch(Function):
    """The reference kernel on scores of any leading shape, also under transforms.

    ``theta [..., 1]`` is the value of the hyperparameter ``name`` if it is a tensor. Returns the attention and the
    tensors that the reference kernel saved.
    """

    @staticmethod
    def forward(x: Tensor, theta: Tensor | None, op: str, name: str, params: dict[str, Any]) -> tuple[Tensor, ...]:
        return tuple(operators.rows_in_torch(op, x, name, theta, params))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, theta, op, name, params = inputs
        p, *saved = output
        ctx.set_materialize_grads(False)  # None is the tangent of a hyperparameter that has none
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
    def backward(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if g is None:
            return None, None, None, None, None
        dx, p, theta, params = RowsInTorch._product(ctx, g)
        dtheta = None
        if theta is not None and ctx.needs_input_grad[1]:
            dtheta = REFERENCE[ctx.op].gradient_of(ctx.name, dx, p, params)
        return dx.to(p.dtype), dtheta, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, t_theta: Any, *_: Any) -> tuple[Any, ...]:
        if t_theta is not None:
            raise NotImplementedError(
                "forward-mode derivatives are taken only with respect to the scores; pass "
                f"{ctx.name} as a number or use reverse mode"
            )
        saved = ctx.saved_tensors[2:]
        return (RowsInTorch._product(ctx, t)[0], *(None for _ in saved))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, theta: Tensor | None, op: str, name: str, params: dict[str, Any]
    ) -> Any:
        # The batch dimension becomes the first dimension of both tensors, which then get equally many dimensions.
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.unsqueeze(0)
        if theta is not None:
            theta = theta.movedim(in_dims[1], 0) if in_dims[1] is not None else theta.unsqueeze(0)
            theta = theta.reshape(theta.shape[0], *[1] * (x.ndim - theta.ndim), *theta.shape[1:])
            if in_dims[0] is None:
                x = x.expand(info.batch_size, *x.shape[1:])
        out = RowsInTorch.apply(x, theta, op, name, params)
        return out, tuple(0 for _ in out)
