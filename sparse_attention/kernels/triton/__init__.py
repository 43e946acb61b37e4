"""The GPU backend: Triton kernels for sparsemax, entmax, pnormmax, fusedmax and oscarmax.

Takes float32, float16 and bfloat16 rows [R, n] on a CUDA device, n up to 32,768; computes in float32 and rounds once.
Anything else (float64, longer rows, constrained_sparsemax, alpha above 2) is left to the reference, which runs on any
device. The contract of ``forward`` and ``backward`` is that of ``sparse_attention.kernels``.

These kernels are tested under Triton's interpreter and compiled ahead of time for sm_80 and sm_90. They have never been
run on a GPU. With ``TRITON_INTERPRET=1`` they also take CPU tensors, slowly.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

_LONGEST = 32768
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
_ROWS_PER_PROGRAM = 32  # a warp: one row per lane
_kernels: Any = None


def _load() -> Any:
    """Triton is imported on first use: it takes longer than the rest of the package together."""
    global _kernels
    if _kernels is None:
        try:
            from . import simplex, structured

            _kernels = (simplex, structured)
        except ImportError:
            _kernels = ()
    return _kernels


def available(op: str, x: Tensor) -> bool:
    """Whether ``op`` can run on ``x`` here."""
    return (
        op in OPS
        and (x.is_cuda or (_INTERPRETED and x.device.type == "cpu"))
        and x.dtype in _DTYPES
        and x.shape[-1] <= _LONGEST
        and bool(_load())
    )


def _launch(n: int) -> dict[str, int]:
    block = 1 << max(4, (n - 1).bit_length())
    return {"BLOCK": block, "num_warps": 1 if block <= 512 else 4 if block <= 4096 else 16}


def _project(y: Tensor, rule: Any, scale: float, r: float, dtype: torch.dtype) -> Tensor:
    rows, n = y.shape
    p = torch.empty(rows, n, dtype=dtype, device=y.device)
    if rows:
        _load()[0].simplex_forward[(rows,)](y, p, n, scale, r, RULE=rule, **_launch(n))
    return p


def _weighted_backward(g: Tensor, p: Tensor, scale: float, exponent: float) -> Tensor:
    rows, n = p.shape
    g, dx = g.contiguous(), torch.empty_like(p)
    if rows:
        _load()[0].weighted_backward[(rows,)](g, p, dx, n, scale, exponent, **_launch(n))
    return dx


class _Sparsemax:
    def forward(self, x: Tensor, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        return _project(x, _load()[0].SPARSEMAX, 1 / gamma, 0.0, x.dtype), ()

    def backward(self, g: Tensor, p: Tensor, saved: Any = (), gamma: float = 1.0) -> Tensor:
        return _weighted_backward(g, p, 1 / gamma, 0.0)


class _Entmax:
    """alpha outside [1.1, 2] goes to the reference: float32 is not enough there."""

    def forward(self, x: Tensor, alpha: float = 1.5) -> tuple[Tensor, tuple[Tensor, ...]]:
        rules = _load()[0]
        if alpha == 2:
            return _project(x, rules.SPARSEMAX, 1.0, 0.0, x.dtype), ()
        if not 1.1 <= alpha < 2:
            from .. import reference

            return reference.OPS["entmax"].forward(x, alpha=alpha)
        rule = rules.ENTMAX15 if alpha == 1.5 else rules.ENTMAX
        return _project(x, rule, alpha - 1, 1 / (alpha - 1), x.dtype), ()

    def backward(self, g: Tensor, p: Tensor, saved: Any = (), alpha: float = 1.5) -> Tensor:
        if saved or not 1.1 <= alpha <= 2:
            from .. import reference

            return reference.OPS["entmax"].backward(g, p, saved, alpha=alpha)
        return _weighted_backward(g, p, 1.0, 2 - alpha)


class _Pnormmax:
    """p below 1.05 goes to the reference."""

    def forward(self, x: Tensor, p: float = 1.5, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        rules = _load()[0]
        if p == 2:
            return _project(x, rules.SPARSEMAX, 1 / gamma, 0.0, x.dtype), ()
        if p < 1.05:
            from .. import reference

            return reference.OPS["pnormmax"].forward(x, p=p, gamma=gamma)
        return _project(x, rules.PNORMMAX, 1 / gamma, p / (p - 1), x.dtype), ()

    def backward(self, g: Tensor, y: Tensor, saved: Any = (), p: float = 1.5, gamma: float = 1.0) -> Tensor:
        if p == 2:
            return _weighted_backward(g, y, 1 / gamma, 0.0)
        if saved or p < 1.05:
            from .. import reference

            return reference.OPS["pnormmax"].backward(g, y, saved, p=p, gamma=gamma)
        rows, n = y.shape
        g, dx = g.contiguous(), torch.empty_like(y)
        if rows:
            _load()[0].pnormmax_backward[(rows,)](g, y, dx, n, p, gamma, **_launch(n))
        return dx


def _prepare(x: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """float32 rows less their maximum over gamma, 0 in unusable rows; kept [R, n]; lengths [R]; empty, spoilt [R, 1]."""
    wide = x.float()
    top = wide.amax(-1, keepdim=True)
    empty, spoilt = top == -torch.inf, ~(top < torch.inf)
    keep = (wide > -torch.inf) & ~(empty | spoilt)
    z = torch.where(keep, (wide - torch.where(empty | spoilt, 0.0, top)) / gamma, -torch.inf)
    return z.contiguous(), keep, keep.sum(-1, dtype=torch.int32), empty, spoilt


def _finish(p: Tensor, keep: Tensor, spoilt: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(spoilt, torch.nan, torch.where(keep, p, 0.0)).to(dtype)


class _Grouped:
    """fusedmax and oscarmax save each entry's group, int32 [R, n]: -1 off the support, -2 in rows with NaN."""

    def backward(self, g: Tensor, p: Tensor, saved: tuple[Tensor, ...], lam: float = 1.0, gamma: float = 1.0) -> Tensor:
        """Group averages of g, less the average over the support."""
        groups = saved[0]
        on = groups >= 0
        slot = groups.clamp(min=0).long()
        wide = torch.where(on, g.float(), 0.0)
        sums = torch.zeros_like(wide).scatter_add_(-1, slot, wide)
        sizes = torch.zeros_like(wide).scatter_add_(-1, slot, on.float())
        mean = wide.sum(-1, keepdim=True) / on.sum(-1, keepdim=True).clamp(min=1)
        dx = torch.where(on, sums.gather(-1, slot) / sizes.gather(-1, slot).clamp(min=1) - mean, 0.0) / gamma
        return torch.where(groups == -2, torch.nan, dx).to(p.dtype)


class _Fusedmax(_Grouped):
    def forward(self, x: Tensor, lam: float = 1.0, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, n = x.shape
        z, keep, length, _, spoilt = _prepare(x, gamma)
        # Excluded positions go to the end, so that those beside them become neighbours.
        order = torch.sort((~keep).to(torch.uint8), dim=-1, stable=True).indices
        z = z.gather(-1, order)
        y = torch.full_like(z, -torch.inf)
        if rows:
            kernel = _load()[1].total_variation
            kernel[(-(-rows // _ROWS_PER_PROGRAM),)](z, y, length, rows, n, lam, ROWS=_ROWS_PER_PROGRAM, num_warps=1)
        packed = _project(y, _load()[0].SPARSEMAX, 1.0, 0.0, torch.float32)
        change = torch.ones_like(packed, dtype=torch.bool)
        change[:, 1:] = packed[:, 1:] != packed[:, :-1]
        groups = (change.cumsum(-1, dtype=torch.int32) - 1).masked_fill(~(packed > 0), -1)
        p = torch.zeros_like(packed).scatter_(-1, order, packed)
        groups = torch.empty_like(groups).scatter_(-1, order, groups).masked_fill(spoilt, -2)
        return _finish(p, keep, spoilt, x.dtype), (groups,)


class _Oscarmax(_Grouped):
    def forward(self, x: Tensor, lam: float = 1.0, gamma: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, n = x.shape
        z, keep, length, _, spoilt = _prepare(x, gamma)
        z, order = torch.sort(z, dim=-1, descending=True)
        y = torch.full_like(z, -torch.inf)
        groups = torch.full_like(z, -1, dtype=torch.int32)
        if rows:
            kernel = _load()[1].pool_adjacent_violators
            kernel[(-(-rows // _ROWS_PER_PROGRAM),)](
                z, y, groups, torch.empty_like(z, dtype=torch.float64), torch.empty_like(groups), length,
                rows, n, lam, ROWS=_ROWS_PER_PROGRAM, num_warps=1,
            )  # fmt: skip
        packed = _project(y, _load()[0].SPARSEMAX, 1.0, 0.0, torch.float32)
        groups = groups.masked_fill(~(packed > 0), -1)
        p = torch.zeros_like(packed).scatter_(-1, order, packed)
        groups = torch.empty_like(groups).scatter_(-1, order, groups).masked_fill(spoilt, -2)
        return _finish(p, keep, spoilt, x.dtype), (groups,)


OPS: dict[str, Any] = {
    "sparsemax": _Sparsemax(),
    "entmax": _Entmax(),
    "pnormmax": _Pnormmax(),
    "fusedmax": _Fusedmax(),
    "oscarmax": _Oscarmax(),
}
