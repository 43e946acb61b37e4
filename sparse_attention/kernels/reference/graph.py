"""The reference kernels as graphs of torch's own operators, while `torch.onnx.export` records them, or `torch.export` under
``kernels.use("reference")``.

A graph contains none of our operators, and what it does cannot depend on the values of its inputs. So no loop may
end when every row is solved. Roots are found in a fixed number of steps. fusedmax, oscarmax and entmax with alpha above 2
use formulas over all pairs of positions, which are exact and take O(n^2) memory per row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

_DOUBLINGS = 16  # a row of 2^16 positions would need tables of 32 GiB


def exporting() -> bool:
    """True while torch.onnx.export records a graph, or torch.export one that may hold none of our operators."""
    if torch.compiler.is_dynamo_compiling():
        return False
    onnx = sys.modules.get("torch.onnx")  # torch imports it on first use
    if onnx is not None and onnx.is_in_onnx_export():
        return True
    exports = getattr(torch.compiler, "is_exporting", bool)  # torch 2.7 and later
    return exports() and sys.modules[__name__.rpartition(".reference")[0]].active() == "reference"  # type: ignore[no-any-return]


def refuse(
    name: str, instead: str = "export a mapping over rows, such as fusedmax, or compute it outside the model"
) -> None:
    """Raise NotImplementedError while a graph is exported with a call of ``name``; ``instead`` is the next step."""
    if exporting():
        raise NotImplementedError(
            f"{name} cannot be exported to ONNX or ATen, as its solver stops on convergence; {instead}"
        )


def in_order(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x [..., n]`` in decreasing order and the places of the values, ties in their order, which ONNX always keeps."""
    return x.sort(dim=-1, descending=True) if exporting() else x.sort(dim=-1, descending=True, stable=True)


def root(value: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Root in ``[low, high]`` of a decreasing function, both ``[..., 1]``, to within 2^-36 of the interval.

    ``value`` takes points ``[k, ..., 1]``: each of 12 rounds keeps one eighth of the interval.
    """
    inner = torch.arange(1, 8, dtype=low.dtype, device=low.device).reshape(-1, *[1] * low.ndim)
    width = high - low
    for _ in range(12):
        width = width / 8
        low = low + width * (value(low + width * inner) > 0).sum(0)
    return low


def last_inside(z: Tensor, ordered: Tensor, a: Tensor) -> Tensor:
    """The last position ``[..., 1]`` of the support in ``ordered``, the sorted scores ``z [..., n]`` (see `_steep_entmax`)."""
    a = a.unsqueeze(-1)
    above = a * (z.unsqueeze(-2) - ordered.unsqueeze(-1)).clamp(min=0.0)
    return (above.pow(1.0 / a).sum(-1) < 1.0).sum(-1, keepdim=True) - 1


def isotonic(y: Tensor) -> Tensor:
    """The non-increasing least-squares fit to rows ``y [..., n]``: ``min_{j <= i} max_{k >= i} mean(y_j, ..., y_k)``."""
    first, last, length = _intervals(y)
    total = y.cumsum(-1)
    mean = (total.unsqueeze(-2) - (total - y).unsqueeze(-1)) / length  # [..., j, k]
    highest = _highest_after(torch.where(first <= last, mean, -torch.inf))
    return torch.where(first <= last, highest, torch.inf).amin(-2)


def tv_prox(y: Tensor, weight: Tensor) -> Tensor:
    """``argmin_b 1/2 ||b - y||^2 + sum_k weight_k |b_{k+1} - b_k|`` for rows ``y [..., n]``, ``weight [..., n-1]``.

    In `structured.tv_prox`, the derivative of the best cost of the first k values is a chain of clippings and sums:
    ``D_k(b) = clip(D_{k-1}(b), -w_{k-1}, w_{k-1}) + b - y_k``. Written out, it is a maximum of minima of lines in b,
    each one a sum from a position s at which the chain was clipped:
    ``D_k = max_{s < k} min(P_s - w_s, min_{s <= u < k} P_u + w_u)`` with ``P_s(b) = sum_{s < i <= k} (b - y_i)``. So
    the point where it takes a given value is the minimum over s of a maximum of the points where these lines take it.
    On the way back, ``b_k = clip(b_{k+1}, low_k, high_k)`` is written out in the same way.
    """
    total, edge = y.cumsum(-1), y.new_zeros(()).expand_as(y[..., :1])
    before, after = torch.cat((edge, weight), -1).unsqueeze(-2), torch.cat((weight, edge), -1).unsqueeze(-1)
    column, row, length = (x.transpose(-1, -2) for x in _intervals(y))  # [k, s]: the interval from s to k
    sums = total.unsqueeze(-1) - (total - y).unsqueeze(-2)
    ends = []
    for level in (-after, after):
        clipped = _highest_after(torch.where(column <= row, (sums + level - before) / length, -torch.inf))
        start = torch.maximum((sums + level + before) / length, clipped)
        ends.append(torch.where(column <= row, start, torch.inf).amin(-1))
    low, high = ends
    lowest = -_highest_after(torch.where(column <= row, -high.unsqueeze(-2), -torch.inf))  # [j, k]: of high_k to high_j
    return torch.where(column <= row, torch.minimum(low.unsqueeze(-1), lowest), -torch.inf).amax(-2)


def _intervals(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First position ``[n, 1]``, last position ``[1, n]`` and length ``[n, n]`` (1 if empty) of all intervals."""
    at = torch.arange(y.shape[-1], device=y.device)
    first, last = at.unsqueeze(-1), at.unsqueeze(-2)
    return first, last, (last - first + 1).clamp(min=1).to(y.dtype)


def _highest_after(x: Tensor) -> Tensor:
    """The maximum of each entry of ``x [..., n]`` and all later ones. ONNX has no cumulative maximum."""
    at = torch.arange(x.shape[-1], device=x.device)
    for k in range(_DOUBLINGS):
        x = torch.maximum(x, x[..., (at + 2**k).clamp(max=x.shape[-1] - 1)])
    return x
