"""The first and last steps of every row operation: shift, convert to float64, mark rows that need no computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import Refused

# A hyperparameter: a number, or one value per row as a tensor [..., 1].
Value = float | Tensor


class NoMemory(Refused, ValueError):
    """The tensor has no memory of its own, so only torch's dispatcher can handle it."""


class Op(NamedTuple):
    """A row operation (see the docstring of ``sparse_attention.kernels``), with properties that hold for every kernel.

    params: the names of the hyperparameters, in the order of the C function's arguments.
    smooth: True if the backward is an expression of only g and p that can be differentiated again. Otherwise, the
        mapping is piecewise linear, the second derivative of the backward in p is 0, native backwards read the scores,
        and masked positions reach the kernel as -inf.
    native: what the native kernel saves for its backward: "nothing", "scores", "blocks" (int32, the block of equal
        values) or "threshold" (with the scores). None means that there is no native kernel.
    theta_gradient: ``f(dx, p, **params) -> [..., 1]`` computes the derivative with respect to the one hyperparameter
        that may be a tensor, from the derivative dx with respect to the scores. None if there is no such hyperparameter
        or the mapping differentiates it itself. gamma_gradient: the same for gamma.
    """

    forward: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
    backward: Callable[..., Any]
    params: tuple[str, ...]
    smooth: bool
    native: str | None
    theta_gradient: Callable[..., Tensor] | None = None
    gamma_gradient: Callable[..., Tensor] | None = None

    def gradient_of(self, name: str, dx: Tensor, p: Tensor, params: dict[str, Any]) -> Tensor:
        """The derivative with respect to the tensor hyperparameter ``name``, in its shape."""
        of: Any = self.gamma_gradient if name == "gamma" else self.theta_gradient
        return of(dx, p, **params).to(params[name].dtype).sum_to_size(params[name].shape)


class Rows(NamedTuple):
    """Scores prepared for the computation.

    z: ``[..., n]``, float64 if the device supports it, shifted so that the maximum of each row is 0 and divided by
        gamma; -inf at excluded positions; 0 in rows that are not computed.
    keep: ``[..., n]`` bool.
    dead, bad: ``[..., 1]`` bool; dead rows have no kept position, bad rows contain NaN or +inf.
    """

    z: Tensor
    keep: Tensor
    dead: Tensor
    bad: Tensor
    dtype: torch.dtype


WITHOUT_FLOAT64 = {"mps"}  # types of devices


def widest(x: Tensor) -> torch.dtype:
    """float64, or the dtype of x if its device has no float64."""
    return x.dtype if x.device.type in WITHOUT_FLOAT64 else torch.float64


def prepare(x: Tensor, gamma: Value = 1.0) -> Rows:
    """Prepare scores ``x [..., n]``; they are shifted before the division, so that huge scores or tiny gammas work."""
    wide = x.to(widest(x))
    top = wide.amax(-1, keepdim=True)
    dead = top == -torch.inf
    bad = ~(wide < torch.inf).all(-1, keepdim=True)  # comparisons with NaN are false; onnxruntime's amax may skip NaN
    skip = dead | bad
    z = (wide - top.masked_fill(skip, 0.0)) / gamma
    keep = x > -torch.inf
    z = z.masked_fill(~keep, -torch.inf).masked_fill(skip, 0.0)
    return Rows(z, keep, dead, bad, x.dtype)


def finish(p: Tensor, rows: Rows) -> Tensor:
    """Set excluded positions and empty rows to exactly 0 and bad rows to NaN, and round once to the input's dtype."""
    p = p.masked_fill(~rows.keep | rows.dead, 0.0).masked_fill(rows.bad, torch.nan)
    return p.to(rows.dtype)


def project(z: Tensor) -> Tensor:
    """Euclidean projection of rows ``z [..., n]`` onto the simplex; positions at -inf get 0. O(n log n), by sorting.

    Martins & Astudillo 2016, Algorithm 1: the size of the support is the largest k with
    ``k z_(k) > sum_{j<=k} z_(j) - 1``.
    """
    ordered = z.sort(dim=-1, descending=True).values
    total = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    size = (count * ordered > total).sum(-1, keepdim=True).clamp(min=1)
    tau = total.gather(-1, size - 1) / size
    return (z - tau).clamp(min=0.0)


def centred(g: Tensor, weight: Tensor) -> Tensor:
    """``weight * (g - weighted mean of g)`` along the last dimension; 0 in rows whose weights are all 0."""
    total = weight.sum(-1, keepdim=True)
    safe = torch.where(total == 0, torch.ones_like(total), total)
    return weight * (g - (weight * g).sum(-1, keepdim=True) / safe)
