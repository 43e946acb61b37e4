"""The first and last steps of every row operation: shift, widen, and mark the rows that need no computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

# A hyperparameter: a number, or one value per row as a tensor [..., 1].
Value = float | Tensor


class NoMemory(ValueError):
    """A tensor without memory of its own, which only torch's dispatcher can handle."""


class Op(NamedTuple):
    """A row operation (see the docstring of ``sparse_attention.kernels``) and what holds for it whatever kernel runs.

    params: the names of its hyperparameters, in the order of the C function's arguments.
    smooth: the backward is an expression of g and p alone that can be differentiated again. Otherwise the mapping is
        piecewise linear, the backward's second derivative in p is 0, native backwards read the scores, and masked positions
        reach the kernel as -inf.
    native: what the native kernel saves for its backward: "nothing", "scores", "blocks" (int32, the block of equal values) or
        "threshold" (with the scores); None: there is no native kernel.
    theta_gradient: ``f(dx, p, **params) -> [..., 1]``, the derivative with respect to the one hyperparameter that may be
        a tensor, from the one with respect to the scores; None where there is no such hyperparameter or the mapping
        differentiates it itself. gamma_gradient: the same for gamma.
    """

    forward: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
    backward: Callable[..., Any]
    params: tuple[str, ...]
    smooth: bool
    native: str | None
    theta_gradient: Callable[..., Tensor] | None = None
    gamma_gradient: Callable[..., Tensor] | None = None

    def gradient_of(self, name: str, dx: Tensor, p: Tensor, params: dict[str, Any]) -> Tensor:
        """The derivative with respect to the tensor hyperparameter ``name``, in its shape. Raises TypeError without one."""
        of = self.gamma_gradient if name == "gamma" else self.theta_gradient
        if of is None:
            raise TypeError(f"{self.forward.__name__} has no derivative with respect to a tensor {name}")
        return of(dx, p, **params).to(params[name].dtype).sum_to_size(params[name].shape)


class Rows(NamedTuple):
    """Scores ready for computing.

    z: ``[..., n]``, float64 where the device has it, shifted so that the row's maximum is 0 and divided by gamma;
        -inf at excluded positions; 0 in rows that are not computed.
    keep: ``[..., n]`` bool; dead, bad: ``[..., 1]`` bool, rows without a position and rows with NaN or +inf.
    """

    z: Tensor
    keep: Tensor
    dead: Tensor
    bad: Tensor
    dtype: torch.dtype


def widest(x: Tensor) -> torch.dtype:
    return x.dtype if x.device.type == "mps" else torch.float64


def prepare(x: Tensor, gamma: Value = 1.0) -> Rows:
    """Rows of scores ``x [..., n]``, shifted before they are divided so that huge scores and tiny gammas survive."""
    wide = x.to(widest(x))
    top = wide.amax(-1, keepdim=True)
    dead = top == -torch.inf
    bad = ~(top < torch.inf)  # NaN compares false, and amax hands it on
    skip = dead | bad
    z = (wide - top.masked_fill(skip, 0.0)) / gamma
    keep = x > -torch.inf
    z = z.masked_fill(~keep, -torch.inf).masked_fill(skip, 0.0)
    return Rows(z, keep, dead, bad, x.dtype)


def finish(p: Tensor, rows: Rows) -> Tensor:
    """Exact zeros at excluded positions and in empty rows, NaN in rows that had it; one rounding to the input's type."""
    p = p.masked_fill(~rows.keep | rows.dead, 0.0).masked_fill(rows.bad, torch.nan)
    return p.to(rows.dtype)


def project(z: Tensor) -> Tensor:
    """Euclidean projection on the simplex of rows ``z [..., n]``; -inf stays out. Sorting, O(n log n).

    Martins & Astudillo 2016, Algorithm 1: the support is the largest k with ``k z_(k) > sum_{j<=k} z_(j) - 1``.
    """
    ordered = z.sort(dim=-1, descending=True).values
    total = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    size = (count * ordered > total).sum(-1, keepdim=True).clamp(min=1)
    tau = total.gather(-1, size - 1) / size
    return (z - tau).clamp(min=0.0)


def centred(g: Tensor, weight: Tensor) -> Tensor:
    """``weight * (g - weighted mean of g)`` along the last dimension; 0 where the weights of a row are all 0."""
    total = weight.sum(-1, keepdim=True)
    safe = torch.where(total == 0, torch.ones_like(total), total)
    return weight * (g - (weight * g).sum(-1, keepdim=True) / safe)
